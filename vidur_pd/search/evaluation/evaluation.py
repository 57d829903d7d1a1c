"""Evaluation of configurations: simulations of one process, which keeps workloads and prices from one to the next."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from boundary.errors import Failure, InputError
from vidur_pd.config import SimulationConfig, hourly_price
from vidur_pd.config.file import parse_config
from vidur_pd.config.workload import WorkloadFile
from vidur_pd.metrics.overload import waiting_trend
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.steady import steady_part
from vidur_pd.metrics.verdict.verdict import limit_in_words
from vidur_pd.search.capacity.bisection import bisect_load
from vidur_pd.search.evaluation.early import CertainMiss, EarlyJudge
from vidur_pd.search.evaluation.outcome import Outcome, worst_margin
from vidur_pd.search.space.space import Fidelity, Point, Space
from vidur_pd.simulation.api import check_classes
from vidur_pd.simulation.plan import SimulationPlan, plan_simulation
from vidur_pd.simulation.pools import PoolModels
from vidur_pd.simulation.simulation import Simulation
from vidur_pd.simulation.state import assemble
from vidur_pd.workload import Workload, generator, load_workload
from vidur_pd.workload.transform import at_rate, least_rate, picked

POOLS_KEPT: Final = 256
"""Of which a process keeps prices: some megabytes each."""
RUNS_BETWEEN_COLLECTIONS: Final = 4
"""A run leaves cycles that hold memory of the core, some 10 MB, which Python does not see and would keep for hours."""
TOLERANCE: Final = 0.02
"""Relative width of the interval in which a capacity lies."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to find out."""

    point: Point
    fidelity: int
    start_per_s: float | None
    """Where the search for a capacity begins."""


class Evaluator:
    """Evaluates points of a space. Of a process of its own: pools that points share keep their prices."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._pools: PoolModels = {}
        self._since_collection = 0

    def __call__(self, task: Task) -> Outcome:
        """The outcome of a point; a run that fails is one too."""
        begin_s = time.process_time()
        config: SimulationConfig | None = None
        try:
            fidelity = self.space.file.fidelities[task.fidelity]
            config = self.space.config(task.point, fidelity)
            outcome = self._evaluated(config, fidelity, task)
        except (InputError, Failure, MemoryError, RuntimeError, AssertionError) as error:
            gpus = 0 if config is None else gpus_of(config)
            outcome = Outcome(is_met=False, margin=-10.0, gpus=gpus, failure=f"{type(error).__name__}: {error}")
        self._since_collection += 1
        if self._since_collection == RUNS_BETWEEN_COLLECTIONS:
            self._since_collection = 0
            gc.collect()
        return replace(outcome, cpu_s=time.process_time() - begin_s)

    def _evaluated(self, config: SimulationConfig, fidelity: Fidelity, task: Task) -> Outcome:
        workload = beginning(workload_of(config), fidelity.requests)
        plan = plan_of(config, workload, self.pools)
        cost = cost_per_hour(config, self.space.prices)
        if not self.space.file.objective.finds_capacity:
            return run_once(plan, workload, cost)
        tried: dict[float, Outcome] = {}

        def is_met(per_s: float) -> bool:
            tried[per_s] = run_once(plan, at_rate(workload, per_s), cost)
            return tried[per_s].is_met

        bracket = bisect_load(is_met, task.start_per_s or 1.0, TOLERANCE, least=least_rate(workload))
        best = tried[bracket.highest_met] if bracket.highest_met is not None else next(iter(tried.values()))
        return replace(best, runs=len(tried))

    @property
    def pools(self) -> PoolModels:
        """Pools whose prices are kept."""
        if len(self._pools) > POOLS_KEPT:
            self._pools.clear()
        return self._pools


def plan_of(config: SimulationConfig, workload: Workload, pools: PoolModels) -> SimulationPlan:
    """The plan of a configuration for its workload, with known pools. Raises: InputError."""
    check_classes(config, workload)
    hashes = workload.block_hashes
    return plan_simulation(config, None if hashes is None else hashes.block_tokens, pools)


def run_once(plan: SimulationPlan, workload: Workload, cost: float | None = None) -> Outcome:
    """One simulation, which ends as soon as it is certain to miss its SLO."""
    slo = plan.config.slo
    try:
        with closing(Simulation(assemble(plan), workload)) as simulation:
            result = simulation.run(None, EarlyJudge(slo, len(workload)))
    except CertainMiss as miss:
        return Outcome(
            is_met=False,
            margin=-2 + miss.share,  # the earlier, the farther: at least the whole limit
            gpus=gpus_of(plan.config),
            cost_per_hour=cost,
            limited_by=f"{miss.target} is missed when {100 * miss.share:.0f} % of the requests have ended",
            stopped_early=True,
            seed=plan.config.seed,
        )
    return outcome_of(result, cost)


def outcome_of(result: Result, cost: float | None = None) -> Outcome:
    """The outcome of a run that has come to its end; ``cost``: per hour, by default by its configuration's prices."""
    summary = result.summary
    trend = waiting_trend(result.tally)
    is_overload = trend is not None and trend.is_overload
    margin, load = worst_margin(summary.slo.targets), summary.under_load
    return Outcome(
        is_met=summary.slo.is_met and not is_overload,
        margin=min(margin, 0.0) if is_overload else margin,
        gpus=gpus_of(result.config),
        cost_per_hour=cost if cost is not None or summary.cost is None else summary.cost.per_hour,
        rate_per_s=mean_rate(result),
        output_tokens_mean=float(result.tally.offered_output_tokens.mean()),
        output_tokens_per_s=None if load is None else load.output_tokens_per_s,
        e2e_mean_s=summary.e2e_s.mean,
        stays=steady_part(result.tally.arrived_ps, result.tally.e2e_ps).stays,
        ttft_p50_s=summary.ttft_s.p50,
        ttft_p90_s=summary.ttft_s.p90,
        tpot_p50_s=summary.tpot_s.p50,
        tpot_p90_s=summary.tpot_s.p90,
        targets=summary.slo.targets,
        limited_by=limit_in_words(summary),
        is_overload=is_overload,
        seed=result.config.seed,
    )


