"""The simulator against engines on two H100s, measured after the model was frozen (docs/accuracy.md)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from aicb.iteration.host import load_host
from tests.validation.engine_figures import FOLDER
from tests.validation.partitions_vs_engine import RUNS, SERVERS, compare_decodes, compare_prompts, compare_serving

LIMITS = {"ttft": 0.15, "tpot": 0.06, "e2e": 0.06}
"""Wanted relative errors of means and of P90."""
EXPERTS_APART = "dp2-ep2-qwen3-30b-a3b"
MISSES = {
    **{
        (server, run, latency): ("mean", "P90")
        for server in ("tp2-qwen3-30b-a3b", EXPERTS_APART)
        for run in RUNS
        for latency in LIMITS
    },
    ("tp2-qwen3-8b", "serve_prefix", "ttft"): ("mean", "P90"),
}
"""Beyond their limits: that host was slower than the default, one run stood still for 1.6 s, bursts are unexplained; of
experts apart, nothing is within its limit."""
PROMPT_MISSES = {
    ("tp2-qwen3-30b-a3b", 1024),
    ("tp2-qwen3-30b-a3b", 3000),
    ("tp2-qwen3-8b", 256),
    ("tp2-qwen3-8b", 1024),
    *((EXPERTS_APART, tokens) for tokens in (256, 1024, 3000, 6000, 12000, 16000)),
}
"""Bound by the host, likewise; with experts apart that host took 130 ms for an eager iteration of any length."""


decodes, prompts = cache(compare_decodes), cache(compare_prompts)


@pytest.mark.parametrize("server", SERVERS)
def test_batches_decode_as_measured_unless_ranks_share_experts(server: str) -> None:
    """Experts apart: 7.3 to 15.5 % fast, 1.0 to 2.2 ms of each step. A single request of the other is 9.0 % slow."""
    rows = decodes(server)
    assert len(rows) == 7
    for row in rows:
        is_miss = server == EXPERTS_APART or (server, row.name) == ("tp2-qwen3-30b-a3b", "decode of 1 x 512")
        assert (abs(row.error) <= 0.06) != is_miss, f"{row.name}: {row.error:+.1%}"
    assert (np.mean([abs(row.error) for row in rows]) <= 0.06) != (server == EXPERTS_APART)


@pytest.mark.parametrize("server", SERVERS)
def test_prompts_take_as_long_as_measured_unless_the_host_holds_them_up(server: str) -> None:
    rows = prompts(server)
    assert len(rows) == 6
    for row in rows:
        is_met = abs(row.error) <= 0.06
        assert is_met != ((server, int(row.name.split()[-1])) in PROMPT_MISSES), f"{row.name}: {row.error:+.1%}"


@pytest.mark.xfail(strict=True, reason="7.2 and 6.2 %: prompts that the host holds up; 22.8 %: experts apart")
@pytest.mark.parametrize("server", SERVERS)
def test_prompts_and_decodes_are_as_measured_in_the_mean(server: str) -> None:
    assert np.mean([abs(row.error) for row in (*prompts(server), *decodes(server))]) <= 0.06


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("server", SERVERS)
def test_servers_have_the_measured_latencies(server: str, run: str) -> None:
    rows = compare_serving(server, run)
    assert len(rows) == 6
    for row in rows:
        _, latency, figure = row.name.split()
        is_met = abs(row.error) <= LIMITS[latency]
        assert is_met != (figure in MISSES.get((server, run, latency), ())), f"{row.name}: {row.error:+.1%}"


def test_a_machine_with_h100s_launches_as_the_default_host_does() -> None:
    """Its times are of ``aicb profile host``; those of the default host are of another machine and other ways."""
    measured, default = load_host(str(FOLDER / "xeon-vm-32-h100.yaml")), load_host("xeon-vm-32")
    for time_us in ("eager_launch_us", "piece_launch_us", "request_latency_us"):
        assert getattr(measured, time_us) == pytest.approx(getattr(default, time_us), rel=0.06)
