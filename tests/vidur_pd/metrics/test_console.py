"""What the command line prints of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.integration.small_runs import config, pool, simulate
from vidur_pd.metrics.console import not_served, print_result
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary import TierSummary

ENGINE = {"estimator": "roofline", "max_model_len": 1000}


def served(*rows: tuple[int, int, int]) -> Result:
    tree: dict[str, Any] = config([pool("p", "prefill"), pool("d", "decode")], engine=ENGINE)
    return simulate(tree, list(rows))


def test_requests_that_were_refused_are_said_with_reason_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    summary = served((0, 100, 3), (10_000, 2000, 3), (20_000, 3000, 3), (900_000, 100, 3)).summary
    assert (summary.completed, summary.rejected) == (2, 2)
    (outcome,) = summary.not_served
    assert outcome.requests == 2
    print_result(summary)
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 of 4 requests were not served (2 rejected, 0 failed)" in printed
    assert "goodput counts them as missed" in printed
    assert "2001 to 3001" in outcome.reason
    assert f"2 rejected: {outcome.reason}" in printed
    assert "of 2 completed" in printed
    assert "50.0 % of all requests meet the objectives" in printed
    assert "under load" in printed


def test_nothing_is_said_where_all_completed(capsys: pytest.CaptureFixture[str]) -> None:
    summary = served((0, 100, 3)).summary
    assert list(not_served(summary)) == []
    assert summary.not_served == ()
    print_result(summary)
    printed = capsys.readouterr().out
    assert "not served" not in printed
    assert "completed" not in printed.split("TTFT")[0].split("requests in")[1]


def test_the_time_of_a_run_names_its_first_arrival_where_the_clock_began_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From 10 s on; the moments of the screen, and of ``requests.csv``, count from 0."""
    summary = served((10 * 10**6, 100, 3), (12 * 10**6, 100, 3)).summary
    assert summary.first_arrival_s == 10.0
    assert summary.under_load is not None
    print_result(summary)
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 requests in 2.0 simulated seconds" in printed
    assert "to the last arrival at 12.0 s, the first at 10.0 s)" in printed


def test_no_arrival_is_named_where_the_clock_begins_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(served((0, 100, 3), (2 * 10**6, 100, 3)).summary)
    assert "to the last arrival at 2.0 s):" in " ".join(capsys.readouterr().out.split())


def test_more_requests_may_complete_under_load_than_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten came at once and complete in the last of two seconds, the window, in which one arrives."""
    summary = served(*[(0, 600, 300)] * 10, (2 * 10**6, 100, 3)).summary
    assert summary.under_load is not None
    assert summary.under_load.from_s == 1.0
    print_result(summary)
    printed = " ".join(capsys.readouterr().out.split())
    assert "1.00 requests/s arrived, 10.00 completed (some came before); " in printed


def test_a_tier_that_is_read_ahead_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A disk from which nothing goes to GPUs directly, but chunks to CPU memory."""
    memory = TierSummary(
        kind="cpu", loads=2, loaded_tokens=1280, loaded_bytes=2 * 10**9, load_s=0.5, recompute_s=4.0, held_bytes=10**9
    )
    disk = TierSummary(kind="nvme", prefetched_chunks=12664, stored_bytes=3 * 10**9, held_bytes=3 * 10**9)
    print_result(replace(served((0, 100, 3)).summary, tiers=(memory, disk)))
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "tier cpu: 1,280 tokens (2 GB) loaded; loading took 0.5 s, recomputing these tokens would have taken 4 s; "
        "0 GB stored, 1 GB held"
    ) in printed
    assert "tier nvme: 0 tokens (0 GB) loaded; 12,664 chunks prefetched into CPU memory; 3 GB stored" in printed


@pytest.mark.parametrize(("share", "shown"), [(0.0042, "0.4 %"), (0.57, "57 %")])
def test_a_small_share_of_cached_input_has_a_digit_after_the_point(
    capsys: pytest.CaptureFixture[str], share: float, shown: str
) -> None:
    print_result(replace(served((0, 100, 3)).summary, cached_input_share=share))
    assert f"; {shown} of the input was cached" in " ".join(capsys.readouterr().out.split())
