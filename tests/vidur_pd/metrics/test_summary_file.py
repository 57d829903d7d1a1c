"""``summary.json`` as it is written and read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.metrics.summary import FaultEvent, FaultSummary, Histogram, RecoveredRequests, SloLoss, Summary
from vidur_pd.metrics.summary_file import MOST, read_summary, summary_tree

LEAST: dict[str, Any] = {"requests": 3, "completed": 1, "rejected": 1, "failed": 1}


@pytest.fixture(scope="module")
def summary() -> Summary:
    """One request in three is refused; two pools of which one idles at first."""
    tree = config(
        [pool("p", "prefill"), pool("d", "decode", tp=2)], engine={"estimator": "roofline", "max_model_len": 900}
    )
    return simulate(tree, [(0, 100, 3), (10_000, 2000, 3), (900_000, 100, 30)]).summary


def read(folder: Path, tree: object) -> Summary:
    path = folder / "summary.json"
    path.write_text(json.dumps(tree))
    return read_summary(path)


def refusal(folder: Path, tree: object) -> str:
    with pytest.raises(InputError) as caught:
        read(folder, tree)
    return str(caught.value).removeprefix(f"{folder}/summary.json: ")


def test_what_is_written_is_read_again(tmp_path: Path, summary: Summary) -> None:
    events = (FaultEvent(kind="nic", target="p-0", at_s=0.5), FaultEvent(kind="gpu", target="3", at_s=1.0, until_s=2.0))
    loss = SloLoss(total=1.5, beyond_fault_free=None, worst_attainment=0.25)
    faults = FaultSummary(
        events=events, requests=RecoveredRequests(retried=2), transfers_retried=4, slo_loss_minutes=loss
    )
    for each in (summary, replace(summary, faults=faults, under_load=None, energy=None)):
        assert read(tmp_path, summary_tree(each)) == each


def test_faults_are_left_out_where_nothing_failed_and_other_absent_sections_are_null(summary: Summary) -> None:
    tree = summary_tree(replace(summary, under_load=None, energy=None))
    assert "faults" not in tree
    assert (tree["under_load"], tree["energy"]) == (None, None)


def test_a_summary_needs_no_more_than_its_counts(tmp_path: Path) -> None:
    found = read(tmp_path, LEAST)
    assert found == Summary(**LEAST)
    assert (found.ttft_s.mean, found.under_load, found.pools, found.itl_histogram) == (None, None, (), Histogram())


def test_null_empty_sections_and_numbers_beyond_any_run_count_as_missing(tmp_path: Path) -> None:
    odd = {"slo": None, "energy": {}, "faults": {}, "goodput": 1e300, "seed": 10**30, "attribution_s": {"queue": None}}
    assert read(tmp_path, LEAST | odd) == Summary(**LEAST)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"completed": None}, "completed: found None, expected a count of at least 0"),
        ({"completed": 1.5}, "completed: found 1.5, expected a count of at least 0"),
        ({"failed": -1}, "failed: found -1, expected a count of at least 0"),
        ({"requests": 1e300}, "requests: found 1e+300, expected a count of at least 0"),
        ({"requests": True}, "requests: found True, expected a number"),
        ({"goodput": "fast"}, "goodput: found 'fast', expected a number"),
        ({"ttft_s": {"p50": []}}, "ttft_s.p50: found [], expected a number"),
        ({"slo": [1]}, "slo: found [1], expected an object"),
        ({"pools": {"a": 1}}, "pools: found {'a': 1}, expected a list"),
        ({"pools": [3]}, "pools[0]: found 3, expected an object"),
        ({"pools": [{}]}, "pools[0].instances: found None, expected a count of at least 0"),
        ({"faults": {"events": [{"at_s": "x"}]}}, "faults.events[0].at_s: found 'x', expected a number"),
        ({"energy": {"is_estimate": 1}}, "energy.is_estimate: found 1, expected true or false"),
        (
            {"communication": {"shares": {"priced": "all"}}},
            "communication.shares.priced: found 'all', expected a number",
        ),
        (
            {"itl_histogram": {"edges_s": [0, 1], "counts": [1, 2]}},
            "itl_histogram: found 2 edges_s and 2 counts, expected one more edge than counts",
        ),
        (
            {"itl_histogram": {"edges_s": [0, 10 * MOST], "counts": [1]}},
            "itl_histogram.edges_s: found [0, 1e+19], expected no null in it, and numbers up to 1e+18",
        ),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changed: dict[str, Any], expected: str) -> None:
    assert refusal(tmp_path, LEAST | changed) == expected


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, [1]) == "found [1], expected an object"


def test_texts_may_be_anything(tmp_path: Path) -> None:
    """Names are shown, not understood: a topology of another version is told by its kind."""
    found = read(tmp_path, LEAST | {"model": 3, "hardware": {"kind": "x", "sms": 2}, "network": {"backend": ["a"]}})
    assert (found.model, found.hardware, found.network.backend) == ("3", "x (sms: 2)", "['a']")
