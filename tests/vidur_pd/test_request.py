"""A request's progress, at rest and with a scheduler."""

from __future__ import annotations

import pytest

from boundary.errors import InputError
from tests.vidur_pd.one_rank import generated
from vidur_pd._core import Loop
from vidur_pd.workload.request import STATUSES, Request, RequestStatus


def _request(prompt_tokens: int = 10, output_tokens: int = 3) -> Request:
    return Request(0, "a", prompt_tokens, output_tokens, arrived_ps=5)


def test_a_new_request_has_no_stamps_and_no_progress() -> None:
    request = _request()
    assert (request.computed_tokens, request.generated_tokens, request.sequence_tokens) == (0, 0, 10)
    assert request.scheduled_ps is None
    assert request.completed_ps is None
    assert request.status is RequestStatus.WAITING


def test_statuses_have_the_numbers_of_the_core() -> None:
    loop = Loop(0, keeps_runs=False, links=None)
    ended = [Request(index, "r", 10, 5, 0) for index in range(3)]
    loop.complete(ended[0])
    loop.reject(ended[1], "too long")
    loop.fail(ended[2], "its instance failed")
    found = [request.status for request in ended]
    assert found == [RequestStatus.COMPLETED, RequestStatus.REJECTED, RequestStatus.FAILED]
    rows = loop.requests.take()
    assert [STATUSES[number] for number in rows["status"]] == found
    assert rows["reasons"] == [(1, "too long"), (2, "its instance failed")]


def test_a_restart_leaves_the_original_lengths_alone() -> None:
    request = generated(_request(), 2)
    request.restart(2)
    assert (request.prompt_tokens, request.output_tokens, request.sequence_tokens) == (10, 3, 12)


@pytest.mark.parametrize(("prompt", "output", "field"), [(0, 1, "prompt_tokens"), (1, 0, "output_tokens")])
def test_a_request_without_tokens_is_refused(prompt: int, output: int, field: str) -> None:
    with pytest.raises(InputError, match=f"request a: {field}: found 0, expected at least 1"):
        _request(prompt, output)
