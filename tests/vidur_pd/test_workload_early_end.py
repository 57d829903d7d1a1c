"""Requests whose users go away before the answer has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundary.errors import InputError
from tests.vidur_pd.workload_cases import load, synthetic
from vidur_pd.workload import Workload, read_trace
from vidur_pd.workload.request import Request, request_of
from vidur_pd.workload.writing import write_trace


def drawn(requests: int = 10_000, **fields: Any) -> Workload:
    return load(synthetic(requests, **({"early_end": {"share": 0.2, "after_tokens": 8}} | fields)))


def test_a_share_of_the_requests_ends_after_so_many_tokens() -> None:
    """Of 10,000 some 2,000 with a standard deviation of 40; the bound is five of them. 50 tokens were asked for."""
    made = drawn()
    assert abs(np.count_nonzero(made.decode_tokens == 8) - 2000) < 200
    assert set(made.decode_tokens.tolist()) == {8, 50}
    assert made.max_output_tokens is not None
    assert set(made.max_output_tokens.tolist()) == {50}


def test_nobody_gets_more_than_was_asked_for() -> None:
    made = drawn(early_end={"share": 1, "after_tokens": {"mean": 60, "cv": 1}})
    assert made.decode_tokens.max() == 50
    assert made.decode_tokens.min() < 20


def test_the_engine_expects_what_was_asked_for() -> None:
    made = drawn(50)
    requests = [request_of(made, row, 0) for row in range(50)]
    assert {each.max_output_tokens for each in requests} == {50}
    assert {each.output_tokens for each in requests} == {8, 50}
    assert Request(0, "a", 10, 7, 0).max_output_tokens == 7


def test_a_cut_answer_is_what_the_next_turn_contains() -> None:
    sessions = {"turns": {"kind": "fixed", "turns": 3}, "system_tokens": 20}
    made = drawn(90, sessions=sessions, arrivals={"kind": "static"})
    assert made.sessions is not None
    second = np.flatnonzero(made.sessions.turn == 2)
    first = made.sessions.previous[second]
    assert made.prefill_tokens[second].tolist() == (120 + made.decode_tokens[first] + 100).tolist()
    assert set(made.decode_tokens[first].tolist()) == {8, 50}


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_traces_keep_what_was_asked_for(tmp_path: Path, name: str) -> None:
    made = drawn(30)
    write_trace(made, tmp_path / name)
    again = read_trace(tmp_path / name).workload
    assert again.max_output_tokens is not None
    assert again.max_output_tokens.tolist() == [50] * 30
    assert again.decode_tokens.tolist() == made.decode_tokens.tolist()


def test_less_than_the_output_cannot_have_been_asked_for(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,prefill_tokens,decode_tokens,max_output_tokens\n0,5,5,4\n")
    with pytest.raises(InputError, match="line 2: max_output_tokens: found '4', expected a whole number from 5"):
        read_trace(tmp_path / "t.csv")
