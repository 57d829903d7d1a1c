"""Who proposes the points of a search: their promises, or a sampler of Optuna."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from boundary.errors import Failure
from vidur_pd.search.screening import Candidate
from vidur_pd.search.space.space import Point, Space

if TYPE_CHECKING:
    import optuna

USELESS_IN_A_ROW: Final = 64
"""Proposals that bring nothing new before the next by promise is taken instead."""


class Proposer(Protocol):
    """Proposes points that have not been proposed yet, and hears what became of them."""

    def ask(self, number: int, is_wanted: Callable[[Candidate], bool]) -> list[Candidate]:
        """At most so many; fewer where no more is wanted."""
        ...

    def tell(self, point: Point, score: float, *, is_final: bool) -> None:
        """The score of a proposed point; not final if it went no further than a cheap fidelity."""
        ...


class ByPromise:
    """Those that promise most first."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._left = list(candidates)

    def ask(self, number: int, is_wanted: Callable[[Candidate], bool]) -> list[Candidate]:
        self._left = [each for each in self._left if is_wanted(each)]
        found, self._left = self._left[:number], self._left[number:]
        return found

    def tell(self, point: Point, score: float, *, is_final: bool) -> None:
        pass


class ByOptuna:
    """A sampler of Optuna over the choices, which begins with the points that promise most."""

    def __init__(self, space: Space, candidates: Sequence[Candidate]) -> None:
        """Raises: Failure, where Optuna is not installed."""
        optuna = _optuna(space.file.sampler)
        self._optuna = optuna
        self._candidates = {each.point: each for each in candidates}
        self._by_promise = ByPromise(candidates)
        self._places = {
            field: optuna.distributions.CategoricalDistribution(range(len(choices)))
            for field, choices in space.dimensions.items()
        }
        self._study = optuna.create_study(sampler=_sampler(optuna, space.file.sampler, space.file.seed))
        self._open: dict[Point, Any] = {}
        self._scores: dict[Point, float | None] = {}
        for first in candidates[: space.file.batch]:
            self._study.enqueue_trial(dict(zip(self._places, first.point, strict=True)))

    def ask(self, number: int, is_wanted: Callable[[Candidate], bool]) -> list[Candidate]:
        found: list[Candidate] = []
        useless = 0
        while len(found) < number and useless < USELESS_IN_A_ROW:
            trial = self._study.ask(self._places)
            point = tuple(trial.params[field] for field in self._places)
            candidate = self._candidates.get(point)
            if candidate is not None and point not in self._scores and point not in self._open and is_wanted(candidate):
                self._open[point] = trial
                found.append(candidate)
                continue
            useless += 1
            self._repeat(trial, point)
        return found + self._others(number - len(found), is_wanted)

    def tell(self, point: Point, score: float, *, is_final: bool) -> None:
        trial = self._open.pop(point, None)
        self._scores[point] = score
        if trial is None:
            distributions, params = self._places, dict(zip(self._places, point, strict=True))
            self._study.add_trial(
                self._optuna.trial.create_trial(params=params, distributions=distributions, value=score)
            )
        elif is_final:
            self._study.tell(trial, score)
        else:
            trial.report(score, step=0)
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)

    def _repeat(self, trial: optuna.Trial, point: Point) -> None:
        """A point that is known, or worth nothing, costs nothing."""
        if (score := self._scores.get(point)) is not None:
            self._study.tell(trial, score)
        else:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def _others(self, number: int, is_wanted: Callable[[Candidate], bool]) -> list[Candidate]:
        """Where the sampler has no more ideas."""
        return self._by_promise.ask(
            number, lambda each: each.point not in self._scores and each.point not in self._open and is_wanted(each)
        )


def proposer_of(space: Space, candidates: Sequence[Candidate]) -> Proposer:
    """Raises: Failure, where a sampler needs a package that is not installed."""
    return ByPromise(candidates) if space.file.sampler == "bound" else ByOptuna(space, candidates)


def _optuna(sampler: str) -> Any:
    try:
        import optuna
    except ImportError:
        raise Failure(
            f"sampler: found {sampler} without the package optuna, expected it (pip install 'vidur-pd[search]'), or "
            "sampler bound"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _sampler(optuna: Any, name: str, seed: int) -> Any:
    match name:
        case "tpe":
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=20)
        case "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, population_size=24)
        case _:
            return optuna.samplers.RandomSampler(seed=seed)
