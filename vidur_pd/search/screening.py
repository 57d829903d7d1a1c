"""Points that are worth running: those that are configurations, fit into memory, and could carry the load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from boundary.errors import InputError
from vidur_pd.execution.promise.demand import demand_of
from vidur_pd.execution.promise.promise import ALLOWANCE, Promise, PromiseMaker
from vidur_pd.metrics.reasons import Outcome as Reason
from vidur_pd.metrics.reasons import Outcomes
from vidur_pd.search.evaluation.evaluation import cost_per_hour, gpus_of, plan_of, workload_of
from vidur_pd.search.space.objective import Objective, cost_per_million
from vidur_pd.search.space.space import Point, Space
from vidur_pd.simulation.pools import PoolModels
from vidur_pd.workload import Workload

INVALID: Final = "invalid"
GPUS: Final = "GPUs"
LOAD: Final = "load"
WHY: Final = {INVALID: "invalid", GPUS: "left out by GPUs", LOAD: "left out by load"}
MOST_REASONS: Final = 3
"""That a line has room for."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point that may be run."""

    point: Point
    gpus: int
    cost_per_hour: float | None
    promise: Promise
    output_tokens_mean: float = 0.0
    """Of a request of its workload."""

    def rank(self, objective: Objective) -> tuple[float, ...]:
        """Order in which candidates promise most."""
        match objective:
            case Objective.MIN_GPUS:
                return (self.gpus, -self.promise.ceiling_per_s)
            case Objective.MIN_COST:
                return (self.cost_per_hour or 0.0, -self.promise.ceiling_per_s)
            case Objective.MIN_COST_PER_TOKEN:
                return ((self.cost_per_hour or 0.0) / (self.promise.ceiling_per_s or 1e-9),)
            case Objective.MAX_THROUGHPUT_PER_GPU:
                return (-self.promise.ceiling_per_s / self.gpus,)
            case Objective.MIN_LATENCY:
                return (self.promise.e2e_s,)

    def could_reach(self, objective: Objective) -> float:
        """The best value that the promise allows, in the objective's unit."""
        match objective:
            case Objective.MIN_GPUS:
                return float(self.gpus)
            case Objective.MIN_COST:
                return self.cost_per_hour or 0.0
            case Objective.MIN_COST_PER_TOKEN:
                tokens_per_s = self.promise.ceiling_per_s * ALLOWANCE * self.output_tokens_mean
                return cost_per_million(self.cost_per_hour, tokens_per_s) or 0.0
            case Objective.MAX_THROUGHPUT_PER_GPU:
                return self.promise.ceiling_per_s * ALLOWANCE / self.gpus
            case Objective.MIN_LATENCY:
                return self.promise.e2e_s / ALLOWANCE


@dataclass(frozen=True, slots=True)
class Screening:
    """What became of all points before any was run."""

    candidates: tuple[Candidate, ...]
    """Those that promise most come first."""
    left_out: tuple[Reason, ...]
    """The most frequent reasons first; ``status`` says of what kind."""

    def count_left_out(self, kind: str) -> int:
        return sum(each.requests for each in self.left_out if each.status == kind)

    def reasons(self) -> str:
        """How many points were left out why."""
        parts = (
            f"{each.requests:,} point{'s' if each.requests > 1 else ''} {WHY[each.status]}: {each.reason}"
            for each in self.left_out[:MOST_REASONS]
        )
        return "; ".join(parts)


def check_workload(space: Space) -> None:
    """Reads the workload of the first point that is a configuration. Raises: InputError, where it cannot be read."""
    for point in space.points():
        try:
            config = space.config(point)
        except InputError:
            continue
        workload_of(config)
        return


def screen(space: Space) -> Screening:
    """Checks every point as a run would, and prices what it promises."""
    left_out, pools = Outcomes(), PoolModels()
    makers: list[tuple[Workload, PromiseMaker]] = []
    found: list[Candidate] = []
    objective, most = space.file.objective, space.file.gpus_max
    for point in space.points():
        try:
            config = space.config(point)
            gpus = gpus_of(config)
            if gpus < space.file.gpus_min or (most is not None and gpus > most):
                least = space.file.gpus_min
                limits = f"at least {least}" if most is None else f"{least} to {most}" if least < most else f"{least}"
                left_out.add(
                    GPUS, f"found more or fewer GPUs in all instances together, expected {limits}", space.label(point)
                )
                continue
            workload = workload_of(config)
            plan = plan_of(config, workload, pools)
            cost = cost_per_hour(config, space.prices)
        except InputError as error:
            left_out.add(INVALID, str(error).removeprefix(f"{space.where}: "), space.label(point))
            continue
        if (maker := next((made for known, made in makers if known is workload), None)) is None:
            maker = PromiseMaker(demand_of(workload))
            makers.append((workload, maker))
        promise = maker.promise(plan)
        needed = 0.0 if objective.finds_capacity else maker.rate_per_s or 0.0
        if promise.ceiling_per_s * ALLOWANCE <= needed:
            left_out.add(LOAD, "even with full batches it could not carry the load within its SLO", space.label(point))
            continue
        found.append(Candidate(point, gpus, cost, promise, maker.output_tokens_mean))
    ranked = sorted(found, key=lambda each: (each.rank(objective), each.point))
    return Screening(tuple(ranked), tuple(left_out.most_frequent()))
