"""The simulator against a measured prefill and decode pair; the measurement is in the repository."""

from __future__ import annotations

import pytest

from aicb.iteration.host import MEDIAN_HOST
from tests.validation.pd_vs_engine import HELD_OUT_PAIR, ISOLATED_TOKENS, LOADS, Comparison, compare

ISOLATED_TTFT = 0.08
SERVING = {"ttft": 0.12, "tpot": 0.06, "e2e": 0.06}
"""Accepted relative errors of means."""


def errors(run: str) -> dict[str, Comparison]:
    return {row.metric: row for row in compare(run)}


@pytest.mark.parametrize("tokens", ISOLATED_TOKENS)
def test_a_request_alone_has_the_measured_ttft(tokens: int) -> None:
    row = errors(f"iso{tokens}")["ttft"]
    assert abs(row.error) <= ISOLATED_TTFT, f"{row.error:+.1%}"


@pytest.mark.parametrize("load", LOADS)
def test_a_pair_has_the_measured_latencies(load: str) -> None:
    found = errors(load)
    for metric, most in SERVING.items():
        row = found[metric]
        assert abs(row.error) <= most, f"{metric}: {row.error:+.1%}"


def test_costs_of_the_connector_are_most_of_what_was_missing() -> None:
    """Without them, over NVLink, TTFT of 256 tokens is more than 30 % low, and TPOT at 12 requests/s more than 12 %."""
    assert errors_of_bytes_alone("iso256", "ttft") < -0.3
    assert errors_of_bytes_alone("serve_12.0", "tpot") < -0.12


def errors_of_bytes_alone(run: str, metric: str) -> float:
    found = {row.metric: row.error for row in compare(run, kind="ideal", path="direct")}
    return found[metric]


SECOND_TTFT = 0.11
SECOND_SERVING = {"ttft": 0.15, "tpot": 0.11, "e2e": 0.11}
SECOND_MISSES = {(load, "ttft") for load in LOADS}
"""16 to 27 % fast: prompts that the prefill engine's host held up, up to twice as long as on the host that stands for
it."""


@pytest.mark.parametrize("tokens", ISOLATED_TOKENS)
def test_a_second_pair_has_the_measured_ttft_on_the_median_host(tokens: int) -> None:
    """Nothing of it is fitted: another model, of half the KV a token, on a machine whose processors were slower."""
    row = {row.metric: row for row in compare(f"iso{tokens}", HELD_OUT_PAIR, MEDIAN_HOST)}["ttft"]
    assert abs(row.error) <= SECOND_TTFT, f"{row.error:+.1%}"


@pytest.mark.parametrize("load", LOADS)
def test_a_second_pair_serves_as_measured_on_the_median_host(load: str) -> None:
    found = {row.metric: row for row in compare(load, HELD_OUT_PAIR, MEDIAN_HOST)}
    for metric, most in SECOND_SERVING.items():
        is_miss = (load, metric) in SECOND_MISSES
        assert (abs(found[metric].error) <= most) != is_miss, f"{metric}: {found[metric].error:+.1%}"


def test_copies_through_a_slow_host_take_longer() -> None:
    """1.6 GB of KV took 411 ms, and would 213 on the host that costs of copies were measured on."""
    run = f"iso{ISOLATED_TOKENS[-1]}"
    default, median = (
        {row.metric: row for row in compare(run, HELD_OUT_PAIR, host)} for host in ("xeon-vm-32", MEDIAN_HOST)
    )
    assert default["ttft"].error < -0.19
    assert abs(median["ttft"].error) < 0.05
    assert abs(median["prefill"].error) < 0.06
