"""Overload is seen by waiting that grows, on real runs of a small cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.small_runs import config, pool
from vidur_pd.metrics.overload import WaitingTrend, waiting_trend
from vidur_pd.simulation import api

MIXED = [pool("m", "mixed")]
DIVIDED = [pool("p", "prefill"), pool("d", "decode", engine={"max_seqs": 8})]


def trend(
    pools: list[dict[str, Any]], qps: float, *, requests: int = 600, prompt: int = 2000, output: int = 32
) -> WaitingTrend | None:
    workload = {
        "kind": "synthetic",
        "requests": requests,
        "arrivals": {"kind": "poisson", "qps": qps},
        "lengths": {"kind": "fixed", "prefill": prompt, "decode": output},
    }
    return waiting_trend(api.simulate(config(pools, workload=workload)).tally)


@pytest.mark.parametrize("pools", [MIXED, DIVIDED], ids=["mixed", "divided"])
def test_twice_the_capacity_is_overload_and_half_of_it_is_none(pools: list[dict[str, Any]]) -> None:
    """An H200 prefills 2,000 tokens of Qwen3-8B in about 55 ms; eight requests of 32 tokens at a time take about 0.2
    s."""
    light, heavy = trend(pools, 6), trend(pools, 60)
    assert light is not None
    assert heavy is not None
    assert not light.is_overload
    assert light.growth < 0.01
    assert heavy.is_overload
    assert heavy.growth > 0.4


def test_long_outputs_that_fill_the_batch_are_no_overload() -> None:
    """Each runs for some ten seconds, the arrivals last for ten: what runs grows to the end, and nobody waits."""
    found = trend([pool("m", "mixed", engine={"max_seqs": 1024})], 60, prompt=20, output=800)
    assert found is not None
    assert not found.is_overload


def test_there_is_no_trend_of_few_requests_or_of_one_instant() -> None:
    assert trend(MIXED, 6, requests=100) is None
