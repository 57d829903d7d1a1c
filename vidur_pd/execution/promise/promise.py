"""What a deployment could do at best, in closed form: batches always full, nobody waits, load evenly spread.

An instance's prefill rate is that of full batches of the workload's prompts, less what an infinite cache would hold
of them; its decode rate follows from the time of a step over the number of requests in it, at the mean context. Both
are prices that runs use: kernels of the slowest rank, host, collectives on an idle fabric. What they leave out
(queues, bursts, uneven ranks, cache misses, contention, KV transfers) makes a cluster slower, so that a promise is an
upper bound but for what it takes in the mean; `ALLOWANCE` covers that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

import simccl
from aicb import Batch, IterationCost
from netsim.units import PS_PER_S
from vidur_pd.config import SloConfig
from vidur_pd.execution.communication.pricer import CommunicationPricer
from vidur_pd.execution.instances.placement import Placement
from vidur_pd.execution.iteration.workers import least_ps
from vidur_pd.execution.promise.demand import Demand

if TYPE_CHECKING:
    from vidur_pd.simulation.plan import SimulationPlan
    from vidur_pd.simulation.pools import PoolModel

ALLOWANCE: Final = 1.15
"""A point is only left out where it would miss what it needs by more than this, and a promise of latency may be too
long by as much: means stand for distributions. `tests/benchmarks/search_exhaustively.py` holds promises to what
simulations find."""
MOST_BATCHES: Final = 8
"""Full batches that are priced for a prefill rate."""
Figures = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class InstancePromise:
    """What one instance of a pool could do."""

    prefill_s: float
    """Time that it takes per request in full batches; 0: it has no prompts."""
    alone_s: float
    """Time of the median prompt with nothing else."""
    batch: Figures
    """[sizes] requests that decode at a time, of all its ranks; rising."""
    step_s: Figures
    """[sizes] per output token of each."""

    def decode_rate(self, output_tokens: float, longest_step_s: float) -> float:
        """Requests per second with steps of at most this time."""
        if not len(self.batch) or self.step_s[0] > longest_step_s:
            return 0.0
        size = float(np.interp(longest_step_s, np.maximum.accumulate(self.step_s), self.batch))
        return size / (float(np.interp(size, self.batch, self.step_s)) * output_tokens)

    def step_at(self, rate_per_s: float, output_tokens: float) -> float:
        """Time of a step at a rate of requests; that of the largest batch where the rate is more than it can."""
        rates = self.batch / (self.step_s * output_tokens)
        return float(np.interp(rate_per_s, np.maximum.accumulate(rates), self.step_s))


@dataclass(frozen=True, slots=True)
class Promise:
    """What a deployment could do."""

    ceiling_per_s: float
    """Requests per second within the limits of TTFT and TPOT."""
    ttft_s: float
    tpot_s: float
    e2e_s: float
    """Latencies in the mean, at the demand's rate; infinite beyond the ceiling."""


class PromiseMaker:
    """Promises of plans; instances that many plans have are priced once."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._known: dict[tuple[object, ...], InstancePromise] = {}

    @property
    def rate_per_s(self) -> float | None:
        """Of the demand."""
        return self._demand.rate_per_s

    @property
    def output_tokens_mean(self) -> float:
        """Of a request of the demand."""
        return self._demand.output_tokens

    def promise(self, plan: SimulationPlan) -> Promise:
        """What the plan's deployment could do for the demand."""
        demand, slo = self._demand, plan.config.slo
        roles = {pool.name: pool.role for pool in plan.config.cluster.pools}
        each = {name: self._instance(plan, name) for name in plan.pools}
        counts = {pool.name: pool.instances for pool in plan.config.cluster.pools}
        step_limit_s = _limit_s(slo, "tpot")
        output = demand.output_tokens - 1  # the first token comes with the prompt
        prefill = [(counts[n], each[n]) for n, role in roles.items() if role != "decode"]
        decode = [(counts[n], each[n]) for n, role in roles.items() if role != "prefill"]
        prefill_per_s = sum(count / of.prefill_s for count, of in prefill)
        decode_per_s = np.inf
        if output > 0:
            decode_per_s = sum(count * of.decode_rate(output, step_limit_s) for count, of in decode)
        ceiling = min(prefill_per_s, decode_per_s)
        if all(of.alone_s > _limit_s(slo, "ttft") for _, of in prefill):
            ceiling = 0.0
        rate = demand.rate_per_s if demand.rate_per_s is not None else ceiling
        if rate > ceiling * ALLOWANCE or not ceiling:
            return Promise(ceiling, np.inf, np.inf, np.inf)
        load = min(rate / prefill_per_s, 0.99)
        alone_s = min(of.alone_s for _, of in prefill)
        mean_s = prefill_per_s and sum(count for count, _ in prefill) / prefill_per_s
        ttft_s = alone_s + mean_s * load / (2 * (1 - load)) / sum(count for count, _ in prefill)
        share = min(rate / decode_per_s, 1.0) if decode_per_s else 1.0
        rates = [(count, of, of.decode_rate(output, step_limit_s) * share) for count, of in decode]
        total = sum(count * each_rate for count, _, each_rate in rates)
        tpot_s = sum(c * r * of.step_at(r, output) for c, of, r in rates) / total if total and output > 0 else 0.0
        return Promise(ceiling, ttft_s, tpot_s, ttft_s + max(output, 0) * tpot_s)

    def _instance(self, plan: SimulationPlan, name: str) -> InstancePromise:
        pool = plan.pools[name]
        place = next(each for each in plan.placements if each.pool == name)
        network = plan.config.network
        topology = plan.config.cluster.topology.model_dump_json()
        collectives = (network.collectives, network.nvls)
        key = (pool.iteration_model, topology, collectives, place.gpus[0] % plan.topology.gpus_per_node)
        if key not in self._known:
            self._known[key] = instance_promise(plan, pool, place, self._demand)
        return self._known[key]


