"""The capacity of a configuration: the highest load within its SLO, with an interval that says how sure that is.

Three limits are bisected with the same runs: of loads whose targets are met, of those that are met with confidence
(the upper ends of the intervals of all shares beyond limits are allowed), and of those that are not missed with
confidence (the lower ends are). The capacity is the first; the true one, of ever longer workloads of this kind, lies
between the others. What these are sure of is known from requests that met a cluster as full as a longer workload makes
it (`steady_part`), where there are enough; the capacity, of this very workload, may lie above both. Load scales arrival
times by one factor, or the number of clients; that more load never helps is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.promise.demand import demand_of
from vidur_pd.execution.promise.promise import PromiseMaker
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.slo import is_beyond, target_name
from vidur_pd.metrics.steady import LEAST_STAYS, SteadyPart, steady_part
from vidur_pd.search.capacity.bisection import Bracket, bisect_load
from vidur_pd.search.capacity.confidence import BATCHES, Interval, fewest_requests, share_interval
from vidur_pd.search.evaluation.early import CertainMiss, EarlyJudge
from vidur_pd.search.evaluation.evaluation import outcome_of, plan_of, workload_of
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.simulation.pools import PoolModels
from vidur_pd.simulation.simulation import Simulation
from vidur_pd.simulation.state import assemble
from vidur_pd.workload import Workload
from vidur_pd.workload.pacing import NOBODY
from vidur_pd.workload.transform import at_rate, least_rate

BEGIN_BELOW_CEILING: Final = 0.7
"""Share of the promised ceiling at which the search begins."""
CERTAIN: Final = 3.0
"""Times the allowed share beyond a limit at which a run ends early: far outside of every interval."""
LEAST_SHARE: Final = 1e-3
"""Of the rate at which the search begins: the least that is tried."""
UNIT: Final = {"rate": "requests/s", "clients": "clients"}


@dataclass(frozen=True, slots=True)
class Share:
    """Requests beyond the limit of a target."""

    target: str
    allowed: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class AtLoad:
    """What a configuration does at one load, over all seeds."""

    load: float
    outcomes: tuple[Outcome, ...]
    """[seeds]"""
    shares: tuple[Share, ...]
    """Empty where a run ended early, being certain to miss, or was too short."""

    @property
    def is_met(self) -> bool:
        """By the runs as they are: of all seeds."""
        return all(outcome.is_met for outcome in self.outcomes)

    @property
    def is_met_surely(self) -> bool:
        return self.is_long and self.is_met and all(each.interval.high <= each.allowed for each in self.shares)

    @property
    def is_missed_surely(self) -> bool:
        if any(outcome.is_overload or outcome.stopped_early for outcome in self.outcomes):
            return True
        if not self.shares:
            return self.is_long and not self.is_met
        return any(each.interval.low > each.allowed for each in self.shares)

    @property
    def stays(self) -> float:
        """How long arrivals last in the shortest run, in stays of requests; 0 where runs ended early."""
        return min(0.0 if outcome.stays is None else outcome.stays for outcome in self.outcomes)

    @property
    def is_long(self) -> bool:
        """Whether the runs say what a longer workload would."""
        return self.stays >= LEAST_STAYS


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of a configuration, in requests per second or clients."""

    kind: str
    """``rate`` or ``clients``."""
    limit: Bracket
    surely_met: float | None
    """Highest load that is met with confidence; ``None``: none that was tried."""
    surely_missed: float | None
    """Lowest load that is missed with confidence."""
    tried: tuple[AtLoad, ...]
    """By load, rising."""
    requests_needed: int | None = None
    """Of a workload, to be sure of a load at all; ``None``: it has them."""

    @property
    def missed_below(self) -> tuple[AtLoad, ...]:
        """Loads below the capacity at which the SLO is missed all the same."""
        highest = self.limit.highest_met
        return () if highest is None else tuple(each for each in self.tried if each.load < highest and not each.is_met)

    @property
    def at_capacity(self) -> AtLoad | None:
        return next((each for each in self.tried if each.load == self.limit.highest_met), None)

    @property
    def beyond(self) -> AtLoad | None:
        """The lowest load that is too much."""
        return next((each for each in self.tried if each.load == self.limit.lowest_missed), None)