def mean_rate(result: Result) -> float:
    """Requests that arrived per second in the mean; 0 where all came at once."""
    arrived_ps = result.tally.arrived_ps
    span_ps = int(arrived_ps.max() - arrived_ps.min())
    return (len(arrived_ps) - 1) * PS_PER_S / span_ps if span_ps else 0.0


def gpus_of(config: SimulationConfig) -> int:
    """GPUs of all pools."""
    return sum(pool.instances * pool.gpus_per_instance for pool in config.cluster.pools)


def cost_per_hour(config: SimulationConfig, prices: Mapping[str, float] | None) -> float | None:
    """Of all GPUs. Raises: InputError, for a GPU without a price."""
    if prices is None:
        return None
    pools = config.cluster.pools
    return sum(
        hourly_price(prices, name) * pool.instances * gpus
        for pool in pools
        for name, gpus in config.gpus_by_hardware(pool).items()
    )


def workload_of(config: SimulationConfig) -> Workload:
    """The workload of a configuration, whose paths are absolute; the last ones are kept."""
    text = WorkloadFile(seed=config.seed, workload=config.workload).model_dump_json()
    return _loaded(text)


@lru_cache(maxsize=4)
def _loaded(text: str) -> Workload:
    section = WorkloadFile.model_validate(json.loads(text))
    return load_workload(section.workload, base_dir=Path(), rng=lambda name: generator(section.seed, name))


def without_repeats(space: Space) -> Space:
    """The space with fidelities that differ for its workload: one that has fewer requests than asked for is whole."""
    try:
        requests = len(workload_of(parse_config(deepcopy(space.base), Path(), space.where)))
    except InputError:  # a base that only its choices complete
        return space
    whole = [
        each.model_copy(update={"requests": None}) if (each.requests or 0) >= requests else each
        for each in space.file.fidelities
    ]
    kept = tuple(each for each, following in zip(whole, [*whole[1:], None], strict=True) if each != following)
    return replace(space, file=space.file.model_copy(update={"fidelities": kept}))


def beginning(workload: Workload, requests: int | None) -> Workload:
    """The first requests of a workload."""
    return workload if requests is None or requests >= len(workload) else picked(workload, np.arange(requests))
