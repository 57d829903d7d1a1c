"""A request's progress, at rest and in a scheduler's table."""

from __future__ import annotations

import numpy as np
import pytest

from vidur_pd.errors import InputError
from vidur_pd.request import COMPUTED, TOKENS, Request


def _request(prompt_tokens: int = 10, output_tokens: int = 3) -> Request:
    return Request(0, "a", prompt_tokens, output_tokens, arrived_ps=5)


def test_a_new_request_has_no_stamps_and_no_progress() -> None:
    request = _request()
    assert (request.computed_tokens, request.generated_tokens, request.sequence_tokens) == (0, 0, 10)
    assert request.scheduled_ps is None
    assert request.completed_ps is None
    assert not request.is_prefilled


def test_the_last_sampled_token_has_no_kv() -> None:
    """10 prompt tokens and 3 output tokens leave KV of 10 + 3 − 1 = 12 tokens."""
    assert _request().final_kv_tokens == 12


def test_progress_in_a_table_is_read_through_the_request_and_kept_when_it_leaves() -> None:
    request, counters = _request(), np.zeros(2, dtype=np.int64)
    request.set_progress(10, 1)
    request.bind(counters)
    assert counters.tolist() == [10, 11]
    counters[COMPUTED] += 2
    counters[TOKENS] += 2
    assert (request.computed_tokens, request.generated_tokens, request.is_finished) == (12, 3, True)
    request.unbind()
    counters[:] = 0
    assert (request.computed_tokens, request.generated_tokens, request.sequence_tokens) == (12, 3, 13)


def test_a_running_request_cannot_be_moved_by_others() -> None:
    request = _request()
    request.bind(np.zeros(2, dtype=np.int64))
    with pytest.raises(AssertionError, match="owns its progress"):
        request.set_progress(0, 0)
    with pytest.raises(AssertionError, match="runs already"):
        request.bind(np.zeros(2, dtype=np.int64))


def test_preemption_leaves_the_original_lengths_alone() -> None:
    request = _request()
    request.set_progress(0, 2)
    assert (request.prompt_tokens, request.output_tokens, request.sequence_tokens) == (10, 3, 12)


@pytest.mark.parametrize(("prompt", "output", "field"), [(0, 1, "prompt_tokens"), (1, 0, "output_tokens")])
def test_a_request_without_tokens_is_refused(prompt: int, output: int, field: str) -> None:
    with pytest.raises(InputError, match=f"request a: {field}: found 0, expected at least 1"):
        _request(prompt, output)
