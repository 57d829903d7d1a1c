"""The simulator against measured prefill and decode pairs; the measurements are in the repository."""

from __future__ import annotations

import pytest

from aicb.iteration.host import MEDIAN_HOST
from tests.validation.pd_vs_engine import (
    DEFAULT,
    FITTED,
    ISOLATED_TOKENS,
    LARGER_BLOCKS,
    LOADS,
    MEASURED_HOSTS,
    OWN,
    SECOND_PAIR,
    compare,
    stalls_ms,
)

ISOLATED_TTFT = 0.08
ISOLATED_MISSES = {256}
"""9.5 % fast, half of it the prefill, which is 14 % fast."""
SERVING = {"ttft": 0.12, "tpot": 0.06, "e2e": 0.06}
"""Accepted relative errors of means."""


def errors(run: str, pair: str = FITTED, host: str = DEFAULT, **connector: str) -> dict[str, float]:
    return {row.name: row.error for row in compare(run, pair, host, **connector)}


@pytest.mark.parametrize("tokens", ISOLATED_TOKENS)
def test_a_request_alone_has_the_measured_ttft(tokens: int) -> None:
    error = errors(f"iso{tokens}")["ttft"]
    assert (abs(error) <= ISOLATED_TTFT) != (tokens in ISOLATED_MISSES), f"{error:+.1%}"


@pytest.mark.parametrize("load", LOADS)
def test_a_pair_has_the_measured_latencies(load: str) -> None:
    found = errors(load)
    for metric, most in SERVING.items():
        assert abs(found[metric]) <= most, f"{metric}: {found[metric]:+.1%}"


def test_costs_of_the_connector_are_most_of_what_was_missing() -> None:
    """Without them TTFT of 256 tokens is more than 30 % low, and TPOT at 12 requests/s more than 12 %."""
    assert errors("iso256", kind="ideal")["ttft"] < -0.3
    assert errors("serve_12.0", kind="ideal")["tpot"] < -0.12


HAND_OVER = 0.1
HAND_OVER_MISSES = {MEASURED_HOSTS[0]}
"""12 % fast: a descriptor takes 4.0 µs there, 3.7 in the median of reads, and the request carries 16,384 token ids."""


@pytest.mark.parametrize("pair", [FITTED, SECOND_PAIR, *MEASURED_HOSTS])
def test_descriptors_take_the_driver_as_long_whatever_their_size(pair: str) -> None:
    """Of 16 to 32 KiB, between two GPUs of three machines: the hand-over of 16,384 tokens is as measured, though
    launches took hosts of two of them more than twice as long."""
    host = {FITTED: DEFAULT, SECOND_PAIR: MEDIAN_HOST}.get(pair, OWN)
    error = errors(f"iso{ISOLATED_TOKENS[-1]}", pair, host)["hand-over"]
    assert (abs(error) <= HAND_OVER) != (pair in HAND_OVER_MISSES), f"{error:+.1%}"


@pytest.mark.parametrize(("load", "most"), [*zip(LOADS, (0.03, 0.03, 0.06), strict=True)])
def test_steps_stand_still_as_long_as_measured(load: str, most: float) -> None:
    """The share of posting for which they do is from the first two loads; the third is held out."""
    measured_ms, simulated_ms = stalls_ms(load)
    assert simulated_ms == pytest.approx(measured_ms, rel=most)


SECOND_TTFT = 0.11
SECOND_SERVING = {"ttft": 0.15, "tpot": 0.11, "e2e": 0.11}
SECOND_MISSES = {(run, "ttft") for run in ("iso256", "iso1024", *LOADS)}
"""13 to 29 % fast: prompts that the prefill engine's host held up, up to twice as long as on the host that stands for
it; at 12 requests/s the hand-over, too (19 %)."""


@pytest.mark.parametrize("tokens", ISOLATED_TOKENS)
def test_a_second_pair_has_the_measured_ttft_on_the_median_host(tokens: int) -> None:
    """Nothing of it is fitted: another model, of half the KV a token, on a machine whose processors were slower."""
    error = errors(f"iso{tokens}", SECOND_PAIR, MEDIAN_HOST)["ttft"]
    assert (abs(error) <= SECOND_TTFT) != ((f"iso{tokens}", "ttft") in SECOND_MISSES), f"{error:+.1%}"


@pytest.mark.parametrize("load", LOADS)
def test_a_second_pair_serves_as_measured_on_the_median_host(load: str) -> None:
    found = errors(load, SECOND_PAIR, MEDIAN_HOST)
    for metric, most in SECOND_SERVING.items():
        assert (abs(found[metric]) <= most) != ((load, metric) in SECOND_MISSES), f"{metric}: {found[metric]:+.1%}"


OWN_TTFT = 0.15
OWN_SERVING = {"ttft": 0.08, "tpot": 0.05, "e2e": 0.05}


@pytest.mark.parametrize("pair", MEASURED_HOSTS)
@pytest.mark.parametrize("tokens", ISOLATED_TOKENS)
def test_pairs_whose_hosts_are_known_have_the_measured_ttft(pair: str, tokens: int) -> None:
    error = errors(f"iso{tokens}", pair, OWN)["ttft"]
    assert abs(error) <= OWN_TTFT, f"{error:+.1%}"


@pytest.mark.parametrize("pair", MEASURED_HOSTS)
@pytest.mark.parametrize("load", LOADS)
def test_pairs_whose_hosts_are_known_serve_as_measured(pair: str, load: str) -> None:
    found = errors(load, pair, OWN)
    for metric, most in OWN_SERVING.items():
        assert abs(found[metric]) <= most, f"{metric}: {found[metric]:+.1%}"


LARGER_HAND_OVER = {MEDIAN_HOST: 0.12, DEFAULT: 0.26}
"""Of single requests; the host takes part in it, and was not measured."""


@pytest.mark.parametrize("tokens", ISOLATED_TOKENS)
@pytest.mark.parametrize("host", LARGER_HAND_OVER)
def test_blocks_of_64_tokens_are_handed_over_as_was_predicted(host: str, tokens: int) -> None:
    """16,384 tokens in 95 ms, in blocks of 16 tokens 302 and more; short prompts are as fast as the host lets them."""
    found = errors(f"iso{tokens}", LARGER_BLOCKS, host)
    assert abs(found["hand-over"]) <= LARGER_HAND_OVER[host], f"{found['hand-over']:+.1%}"
    if tokens > 1024:
        assert abs(found["ttft"]) <= ISOLATED_TTFT, f"{found['ttft']:+.1%}"


@pytest.mark.parametrize("load", LOADS)
def test_a_pair_with_blocks_of_64_tokens_serves_as_measured(load: str) -> None:
    """TTFT is as far off as the prompts, of one load 5.9 % fast."""
    found = errors(load, LARGER_BLOCKS)
    assert abs(found["tpot"]) <= 0.03
    assert abs(found["e2e"]) <= 0.02
    assert abs(found["hand-over"]) <= 0.08
    assert (-0.19 <= found["ttft"] <= -0.06) != (load == "serve_2.0"), f"{found['ttft']:+.1%}"
    assert -0.19 <= found["ttft"] <= 0.0
