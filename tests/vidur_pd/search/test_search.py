"""The search finds what an exhaustive one does, goes on after a kill, and does not depend on its workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boundary.errors import InputError
from tests.vidur_pd.search.spaces import Arithmetic, screened, space
from vidur_pd.execution.promise.promise import Promise
from vidur_pd.search.evaluation.evaluation import Task
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.search import Search, SearchResult
from vidur_pd.search.space.objective import Objective
from vidur_pd.search.space.space import Point, Space
from vidur_pd.search.study import Study

CHOICES = {"a": [1, 2, 3, 4, 5, 6], "b": [1, 2, 3, 4], "c": [0, 1, 2]}


TOKENS = 20.0


def made_up(**fields: object) -> Space:
    """Its fields are those of no configuration: nobody parses them here."""
    choices = {f"engine.policy_options.{name}": values for name, values in CHOICES.items()}
    return space(choices, **fields)


def gpus(point: Point) -> int:
    return (point[0] + 1) * (point[1] + 1)


def price(point: Point) -> float:
    """Of the second kind of GPU three times that of the first."""
    return gpus(point) * (1.0 + 2.0 * point[2])


def ceiling(point: Point) -> float:
    return 10.0 * gpus(point) / (1 + point[2])


def outcome(seed: int, load: float) -> Callable[[Point, int], Outcome]:
    """A point keeps 50 to 100 % of its promise; it meets the SLO if that carries the load. Cheap runs say 5 % more."""
    kept = {point: random.Random(f"{seed}{point}").uniform(0.5, 1.0) for point in made_up().points()}

    def found(point: Point, fidelity: int) -> Outcome:
        rate = ceiling(point) * kept[point] * (1.05 if fidelity == 0 else 1.0)
        margin = rate / load - 1
        return Outcome(
            is_met=margin >= 0,
            margin=margin,
            gpus=gpus(point),
            cost_per_hour=price(point),
            rate_per_s=rate,
            output_tokens_mean=TOKENS,
            e2e_mean_s=100 / rate,
        )

    return found


def promise(point: Point) -> Promise:
    return Promise(ceiling(point), 0.1, 0.01, 100 / ceiling(point))


def searched(found: Space, folder: Path, seed: int = 0, load: float = 60.0) -> tuple[SearchResult, Arithmetic]:
    workers = Arithmetic(outcome(seed, load))
    screening = screened(found, gpus, promise, price, TOKENS)
    with Study(folder / "study.sqlite", found.digest) as study:
        return Search(found, screening, study, workers).run(), workers


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 10_000),
    st.sampled_from(Objective),
    st.floats(5, 120),
)
def test_by_promise_the_best_of_all_points_is_found_without_running_most(
    tmp_path_factory: pytest.TempPathFactory, seed: int, objective: Objective, load: float
) -> None:
    """Oracle: every point at full fidelity. Promises are upper bounds, so that nothing better is left out."""
    found = made_up(objective=str(objective), fidelities=[{"requests": 10}, {}], prices={"h200": 1.0})
    result, workers = searched(found, tmp_path_factory.mktemp("study"), seed, load)
    of = outcome(seed, load)
    everything = [of(point, 1) for point in found.points()]
    values = [value for each in everything if (value := objective.value_of(each)) is not None]
    assert (result.best is None) == (not values)
    assert result.is_exhausted
    if result.best is not None:
        sign = -1 if objective is Objective.MAX_THROUGHPUT_PER_GPU else 1
        best = objective.value_of(result.best.last())
        assert best is not None
        assert sign * best == pytest.approx(min(sign * value for value in values))
    assert len(workers.ran) == len(set(workers.ran))


class Killed(Exception):
    """Stands for the death of the process."""


class Dying(Arithmetic):
    """Workers that die after so many tasks."""

    def __init__(self, tasks: int) -> None:
        super().__init__(outcome(0, 60.0))
        self._left = tasks

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for each in tasks:
            if not self._left:
                raise Killed
            self._left -= 1
            yield from super().outcomes([each])


def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Killed after 3 evaluations, and again after 4 more: together they run what one search does, each once."""
    pytest.importorskip("optuna", reason="needs optuna: pip install 'vidur-pd[search]'")
    found = made_up(sampler="tpe", evaluations=30, objective="min_latency", fidelities=[{"requests": 10}, {}])
    (tmp_path / "whole").mkdir()
    whole, undisturbed = searched(found, tmp_path / "whole")
    screening = screened(found, gpus, promise, price, TOKENS)
    ran: list[tuple[Point, int]] = []
    for tasks in (3, 4):
        workers = Dying(tasks)
        with Study(tmp_path / "study.sqlite", found.digest) as study, pytest.raises(Killed):
            Search(found, screening, study, workers).run()
        ran += workers.ran
    assert len(ran) == 7
    last, workers_of_last = searched(found, tmp_path)
    assert sorted(ran + workers_of_last.ran) == sorted(undisturbed.ran)
    assert [each.candidate.point for each in last.evaluated] == [each.candidate.point for each in whole.evaluated]
    assert last.ranking == whole.ranking


