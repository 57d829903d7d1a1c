"""Requests and tokens on their way through a frontend, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from tests.integration.small_runs import config, pool, simulate
from vidur_pd.metrics.attribution import PARTS, attribute
from vidur_pd.metrics.console import _warnings
from vidur_pd.metrics.request_figures import request_columns_of
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import api

COSTS = {
    "prepare_us": 1000,
    "prepare_token_us": 2,
    "request_us": 500,
    "delay_us": 300,
    "message_us": 100,
    "process_token_us": 20,
    "send_token_us": 50,
}
MIXED = [pool("m", "mixed")]
PAIR = [pool("p", "prefill"), pool("d", "decode")]
US = 10**6


def served(rows: list[tuple[int, int, int]], pools: list[dict[str, Any]] = MIXED, **frontend: Any) -> Result:
    return simulate(config(pools, frontend={"kind": "vllm", **COSTS, **frontend}), rows)


def bare(rows: list[tuple[int, int, int]], pools: list[dict[str, Any]] = MIXED) -> Result:
    return simulate(config(pools, engine={"request_latency_ms": 0}), rows)


def test_one_request_takes_its_work_in_and_each_of_its_tokens_back() -> None:
    """In: 1,000 + 200 · 2 + 500 + 300 = 2,200 µs. Back: 100 + 20 + 50 = 170 µs, for the first token and the last."""
    found, alone = served([(0, 200, 10)]).table, bare([(0, 200, 10)]).table
    assert found.entered_ps == found.scheduled_ps == 2200 * US
    assert found.first_token_ps == alone.first_token_ps + (2200 + 170) * US
    assert found.completed_ps == found.last_token_ps == alone.completed_ps + (2200 + 170) * US
    assert found.sampled_ps == found.completed_ps - 170 * US


def test_two_requests_queue_for_one_server_and_not_for_two() -> None:
    """Prepared after 1,400 and 2,800 µs, with two servers both after 1,400; then 500 + 300 µs."""
    rows = [(0, 200, 3), (0, 200, 3)]
    assert served(rows).table.entered_ps.tolist() == [2200 * US, 3600 * US]
    assert served(rows, servers=2).table.entered_ps.tolist() == [2200 * US, 2200 * US]


def test_every_instance_of_mixed_pools_has_a_server() -> None:
    """Requests may enter both instances: two servers, each free when its request comes."""
    routing = {"policy": "splitwise", "splitwise": {"scheduler": "mixed_pool"}}
    found = simulate(config(PAIR, routing=routing, frontend={"kind": "vllm", **COSTS}), [(0, 200, 3), (0, 200, 3)])
    assert found.table.entered_ps.tolist() == [2200 * US, 2200 * US]


def test_the_loop_of_a_server_takes_one_job_after_another() -> None:
    """Both prepared without time; the loop needs 500 µs for each."""
    rows = [(0, 200, 3), (0, 200, 3)]
    found = served(rows, prepare_us=0, prepare_token_us=0, delay_us=0).table.entered_ps
    assert found.tolist() == [500 * US, 1000 * US]


def test_tokens_of_one_iteration_are_sent_one_after_another() -> None:
    """Both in one batch: 100 + 2 · 20 + 50 µs for the token of the first request, 50 µs more for that of the second."""
    rows = [(0, 200, 4), (0, 200, 4)]
    free: dict[str, Any] = {"prepare_us": 0, "prepare_token_us": 0, "request_us": 0, "delay_us": 0}
    table = served(rows, **free).table
    assert (table.completed_ps - table.sampled_ps).tolist() == [140 * US + 50 * US, 140 * US + 100 * US]
    assert np.diff(table.first_token_ps).tolist() == [50 * US]


def test_a_server_slower_than_the_engine_holds_tokens_up() -> None:
    """The loop takes 50 ms for each token, the engine less: ten tokens reach their client 50 ms apart."""
    result = served([(0, 200, 10)], message_us=50_000, process_token_us=0, send_token_us=0)
    assert result.table.last_token_ps - result.table.first_token_ps == 9 * 50_000 * US
    assert result.summary.itl_s.p50 == pytest.approx(0.05)


ROWS = [(700 * number, 100 + 37 * number, 5 + number % 7) for number in range(40)]


@pytest.mark.parametrize("pools", [MIXED, PAIR], ids=["mixed", "disaggregated"])
@pytest.mark.parametrize("servers", [1, 3])
def test_parts_add_up_and_runs_are_as_single_iterations(pools: list[dict[str, Any]], servers: int) -> None:
    frontend = {"kind": "vllm", **COSTS, "servers": servers}
    runs, steps = (
        simulate(config(pools, frontend=frontend, engine={"fast_forward": fast}), ROWS) for fast in (True, False)
    )
    parts = attribute(runs.table)
    assert (parts.sum(axis=1) == runs.table.e2e_ps).all()
    assert (parts[:, PARTS.index("frontend")] >= (1000 + 500 + 300 + 170) * US).all()
    assert (parts >= 0).all()
    assert sum(runs.summary.attribution_s.values()) == pytest.approx(runs.summary.e2e_s.mean, rel=1e-12)
    for figure in ("entered_ps", "first_token_ps", "last_token_ps", "sampled_ps", "completed_ps"):
        np.testing.assert_array_equal(getattr(runs.table, figure), getattr(steps.table, figure))
    assert runs.summary.itl_s == steps.summary.itl_s


def test_without_a_frontend_nothing_tells_of_one() -> None:
    result = bare([(0, 200, 10)])
    assert "frontend" not in result.summary.attribution_s
    assert not {"entered_at_s", "sampled_at_s"} & {column.name for column in request_columns_of(result.table)}


def test_measured_times_are_in_the_resolved_configuration() -> None:
    frontend = config(MIXED, frontend={"kind": "vllm", "send_token_us": 7}).model_dump()["frontend"]
    assert frontend["send_token_us"] == 7
    assert frontend["prepare_token_us"] == 2.3


@pytest.mark.parametrize(
    ("frontend", "engine", "expected"),
    [
        ({"kind": "nginx"}, {}, "frontend"),
        ({"kind": "none", "servers": 2}, {}, "frontend.none.servers"),
        ({"kind": "vllm", "servers": 0}, {}, "frontend.vllm.servers"),
        ({"kind": "vllm", "request_us": -1}, {}, "frontend.vllm.request_us"),
        ({"kind": "vllm"}, {"request_latency_ms": 1}, "engine.request_latency_ms"),
    ],
)
def test_what_makes_no_frontend_is_refused(frontend: dict[str, Any], engine: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        config(MIXED, frontend=frontend, engine=engine)


def quick(**more: Any) -> Result:
    """256 requests at a time of a small dense model: 23,000 output tokens/s."""
    workload = {
        "kind": "synthetic",
        "requests": 1000,
        "arrivals": {"kind": "closed", "clients": 256},
        "lengths": {"kind": "fixed", "prefill": 32, "decode": 100},
    }
    return api.simulate(config(MIXED, **{"workload": workload, "engine": {"framework": "vllm"}, **more}))


def test_vllm_engines_that_outrun_their_api_servers_are_told() -> None:
    """One loop passes 1 s over 46 + 14 us."""
    needed = quick().summary.api_server
    assert needed is not None
    assert needed.most_tokens_per_s == pytest.approx(1e6 / 60)
    assert needed.tokens_per_s > 20000
    assert any("API servers" in line and "frontend: {kind: vllm}" in line for line in _warnings(quick().summary))


def test_nothing_is_told_of_servers_that_follow_are_simulated_or_are_not_vllm_s() -> None:
    slow = {"kind": "synthetic", "requests": 50, "arrivals": {"kind": "poisson", "qps": 5.0}}
    lengths = {"lengths": {"kind": "fixed", "prefill": 32, "decode": 100}}
    for more in ({"workload": slow | lengths}, {"frontend": {"kind": "vllm"}}, {"engine": {"framework": "sglang"}}):
        assert quick(**more).summary.api_server is None
