"""The search: points are proposed in batches, run from cheap to dear, and whoever cannot win any more is left out.

What is proposed follows from the space, the seed and the outcomes, whatever the number of workers and the order in
which they finish, so that a search that goes on after a kill is the one that was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vidur_pd.search.evaluation.evaluation import Task
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.proposals import proposer_of
from vidur_pd.search.screening import Candidate, Screening
from vidur_pd.search.space.objective import Objective
from vidur_pd.search.space.space import Point, Space
from vidur_pd.search.study import Study
from vidur_pd.search.workers import Workers

BEGIN_BELOW_CEILING: Final = 0.7
"""Share of the promised ceiling at which the search for a capacity begins."""

Progress = Callable[[int, Outcome | None], None]
"""Called with the number of points that have been run, and the best outcome so far."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A point with its outcomes, from cheap to dear; the last one is at full fidelity unless it went no further."""

    candidate: Candidate
    outcomes: tuple[Outcome, ...]

    def last(self) -> Outcome:
        return self.outcomes[-1]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search has found."""

    space: Space
    screening: Screening
    evaluated: tuple[Evaluated, ...]
    """In the order in which they were proposed."""
    ranking: tuple[Evaluated, ...]
    """Points that met the SLO at full fidelity, the best first."""
    is_exhausted: bool
    """Nobody who was not run could be better than the best, by the promises."""
    not_run: int
    """Candidates that were not run."""
    simulations: Mapping[int, int]
    """By fidelity, those that it took, also earlier ones that the study had."""
    cpu_s: float

    @property
    def best(self) -> Evaluated | None:
        return self.ranking[0] if self.ranking else None


class Search:
    """A search under way."""

    def __init__(self, space: Space, screening: Screening, study: Study, workers: Workers) -> None:
        self._space, self._screening, self._study, self._workers = space, screening, study, workers
        self._objective: Objective = space.file.objective
        self._evaluated: dict[Point, Evaluated] = {}
        self._best: Evaluated | None = None

    def run(self, progress: Progress | None = None) -> SearchResult:
        """Proposes and runs until the budget is spent, or nobody is left who could be better."""
        file = self._space.file
        proposer = proposer_of(self._space, self._screening.candidates)
        budget = len(self._screening.candidates) if file.evaluations is None else file.evaluations
        is_exhausted = False
        while len(self._evaluated) < budget:
            batch = proposer.ask(min(file.batch, budget - len(self._evaluated)), self._could_win)
            if not batch:
                is_exhausted = True
                break
            for evaluated in self._run(batch):
                score = self._objective.score(evaluated.last())
                proposer.tell(evaluated.candidate.point, score, is_final=self._is_full(evaluated))
                self._keep(evaluated)
            self._report(progress)
        self._give_second_chances(progress)
        return self._result(is_exhausted or not any(map(self._could_win, self._left())))

    def _give_second_chances(self, progress: Progress | None) -> None:
        """Points that cheap runs have given up are run in full, the nearest misses first, as long as some are better.

        The beginning of a workload may be harder than the rest: caches are cold, and bursts come when they come.
        """
        while True:
            given_up = [
                each
                for each in self._evaluated.values()
                if not self._is_full(each) and not each.last().failure and self._could_win(each.candidate)
            ]
            nearest = sorted(given_up, key=lambda each: (self._objective.score(each.last()), each.candidate.point))
            batch = [each.candidate for each in nearest[: self._space.file.batch]]
            before = self._best
            for evaluated in self._run(batch, gives_up=False):
                self._keep(evaluated)
            if self._best is before:
                return
            self._report(progress)

    def _keep(self, evaluated: Evaluated) -> None:
        self._evaluated[evaluated.candidate.point] = evaluated
        if self._is_full(evaluated) and evaluated.last().is_met and self._is_better(evaluated):
            self._best = evaluated

    def _is_full(self, evaluated: Evaluated) -> bool:
        return len(evaluated.outcomes) == len(self._space.file.fidelities)

    def _report(self, progress: Progress | None) -> None:
        if progress is not None:
            progress(len(self._evaluated), None if self._best is None else self._best.last())

    def _run(self, batch: Sequence[Candidate], *, gives_up: bool = True) -> list[Evaluated]:
        """Takes a batch through the fidelities."""
        outcomes: dict[Point, list[Outcome]] = {each.point: [] for each in batch}
        alive = list(batch)
        for fidelity in range(len(self._space.file.fidelities)):
            found = self._outcomes(alive, fidelity)
            for each in alive:
                outcomes[each.point].append(found[each.point])
            if gives_up:
                alive = [each for each in alive if self._goes_on(found[each.point])]
        return [Evaluated(each, tuple(outcomes[each.point])) for each in batch]

    def _outcomes(self, candidates: Sequence[Candidate], fidelity: int) -> dict[Point, Outcome]:
        """From the study, or by running."""
        known = {each.point: self._study.get(each.point, fidelity) for each in candidates}
        tasks = [
            Task(each.point, fidelity, BEGIN_BELOW_CEILING * each.promise.ceiling_per_s)
            for each in candidates
            if known[each.point] is None
        ]
        for task, outcome in self._workers.outcomes(tasks):
            self._study.add(task.point, fidelity, outcome)
            known[task.point] = outcome
        return {point: outcome for point, outcome in known.items() if outcome is not None}

    def _goes_on(self, outcome: Outcome) -> bool:
        """Whether a point is worth the next fidelity."""
        slack = self._space.file.slack
        if outcome.failure or not (outcome.is_met or outcome.margin >= -slack):
            return False
        best = None if self._best is None else self._objective.value_of(self._best.last())
        value = self._objective.value_of(outcome)
        if best is None or value is None:
            return True
        if self._objective is Objective.MAX_THROUGHPUT_PER_GPU:
            return value * (1 + slack) >= best
        return value <= best * (1 + slack)

    def _could_win(self, candidate: Candidate) -> bool:
        """Whether a candidate that was not run may still be better than the best."""
        if self._best is None:
            return True
        value = self._objective.value_of(self._best.last())
        reach = candidate.could_reach(self._objective)
        assert value is not None
        return reach > value if self._objective is Objective.MAX_THROUGHPUT_PER_GPU else reach < value

    def _is_better(self, evaluated: Evaluated) -> bool:
        if self._best is None:
            return True
        return self._objective.score(evaluated.last()) < self._objective.score(self._best.last())

    def _left(self) -> list[Candidate]:
        return [each for each in self._screening.candidates if each.point not in self._evaluated]

    def _result(self, is_exhausted: bool) -> SearchResult:
        evaluated = tuple(self._evaluated.values())
        met = [each for each in evaluated if self._is_full(each) and each.last().is_met]
        outcomes = [each.outcomes for each in evaluated]
        return SearchResult(
            space=self._space,
            screening=self._screening,
            evaluated=evaluated,
            ranking=tuple(sorted(met, key=lambda each: self._objective.score(each.last()))),
            is_exhausted=is_exhausted,
            not_run=len(self._left()),
            simulations={
                fidelity: sum(each[fidelity].runs for each in outcomes if len(each) > fidelity)
                for fidelity in range(len(self._space.file.fidelities))
            },
            cpu_s=sum(outcome.cpu_s for each in outcomes for outcome in each),
        )