def _limit_s(slo: SloConfig, latency: str) -> float:
    """The largest limit of a latency's percentiles, or that of each request where there are none."""
    limits = [target.limit_s for target in slo.targets if target.latency == latency]
    if limits:
        return max(limits)
    return float(getattr(slo, f"{latency}_s")) if not slo.targets else np.inf


def instance_promise(plan: SimulationPlan, pool: PoolModel, place: Placement, demand: Demand) -> InstancePromise:
    """What an instance of a pool at a place could do for a demand."""
    network = plan.config.network
    stack = simccl.Stack(network.collectives)
    pricer = CommunicationPricer(plan.topology, "analytical", pool.gpu.interconnect, stack, nvls=network.nvls)
    times = _Times(pool, place, pricer)
    prefill_s = alone_s = 0.0
    if place.role != "decode":
        prompts, cached = demand.prompts, demand.cached if pool.engine.prefix_caching else np.zeros_like(demand.prompts)
        kept = _spread(len(prompts), int(MOST_BATCHES * pool.max_batched_tokens / (prompts - cached).mean()))
        batches = _full_batches(prompts[kept], cached[kept], pool.max_batched_tokens)
        busy_s = sum(max(times.stages(batch)) for batch in batches)
        prefill_s = busy_s / len(kept) / place.partition.dp
        middle = len(prompts) // 2
        single = _full_batches(prompts[middle : middle + 1], cached[middle : middle + 1], pool.max_batched_tokens)
        alone_s = sum(sum(times.stages(batch)) for batch in single)
    sizes = _sizes(pool, demand.context_tokens) if place.role != "prefill" else []
    context = max(round(demand.context_tokens), 2)
    steps = [sum(times.stages(Batch.decode([context] * size))) for size in sizes]
    tokens_per_step = 1 + pool.drafts_per_step  # every draft accepted: the most that a step can bring
    at_a_time = place.partition.dp * place.partition.pp  # a micro-batch in each stage
    return InstancePromise(
        prefill_s, alone_s, np.array(sizes, dtype=float) * at_a_time, np.array(steps) / tokens_per_step
    )


def _spread(count: int, at_most: int) -> NDArray[np.int64]:
    """Evenly spaced places of ``count``."""
    number = max(1, min(count, at_most))
    return np.unique(((np.arange(number) + 0.5) / number * count).astype(np.int64))


def _full_batches(prompts: NDArray[np.int64], cached: NDArray[np.int64], budget: int) -> list[Batch]:
    """Prompts one after another, in chunks that fill iterations of ``budget`` tokens."""
    batches: list[Batch] = []
    new: list[int] = []
    past: list[int] = []
    for prompt, held in zip(prompts.tolist(), cached.tolist(), strict=True):
        while held < prompt:
            chunk = min(prompt - held, budget - sum(new))
            new.append(chunk)
            past.append(held)
            held += chunk
            if sum(new) == budget:
                batches.append(Batch.prefill(new, past))
                new, past = [], []
    return [*batches, *([Batch.prefill(new, past)] if new else [])]


def _sizes(pool: PoolModel, context_tokens: float) -> list[int]:
    """Requests of a rank that decode at a time: powers of two, and the most that there is room for."""
    room = int(pool.num_kv_blocks * pool.engine.block_tokens / context_tokens)
    most = max(1, min(pool.engine.max_seqs, room))
    return sorted({*(2**power for power in range(most.bit_length())), most})


class _Times:
    """Times of iterations in which all ranks have the same batch."""

    def __init__(self, pool: PoolModel, place: Placement, pricer: CommunicationPricer) -> None:
        self._model, self._place, self._pricer = pool.iteration_model, place, pricer
        self._workers = pool.workers
        self._hides_communication = pool.halves is not None

    def stages(self, batch: Batch) -> Sequence[float]:
        """[pipeline stages] seconds."""
        ranks = [batch] * self._place.partition.dp
        if self._workers is not None:
            return [least_ps(self._workers.price(ranks), self._workers.kind_of_layer) / PS_PER_S]
        costs = (self._model.price(ranks, stage=stage) for stage in range(self._place.partition.pp))
        return [(cost.compute_ps + self._exposed_ps(cost, stage)) / PS_PER_S for stage, cost in enumerate(costs)]

    def _exposed_ps(self, cost: IterationCost, stage: int) -> int:
        if self._hides_communication:
            return 0
        return sum(
            count * self._pricer.cost(what, self._gpus(what.group, stage)).duration_ps
            for what, count in cost.communications
        )

    def _gpus(self, group: str, stage: int) -> tuple[int, ...]:
        """The first of the groups that run a collective at the same time."""
        place = self._place
        match group:
            case "tp":
                return place.tensor_group(stage, 0)
            case "ep":
                return place.stage_gpus(stage)
            case _:
                following = place.stage_gpus((stage + 1) % place.partition.pp)
                return place.stage_gpus(stage)[0], following[0]