class _Loads:
    """Runs of a configuration at any load, each once."""

    def __init__(self, config: SimulationConfig, seeds: int) -> None:
        self._pools: PoolModels = {}
        self._configs = [config.model_copy(update={"seed": config.seed + seed}) for seed in range(seeds)]
        self._workloads = [workload_of(each) for each in self._configs]
        if len({workload.digest for workload in self._workloads}) < seeds:
            raise InputError(
                f"--seeds: found {seeds} for a workload that is the same for every seed, expected 1: its requests are "
                "one sample, however often they are simulated"
            )
        self.tried: dict[float, AtLoad] = {}
        self.kind = kind_of_load(self._workloads[0])

    def start(self) -> float:
        """A load below the promised ceiling; of clients, those that this rate keeps busy."""
        workload = self._workloads[0]
        promise = PromiseMaker(demand_of(workload)).promise(plan_of(self._configs[0], workload, self._pools))
        rate = BEGIN_BELOW_CEILING * (promise.ceiling_per_s or 1.0)
        return rate if self.kind == "rate" else max(1.0, rate * (promise.e2e_s if np.isfinite(promise.e2e_s) else 1.0))

    def least(self, start: float) -> float:
        """A load at which requests hardly meet, so that less changes nothing."""
        if self.kind == "clients":
            return 0.0
        return max(LEAST_SHARE * start, *(least_rate(workload) for workload in self._workloads))

    def requests_needed(self, load: float | None) -> int | None:
        """Requests with which a load can be met with confidence, where this workload has fewer."""
        if load is None:
            return None
        at, seeds, own = self.at(load), len(self._workloads), len(self._workloads[0])
        if not at.is_long:
            return math.ceil(own * LEAST_STAYS / at.stays) if at.stays else 0
        allowed = [each.allowed for each in at.shares]
        needed = fewest_requests(min(allowed), seeds) if allowed and min(allowed) > 0 else 0
        return math.ceil(needed / seeds) if needed > own * seeds else None

    def at(self, load: float) -> AtLoad:
        if load not in self.tried:
            runs = [self._run(*each, load) for each in zip(self._configs, self._workloads, strict=True)]
            results = [result for _, result in runs if result is not None]
            parts = [steady_part(result.tally.arrived_ps, result.tally.e2e_ps) for result in results]
            is_long = len(results) == len(runs) and all(part.is_long for part in parts)
            shares = _shares(results, parts) if is_long else ()
            self.tried[load] = AtLoad(load, tuple(outcome for outcome, _ in runs), shares)
        return self.tried[load]

    def _run(self, config: SimulationConfig, workload: Workload, load: float) -> tuple[Outcome, Result | None]:
        loaded = at_load(workload, self.kind, load)
        plan = plan_of(config, loaded, self._pools)
        judge = EarlyJudge(plan.config.slo, len(loaded), CERTAIN)
        try:
            with closing(Simulation(assemble(plan), loaded)) as simulation:
                result = simulation.run(None, judge)
        except CertainMiss as miss:
            limited_by = f"{miss.target} is missed by {CERTAIN:g} times as many requests as may miss it"
            return Outcome(is_met=False, margin=-2.0, gpus=0, limited_by=limited_by, stopped_early=True), None
        return outcome_of(result), result


def find_capacity(config: SimulationConfig, *, seeds: int = 1, tolerance: float = 0.02) -> Capacity:
    """The capacity of a configuration whose paths are absolute.

    Args:
        config: a load that its workload states is only where loads are scaled from.
        seeds: runs at each load, with workloads drawn anew.
        tolerance: relative width of the interval in which the limit is found.

    Raises:
        InputError: as a run; a workload whose load cannot be scaled; several seeds for one that they do not change.
    """
    loads = _Loads(config, seeds)
    is_whole = loads.kind == "clients"
    start = loads.start()
    limit = bisect_load(lambda load: loads.at(load).is_met, start, tolerance, whole=is_whole, least=loads.least(start))
    surely_met = surely_missed = None
    needed = loads.requests_needed(limit.highest_met)
    if limit.highest_met is not None and needed is None:
        below = bisect_load(
            lambda load: loads.at(load).is_met_surely, limit.highest_met, 2 * tolerance, step=1.1, whole=is_whole
        )
        surely_met = below.highest_met
    if limit.highest_met is None and limit.lowest_missed is not None:
        surely_missed = limit.lowest_missed if loads.at(limit.lowest_missed).is_missed_surely else None
    elif limit.lowest_missed is not None:
        above = bisect_load(
            lambda load: not loads.at(load).is_missed_surely,
            limit.lowest_missed,
            2 * tolerance,
            step=1.1,
            whole=is_whole,
        )
        surely_missed = above.lowest_missed
    tried = tuple(loads.tried[load] for load in sorted(loads.tried))
    return Capacity(loads.kind, limit, surely_met, surely_missed, tried, needed)


def kind_of_load(workload: Workload) -> str:
    """``clients`` where all requests are sent by clients, else ``rate``. Raises: InputError, for a mixture."""
    if workload.pacing is None:
        return "rate"
    if (workload.pacing.population == NOBODY).any():
        raise InputError(
            "workload: found requests that are sent after others but by no clients, expected arrivals at known "
            "times, or closed arrivals: nothing else has one load to scale"
        )
    return "clients"


def at_load(workload: Workload, kind: str, load: float) -> Workload:
    """The workload at a rate, or with so many clients in each of its populations."""
    if kind == "rate":
        return at_rate(workload, load)
    assert workload.pacing is not None
    populations = tuple(replace(each, clients=round(load)) for each in workload.pacing.populations)
    return replace(workload, pacing=replace(workload.pacing, populations=populations))


def _shares(results: Sequence[Result], parts: Sequence[SteadyPart]) -> tuple[Share, ...]:
    """Of every target that bounds a share of requests."""
    slo = results[0].config.slo
    batches = min(BATCHES, *(part.batches for part in parts))
    found = []
    for target, judged in zip(slo.targets or (None,), results[0].summary.slo.targets, strict=True):
        if judged.beyond_allowed is None:
            continue
        runs: list[NDArray[np.bool_]] = [
            is_beyond(result.tally, slo, target, part.is_within) for result, part in zip(results, parts, strict=True)
        ]
        name = judged.name if target is None else target_name(target)
        if all(len(run) for run in runs):
            found.append(Share(name, judged.beyond_allowed, share_interval(runs, batches)))
    return tuple(found)