@pytest.mark.parametrize("sampler", ["bound", "tpe", "random", "nsga2"])
def test_samplers_stay_within_their_evaluations_and_repeat_themselves(sampler: str, tmp_path: Path) -> None:
    if sampler != "bound":
        pytest.importorskip("optuna", reason="needs optuna: pip install 'vidur-pd[search]'")
    found = made_up(sampler=sampler, evaluations=20, objective="max_throughput_per_gpu", fidelities=[{}], seed=3)
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    (first, _), (second, _) = (searched(found, folder) for folder in folders)
    points = [each.candidate.point for each in first.evaluated]
    assert points == [each.candidate.point for each in second.evaluated]
    assert len(set(points)) == len(points) <= 20


def test_a_cheap_run_that_misses_by_more_than_the_slack_is_given_up_until_the_end(tmp_path: Path) -> None:
    found = made_up(objective="min_gpus", fidelities=[{"requests": 10}, {}], slack=0.25)
    _, workers = searched(found, tmp_path)
    cheap = outcome(0, 60.0)
    last_cheap = max(place for place, (_, fidelity) in enumerate(workers.ran) if fidelity == 0)
    for point, fidelity in workers.ran[:last_cheap]:
        assert fidelity == 0 or cheap(point, 0).margin >= -0.25
    given_up = [point for point, _ in workers.ran[last_cheap:] if cheap(point, 0).margin < -0.25]
    assert 0 < len(given_up) <= 2 * found.file.batch


def test_a_cheap_run_that_misleads_is_put_right(tmp_path: Path) -> None:
    """All points but the largest miss the beginning of the workload; three GPUs are enough for all of it."""

    def misleading(point: Point, fidelity: int) -> Outcome:
        margin = gpus(point) / (24 if fidelity == 0 else 3) - 1
        return Outcome(is_met=margin >= 0, margin=margin, gpus=gpus(point))

    found = made_up(objective="min_gpus", fidelities=[{"requests": 10}, {}])
    screening = screened(found, gpus, promise, price, TOKENS)
    with Study(tmp_path / "study.sqlite", found.digest) as study:
        result = Search(found, screening, study, Arithmetic(misleading)).run()
    assert result.best is not None
    assert result.best.last().gpus == 3


def test_what_is_chosen_besides_pools_is_named() -> None:
    """Instances and partitions are named with the GPUs; batch limits, policies and other fields of pools are not."""
    choices = {
        "cluster.pools.server": [{"tp": 1, "engine": {"max_seqs": 64}}, {"tp": 1, "engine": {"max_seqs": 128}}],
        "cluster.pools.server.instances": [1, 2],
        "engine.max_batched_tokens": [4096, 8192],
        "routing.policy": ["round_robin"],
    }
    found = space(choices)
    assert found.besides((1, 0, 1, 0)) == "server engine max_seqs 128, engine.max_batched_tokens 8192"
    assert space({"cluster.pools.server": [{"tp": 1}, {"tp": 2}]}).besides((1,)) == ""
    assert space({"cluster.pools.server.role": ["mixed", "prefill"]}).besides((0,)) == "server.role mixed"


def test_a_study_of_another_space_and_what_is_no_study_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    with Study(path, "abc") as study:
        study.add((1, 2), 0, Outcome(is_met=True, margin=0.5, gpus=8))
    with Study(path, "abc") as study:
        assert study.get((1, 2), 0) == Outcome(is_met=True, margin=0.5, gpus=8)
        assert study.get((1, 2), 1) is None
        assert [point for point, _, _ in study.all()] == [(1, 2)]
    with pytest.raises(InputError, match=r"found a study of another space or workload \(abc\), expected that of this"):
        Study(path, "xyz")
    path.write_text("not a database, but long enough to be looked at by whoever opens it")
    with pytest.raises(InputError, match="found no study, expected one of 'vidur-pd search'"):
        Study(path, "abc")
