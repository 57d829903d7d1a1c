"""Directions of docs/policies.md, on cases small enough for every test run."""

from __future__ import annotations

from functools import cache

from tests.benchmarks.compare_policies import Figures, under_arrangement, under_policy


@cache
def policy(name: str) -> Figures:
    return under_policy(name, rate=8.0, requests=80)


def test_prefill_first_stalls_decodes_and_sarathi_does_not() -> None:
    assert policy("vllm_v0").longest_stall_ms > 3 * policy("sarathi").longest_stall_ms


def test_orca_reserves_more_than_it_uses() -> None:
    assert policy("orca").used_share < 0.5 < policy("sarathi").used_share


def test_decodes_apart_from_prefill_are_not_disturbed() -> None:
    apart, together = (under_arrangement(name, 32.0, 150) for name in ("2 prefill, 2 decode", "together"))
    assert apart.longest_stall_ms < together.longest_stall_ms
    assert apart.tpot_p99_ms < together.tpot_p99_ms


def test_machines_that_change_sides_serve_more_of_what_one_side_cannot() -> None:
    """One of four instances prefills: at 64 requests/s it is far too few."""
    fixed, mixed = (under_arrangement(f"1 prefill, 3 decode{suffix}", 64.0, 300) for suffix in ("", ", mixed pool"))
    assert mixed.ttft_p99_s < fixed.ttft_p99_s / 2
    assert mixed.requests_per_s > fixed.requests_per_s
