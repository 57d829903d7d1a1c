"""Clients that wait for an answer before they send again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.integration.small_runs import config, pool
from tests.vidur_pd.workload_cases import load, synthetic
from vidur_pd.metrics.requests import RequestRecord
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import api
from vidur_pd.simulation.output import stream_result, write_result
from vidur_pd.workload.request import RequestStatus

MIXED = [pool("m", "mixed", instances=2)]
PAIR = [pool("p", "prefill"), pool("d", "decode")]
LENGTHS = {
    "kind": "lognormal",
    "prefill": {"median": 200, "p90": 900, "max": 4000},
    "decode": {"mean": 20, "cv": 1, "max": 90},
}
PS = 10**12


def closed(clients: int, requests: int = 60, **arrivals: Any) -> dict[str, Any]:
    return synthetic(requests, lengths=LENGTHS, arrivals={"kind": "closed", "clients": clients, **arrivals})


def run(workload: dict[str, Any], pools: list[dict[str, Any]] = MIXED, **sections: Any) -> Result:
    return api.simulate(config(pools, workload=workload, **sections))


def rows(result: Result) -> list[RequestRecord]:
    return result.table.records()


def ended_ps(request: RequestRecord) -> int:
    assert request.completed_ps is not None
    return request.completed_ps


def most_open(requests: list[RequestRecord]) -> int:
    """Most requests that are open at a time; of changes at one instant the ends come first."""
    changes = [(ended_ps(each), -1) for each in requests] + [(each.arrived_ps, 1) for each in requests]
    found = [0]
    for _, change in sorted(changes):
        found.append(found[-1] + change)
    return max(found)


@pytest.mark.parametrize("pools", [MIXED, PAIR], ids=["mixed", "disaggregated"])
def test_one_client_sends_a_think_time_after_each_answer(pools: list[dict[str, Any]]) -> None:
    served = rows(run(closed(1, 12, think_time={"kind": "constant", "s": 0.25}), pools))
    assert served[0].arrived_ps == 0
    assert [each.arrived_ps for each in served[1:]] == [ended_ps(each) + PS // 4 for each in served[:-1]]


@pytest.mark.parametrize("pools", [MIXED, PAIR], ids=["mixed", "disaggregated"])
def test_without_think_time_exactly_as_many_requests_are_open_as_there_are_clients(pools: list[dict[str, Any]]) -> None:
    served = rows(run(closed(7), pools))
    assert len(served) == 60
    assert most_open(served) == 7
    assert sum(each.arrived_ps == 0 for each in served) == 7
    assert sorted(each.arrived_ps for each in served[7:]) == sorted(ended_ps(each) for each in served)[:53]


def test_think_times_lie_between_an_end_and_what_is_sent_next() -> None:
    think_time = {"kind": "exponential", "mean_s": 0.5}
    workload = closed(5, think_time=think_time)
    thinks = load(workload).pacing
    assert thinks is not None
    served = rows(run(workload))
    assert most_open(served) <= 5
    sent_ps = {int(each.arrived_ps - thinks.think_ps[each.index]) for each in served if each.index >= 5}
    assert sent_ps == set(sorted(ended_ps(each) for each in served)[:55])


def test_more_clients_than_requests_send_one_each() -> None:
    assert {each.arrived_ps for each in rows(run(closed(100, 9)))} == {0}


def test_nothing_is_sent_after_the_duration_and_what_was_sent_is_served() -> None:
    result = run(closed(4, 5000, duration_s=1.5))
    served = rows(result)
    assert 20 < len(served) < 5000
    assert max(each.arrived_ps for each in served) < 1.5 * PS
    assert max(map(ended_ps, served)) > 1.5 * PS
    summary = result.summary
    assert (summary.requests, summary.completed) == (len(served), len(served))
    assert summary.goodput_share is not None
    assert summary.makespan_s == max(map(ended_ps, served)) / PS


def test_a_client_goes_on_after_a_refusal() -> None:
    """Every prompt of 50,000 tokens is refused when it reaches the scheduler, 2 ms after it was sent."""
    lengths = {"kind": "fixed", "prefill": 50_000, "decode": 5}
    workload = closed(2, 10, think_time={"kind": "constant", "s": 1}) | {"lengths": lengths}
    served = rows(run(workload, engine={"request_latency_ms": 2}))
    assert {each.status for each in served} == {RequestStatus.REJECTED}
    assert [each.arrived_ps for each in served] == [1002 * PS // 1000 * (number // 2) for number in range(10)]


def test_clients_go_on_when_the_only_instance_has_failed_for_good() -> None:
    fault = {"kind": "instance", "instance": "m-0", "at_s": 0.5}
    served = rows(run(closed(3), [pool("m", "mixed")], faults=[fault]))
    assert len(served) == 60
    assert {each.status for each in served} == {RequestStatus.COMPLETED, RequestStatus.FAILED}


def test_rows_are_in_order_of_arrival_and_a_stream_writes_the_same(tmp_path: Path) -> None:
    tree = config(MIXED, workload=closed(5, 80, think_time={"kind": "lognormal", "mean_s": 0.2, "cv": 1.5}))
    write_result(api.simulate(tree), tmp_path / "whole")
    stream_result(api.prepare(tree), tmp_path / "streamed")
    whole = pd.read_csv(tmp_path / "whole" / "requests.csv")
    assert whole["arrived_at_s"].is_monotonic_increasing
    streamed = pd.read_parquet(tmp_path / "streamed" / "requests.parquet")
    streamed = streamed.sort_values(["arrived_at_ps", "request_id"])
    assert (streamed["arrived_at_s"].to_numpy() == whole.sort_values(["arrived_at_s"])["arrived_at_s"].to_numpy()).all()
    assert sorted(streamed["completed_at_s"]) == sorted(whole["completed_at_s"])


def test_open_and_closed_parts_are_served_together() -> None:
    parts = {"batch": closed(3, 40), "chat": synthetic(30, lengths=LENGTHS, arrivals={"kind": "poisson", "qps": 20})}
    result = run({"kind": "mix", "parts": parts})
    served = rows(result)
    batch = [each for each in served if each.request_id.startswith("batch")]
    chat = [each for each in served if each.request_id.startswith("chat")]
    assert (len(batch), len(chat)) == (40, 30)
    assert most_open(batch) == 3
    drawn = load({"kind": "mix", "parts": parts})
    of_chat = [row for row, name in enumerate(drawn.request_ids) if name.startswith("chat")]
    assert [each.arrived_ps for each in chat] == drawn.arrived_ps[of_chat].tolist()


def test_a_turn_waits_for_the_answer_before_and_hits_its_prompt(tmp_path: Path) -> None:
    sessions = {
        "turns": {"kind": "fixed", "turns": 4},
        "think_time": {"kind": "exponential", "mean_s": 0.3},
        "system_tokens": 100,
    }
    workload = closed(3, 24) | {"sessions": sessions}
    drawn = load(workload)
    assert drawn.pacing is not None
    result = run(workload, engine={"prefix_caching": True})
    by_row = {each.index: each for each in rows(result)}
    for row, before in enumerate(drawn.pacing.follows.tolist()):
        if before >= 0:
            think_ps = int(drawn.pacing.think_ps[row])
            assert by_row[row].arrived_ps == ended_ps(by_row[before]) + think_ps
    hit = {each.request_id: each.cached_tokens for each in by_row.values()}
    assert all(tokens > 0 for name, tokens in hit.items() if not name.endswith(".1"))
    write_result(result, tmp_path / "out")
    table = pd.read_csv(tmp_path / "out" / "requests.csv", dtype={"request_id": str})
    named = [f"{session}.{turn}" for session, turn in zip(table["session"], table["turn"], strict=True)]
    assert named == table["request_id"].tolist()
    assert list(table.columns[-2:]) == ["session", "turn"]


def test_packets_carry_the_transfers_of_a_closed_loop() -> None:
    network = {"backend": "packet", "coupling": "isolated"}
    assert most_open(rows(run(closed(2, 6), PAIR, network=network))) == 2


SCRIPT = """
from tests.integration.test_closed_loop import closed, run, rows
for each in rows(run(closed(6, think_time={"kind": "exponential", "mean_s": 0.1}))):
    print(each.request_id, each.arrived_ps, each.completed_ps)
"""


def test_results_do_not_depend_on_the_hash_seed() -> None:
    texts = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).resolve().parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert texts.pop().count("\n") == 60
