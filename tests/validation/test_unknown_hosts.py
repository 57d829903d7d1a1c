"""Engines whose host is not known (docs/accuracy/engines.md, "A host that is not known")."""

from __future__ import annotations

import pytest

from tests.validation.unknown_hosts import compare_hosts, mean_over_engines, median_of, recorded_hosts

ENGINES = ("tp2-qwen3-next-l16-later", "tp1-glm-4.5-air-l4", "dp2-ep2-qwen3-30b-a3b-later", "tp2-qwen3-30b-a3b-later")
"""Slow hosts but for the last."""


def test_a_median_leaves_out_what_is_not_there() -> None:
    """Of three launches 60; other times of the two that were recorded as a whole, where they are not zero."""
    launches = {"source": "", "eager_launch_us": 41.7, "prepare_us": 9000.0}
    whole = [{"source": "", "eager_launch_us": us, "prepare_us": 10 * us, "logits_us": 0.0} for us in (60.0, 80.0)]
    assert median_of([launches, *whole]) == {"eager_launch_us": 60.0, "prepare_us": 700.0}


def test_engines_of_their_own_are_among_the_recordings() -> None:
    assert set(ENGINES) < set(recorded_hosts())


def test_the_median_of_other_hosts_is_a_better_guess_than_the_fastest() -> None:
    """TPOT of all eight engines with serving runs: 16.0, 9.6 and 7.1 %; these four are the ends of them."""
    found = [errors for server in ENGINES for errors in compare_hosts(server)]
    tpot = {host: mean_over_engines(found, host, "tpot") for host in ("default", "others", "own")}
    assert tpot == pytest.approx({"default": 0.210, "others": 0.107, "own": 0.074}, abs=0.01)
    by_host = {(errors.server, errors.host): errors.means["ttft"] or 0.0 for errors in found}
    for server in ENGINES[:-1]:
        assert by_host[server, "others"] < 0.6 * by_host[server, "default"], server
    assert by_host[ENGINES[-1], "others"] > by_host[ENGINES[-1], "default"]
