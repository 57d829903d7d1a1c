"""Searches with 5 % of the evaluations against the optimum of all points of a space on 64 H200s, simulated once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vidur_pd.search.kept_outcomes import SPACE, Kept, KeptOutcomes, read_kept
from vidur_pd.search.search import Search, SearchResult
from vidur_pd.search.space.space import read_space
from vidur_pd.search.study import Study


@pytest.fixture(scope="module")
def kept() -> Kept:
    return read_kept()


def searched(kept: Kept, folder: Path, *settings: str) -> SearchResult:
    space = read_space(SPACE, settings)
    with Study(folder / "study.sqlite", space.digest) as study:
        return Search(space, kept.screening(space), study, KeptOutcomes(kept.outcomes)).run()


def optimum(kept: Kept) -> float:
    return min(each.e2e_mean_s for each in kept.outcomes.values() if each.is_met and each.e2e_mean_s is not None)


@pytest.mark.parametrize("sampler", ["bound", "tpe"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_a_twentieth_of_the_evaluations_the_best_is_within_3_percent(
    sampler: str, seed: int, kept: Kept, tmp_path: Path
) -> None:
    if sampler != "bound":
        pytest.importorskip("optuna", reason="needs optuna: pip install 'vidur-pd[search]'")
    assert kept.valid >= 2000
    budget = kept.valid // 20
    found = searched(kept, tmp_path, f"sampler={sampler}", f"seed={seed}", f"evaluations={budget}")
    assert len(found.evaluated) <= budget
    assert found.best is not None
    latency = found.best.last().e2e_mean_s
    assert latency is not None
    assert latency <= 1.03 * optimum(kept)


def test_promises_leave_nothing_better_out(kept: Kept, tmp_path: Path) -> None:
    """Without a budget the search ends by itself, with the optimum, before all points have been run."""
    found = searched(kept, tmp_path)
    assert found.is_exhausted
    assert found.best is not None
    assert found.best.last().e2e_mean_s == optimum(kept)
    assert len(found.evaluated) < len(kept.candidates)


def test_no_point_is_faster_than_its_promise_allows(kept: Kept) -> None:
    space = read_space(SPACE)
    for point, outcome in kept.outcomes.items():
        if outcome.is_met and outcome.e2e_mean_s is not None:
            assert outcome.e2e_mean_s >= kept.candidates[point].could_reach(space.file.objective)
