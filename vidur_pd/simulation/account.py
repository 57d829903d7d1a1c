"""The summary of a run, put together from what was counted while it went on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from aicb import Gpu, get_gpu
from aicb.estimators.selection import CARRIED_OPERATORS, CARRYING_ESTIMATORS, EXPERTS_GPU
from aicb.estimators.transfer_reference import Distance
from aicb.iteration.host import MEDIAN_HOST, known_hosts
from aicb.measurements.gpu import MEASURED_GPU
from simccl.planning.calibration import shipped_calibration
from vidur_pd.config import PoolConfig, PricesConfig, SloConfig, hourly_price
from vidur_pd.config.engine_conditions import are_norms_estimated
from vidur_pd.config.frontend import most_tokens_per_s
from vidur_pd.execution.coupling.plan import Treatment
from vidur_pd.kv.transfer.connector import ConnectorTime
from vidur_pd.metrics.communication import communication_sources
from vidur_pd.metrics.connector import connector_left_out, connector_summary
from vidur_pd.metrics.costs import PoolPrice, cost_summary, prompts_share
from vidur_pd.metrics.energy import Surroundings, energy_estimate
from vidur_pd.metrics.fabric import fabric_summary
from vidur_pd.metrics.faults import fault_summary
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.quantities import PS_PER_S, distribution, to_seconds
from vidur_pd.metrics.request_classes import class_summaries
from vidur_pd.metrics.requests import NEVER, seconds
from vidur_pd.metrics.slo import judge
from vidur_pd.metrics.sources import (
    DECODE,
    OTHER_HOST_ERROR,
    OWN_HOST_ERROR,
    PREFILL,
    PoolTime,
    Source,
    TimeSources,
    time_sources,
)
from vidur_pd.metrics.summary import (
    ApiServerLoad,
    CostSummary,
    Effort,
    EnergySummary,
    EstimatedOperator,
    FabricSummary,
    Histogram,
    LinkSummary,
    MeasurementSummary,
    ModelError,
    NetworkSummary,
    NotServed,
    Objectives,
    PlannerSummary,
    PoolSummary,
    RebalancingSummary,
    RecoveredRequests,
    Summary,
    Throughput,
    TierSummary,
    UnderLoad,
    WorkloadSummary,
)
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.metrics.under_load import under_load
from vidur_pd.metrics.verdict.verdict import verdict_of
from vidur_pd.simulation.pool_work import PoolWork, pool_work
from vidur_pd.workload import Workload
from vidur_pd.workload.request import RequestStatus

if TYPE_CHECKING:
    from vidur_pd.simulation.state import SimulationState

ITL_HISTOGRAM_BINS = 60
MOST_REASONS = 20
"""Of requests not served, in the summary."""


class Account:
    """What is known of a run apart from its requests, and the summary of both."""

    def __init__(self, state: SimulationState, workload: Workload, log: IterationLog) -> None:
        self._plan = state.plan
        self._config = state.plan.config
        self._workload = workload
        self._instances, self._pricers = state.instances, state.iteration_pricers
        self._traffic = state.traffic
        self._log = log
        self._known: dict[str, PoolWork] = {}

    def summary(
        self,
        tally: RequestTally,
        recovered: RecoveredRequests,
        transfers_retried: int,
        connector_time: ConnectorTime,
        rebalancing: RebalancingSummary | None,
        tiers: tuple[TierSummary, ...] | None,
        links: Sequence[LinkSummary],
        effort: Effort,
        planner: PlannerSummary | None,
    ) -> Summary:
        """Figures of requests, what was simulated, where time and energy went, and what it comes to.

        The makespan runs from the first arrival to the last completion: ``throughput`` and ``goodput`` include the
        drain, as those of vLLM's benchmark do (``vllm bench serve`` divides by the duration of the whole run);
        ``under_load`` does not. ``goodput_share`` counts requests that were rejected or failed as missed. A request of
        one token meets the TPOT objective.
        """
        slo, log = self._config.slo, self._log
        self._held = _held_share(planner)
        completed, makespan_s = tally.count(RequestStatus.COMPLETED), to_seconds(tally.makespan_ps)
        load = under_load(tally, slo)
        arriving = _arriving(tally)
        met = int(np.count_nonzero(tally.is_served(slo)))
        tpot_ps, (gap_s, gap_count) = tally.tpot_ps, log.gaps()
        sources = self._sources()
        energy = self._energy(tally, makespan_s)
        summary = Summary(
            requests=len(tally),
            completed=completed,
            rejected=tally.count(RequestStatus.REJECTED),
            failed=tally.count(RequestStatus.FAILED),
            not_served=_not_served(tally),
            first_arrival_s=arriving[0],
            makespan_s=makespan_s,
            throughput=_throughput(tally, completed, makespan_s),
            under_load=load,
            cached_input_share=tally.cached_tokens / tally.input_tokens if completed else None,
            ttft_s=distribution(seconds(tally.ttft_ps)),
            tpot_s=distribution(seconds(tpot_ps[tpot_ps != NEVER])),
            itl_s=distribution(gap_s, gap_count),
            e2e_s=distribution(seconds(tally.e2e_ps)),
            slo=_objectives(tally, slo),
            goodput=_rate(met, makespan_s),
            goodput_share=met / len(tally) if len(tally) else None,
            estimates=sources.estimates,
            time_sources=sources.shares(to_seconds(tally.transfers_ps), self._transfers_from()),
            model_error=_model_error(sources, tally),
            preemptions=tally.preemptions,
            itl_histogram=_histogram(gap_s, gap_count),
            model=self._plan.model.name,
            hardware=next(iter(self._plan.pools.values())).gpu.name,
            seed=self._config.seed,
            workload=self._workload_summary(),
            network=self._network(),
            pools=tuple(
                self._pool(pool, makespan_s, self._held_s(pool, planner, arriving))
                for pool in self._config.cluster.pools
            ),
            estimated_operators=self._estimated_operators(),
            simulator=effort,
            communication=communication_sources(self._plan.coupling, log, tally),
            connector=connector_summary(self._config, tally, connector_time),
            connector_left_out=connector_left_out(self._config),
            attribution_s=tally.mean_parts_s(),
            ttft_attribution_s=tally.mean_ttft_parts_s(),
            links=tuple(links),
            energy=energy,
            cost=self._cost(energy, tally, makespan_s),
            api_server=self._api_server(load),
            classes=class_summaries(tally, slo),
            rebalancing=rebalancing,
            planner=planner,
            tiers=tiers,
            faults=fault_summary(self._plan.faults, recovered, transfers_retried, tally, slo),
        )
        return replace(summary, verdict=verdict_of(summary, tally, slo))

    def _api_server(self, load: UnderLoad | None) -> ApiServerLoad | None:
        """Where vLLM's servers, as many as it starts by default, could not follow their engines."""
        answering = [pool for pool in self._config.cluster.pools if pool.role != "prefill"]
        is_vllm = all(self._plan.pools[pool.name].engine.framework == "vllm" for pool in answering)
        if load is None or load.output_tokens_per_s is None or self._config.frontend.kind != "none" or not is_vllm:
            return None
        tokens_per_s = load.output_tokens_per_s / sum(len(self._indices(pool)) * pool.dp for pool in answering)
        most = most_tokens_per_s()
        return ApiServerLoad(tokens_per_s=tokens_per_s, most_tokens_per_s=most) if tokens_per_s > most else None

    def _workload_summary(self) -> WorkloadSummary:
        workload = self._workload
        return WorkloadSummary(
            name=workload.name,
            digest=workload.digest,
            source=workload.source,
            trimmed_requests=workload.trimmed_requests,
            skipped_rows=workload.skipped_rows,
            names_prefixes=workload.block_hashes is not None,
        )

    def _network(self) -> NetworkSummary:
        return NetworkSummary(
            backend=self._config.network.backend,
            coupling=self._plan.coupling.in_force,
            topology=self._config.cluster.topology.model_dump(mode="json", exclude_none=True),
            gpus=self._plan.topology.gpus,
            fabric=self._fabric(),
            measured=None if self._traffic is None else MeasurementSummary(**asdict(self._traffic.totals())),
        )

    def _fabric(self) -> FabricSummary | None:
        if not self._config.output.links:
            return None
        prefill, decode = (
            [gpu for place in self._plan.placements if self._plan.role_of(place) == role for gpu in place.gpus]
            for role in ("prefill", "decode")
        )
        if self._plan.fleet is not None and self._plan.fleet.twins:  # no GPU has one role only
            prefill, decode = [], []
        return fabric_summary(self._plan.topology, prefill, decode)

    def _estimated_operators(self) -> tuple[EstimatedOperator, ...]:
        """Operators priced by flagged estimates at least once, by pool."""
        met = {
            (instance.placement.pool, operator)
            for instance, pricer in zip(self._instances, self._pricers, strict=True)
            for operator in pricer.estimated_operators()
        }
        return tuple(EstimatedOperator(pool=pool, operator=operator) for pool, operator in sorted(met))

    def _sources(self) -> TimeSources:
        coupling, log = self._plan.coupling, self._log
        sources = time_sources(
            (self._pool_time(pool) for pool in self._config.cluster.pools),
            to_seconds(log.estimated_ps),
            coupling.collectives is Treatment.SIMULATED,
            to_seconds(log.communication_ps - log.idle_communication_ps),
        )
        hosts = {self._plan.pools[pool.name].engine.host for pool in self._config.cluster.pools}
        is_other = bool(hosts & set(known_hosts()) - {MEDIAN_HOST})
        error = OTHER_HOST_ERROR if is_other else OWN_HOST_ERROR
        return replace(sources, host_shares=self._host_shares(), host_error=error)

    def _host_shares(self) -> dict[str, float]:
        """Of the time of prompts, and of that of requests that decode, alone or among prompts, over all pools.

        Requests in their prompt count among the latter in pools of both phases, where the log does not tell them apart.
        """
        worked = [(pool.role, *self._worked(pool).kinds) for pool in self._config.cluster.pools]
        prompts = [of_prompts for _, of_prompts, _ in worked]
        decoding = [of_decodes for _, _, of_decodes in worked]
        decoding += [of_prompts for role, of_prompts, _ in worked if role == "mixed"]
        waited_s = sum(each.request_s * (_ratio(each.host_s, each.busy_s) or 0.0) for each in decoding)
        return {
            PREFILL: _ratio(sum(each.host_s for each in prompts), sum(each.busy_s for each in prompts)) or 0.0,
            DECODE: _ratio(waited_s, sum(each.request_s for each in decoding)) or 0.0,
        }

    def _transfers_from(self) -> Source:
        return Source.FORMULA if self._plan.coupling.transfers is Treatment.PRICED else Source.SIMULATED

    def _pool_time(self, pool: PoolConfig) -> PoolTime:
        indices, own = self._indices(pool), self._plan.pools[pool.name]
        gpu = own.gpu if own.ffn_gpu.times_as is None else own.ffn_gpu
        compute_s = float(self._log.computing_ps[indices].sum()) / PS_PER_S
        carried = None if gpu.times_as is None else Distance.between(gpu, get_gpu(gpu.times_as))
        if carried is None:
            carried = self._experts_carried(pool, gpu)
        return PoolTime(
            compute_s=compute_s,
            communication_s=float(self._log.busy_ps[indices].sum()) / PS_PER_S - compute_s,
            carried=carried,
            collectives=self._collectives_from(pool),
        )

    def _experts_carried(self, pool: PoolConfig, gpu: Gpu) -> Distance | None:
        """From where, if experts of a pool whose GPU has a table were measured on another alone."""
        own = self._plan.pools[pool.name]
        if own.engine.estimator not in CARRYING_ESTIMATORS:
            return None
        flagged = {item.operator for item in self._estimated_operators() if item.pool == pool.name}
        is_carried = flagged & CARRIED_OPERATORS[own.precision.weights]
        return Distance.between(gpu, get_gpu(EXPERTS_GPU)) if is_carried else None

    def _collectives_from(self, pool: PoolConfig) -> Source:
        """Where most of a pool's collectives come from: experts that ranks share send most of the bytes."""
        own = self._plan.pools[pool.name]
        if self._traffic is not None:
            return Source.MEASURED_HERE
        if pool.ffn is not None:  # DeepEP's kernels stand for exchanges that nobody has published measurements of
            return Source.FORMULA
        if pool.ep > 1 and "deepep" in f"{own.engine.expert_dispatch.prefill} {own.engine.expert_dispatch.decode}":
            return Source.MEASURED_ELSEWHERE
        topology = self._plan.topology
        placed = next(each.placement for each in self._instances if each.placement.pool == pool.name)
        nodes = {topology.node_of(gpu) for gpu in placed.stage_gpus(0)}
        calibration = shipped_calibration(own.gpu.interconnect)
        if len(nodes) > 1 or calibration is None or are_norms_estimated(own.engine.norm_kernel, pool.tp):
            return Source.FORMULA
        return Source.MEASURED_HERE if own.gpu.interconnect == MEASURED_GPU else Source.MEASURED_ELSEWHERE

    def _energy(self, tally: RequestTally, makespan_s: float) -> EnergySummary | None:
        pools = [
            activity
            for pool in self._config.cluster.pools
            for activity in self._worked(pool).activities(pool, partial(self._held_of, pool))
        ]
        around = Surroundings.of(self._plan.topology)
        return energy_estimate(pools, around, self._config.power, makespan_s, tally.output_tokens)

    def _cost(self, energy: EnergySummary | None, tally: RequestTally, makespan_s: float) -> CostSummary | None:
        prices = self._config.prices
        if prices is None:
            return None
        pools = [
            PoolPrice(
                pool.name,
                self._per_hour(pool, prices),
                prompts_share(pool.role, self._prompts_share(pool)),
            )
            for pool in self._config.cluster.pools
        ]
        return cost_summary(prices, pools, energy, makespan_s, tally.input_tokens, tally.output_tokens)

    def _per_hour(self, pool: PoolConfig, prices: PricesConfig) -> float:
        """Of the GPUs that a pool costs."""
        of_kinds = self._config.gpus_by_hardware(pool).items()
        return sum(hourly_price(prices.gpu_hour, name) * self._held_of(pool, gpus) for name, gpus in of_kinds)

    def _held_of(self, pool: PoolConfig, gpus_per_instance: int) -> float:
        """GPUs of instances of a pool, in the mean over the run: all but those that a planner has switched off."""
        gpus = pool.instances * gpus_per_instance
        return gpus * self._held[pool.name] if pool.name in self._held else gpus

    def _held_s(self, pool: PoolConfig, planner: PlannerSummary | None, window: tuple[float, float]) -> float:
        """Time of a window for which instances of a pool were held, all together."""
        begin_s, end_s = window
        if pool.name not in self._held or planner is None:
            return pool.instances * (end_s - begin_s)
        changes = [each for each in planner.counts if each.pool == pool.name]
        bounds = np.clip([*(each.at_s for each in changes), end_s], begin_s, end_s)
        return float(np.dot([each.serving + each.starting + each.draining for each in changes], np.diff(bounds)))

    def _worked(self, pool: PoolConfig) -> PoolWork:
        if pool.name not in self._known:
            indices = self._indices(pool)
            self._known[pool.name] = pool_work(self._plan.model, self._plan.pools[pool.name], self._log, indices)
        return self._known[pool.name]

    def _prompts_share(self, pool: PoolConfig) -> float | None:
        prompts, decodes = self._worked(pool).kinds
        return _ratio(prompts.busy_s, prompts.busy_s + decodes.busy_s)

    def _indices(self, pool: PoolConfig) -> list[int]:
        return [instance.index for instance in self._instances if instance.placement.pool == pool.name]

    def _tp_servers(self, indices: list[int]) -> int:
        """Servers of the tensor-parallel group that is spread most, of these instances."""
        per_server = self._plan.topology.gpus_per_node
        placements = [self._instances[index].placement for index in indices]
        return max(
            len({gpu // per_server for gpu in gpus})
            for placement in placements
            for rank in range(placement.partition.dp)
            for gpus in placement.rank_gpus(rank)
        )

    def _pool(self, pool: PoolConfig, makespan_s: float, arriving_held_s: float) -> PoolSummary:
        """``arriving_held_s``: time for which its instances were held while requests arrived, all together."""
        indices = self._indices(pool)
        busy_s = self._log.busy_ps[indices] / PS_PER_S
        loaded_s = float(self._log.busy_at_arrival_ps[indices].sum()) / PS_PER_S
        stages_s = makespan_s * pool.pp
        computing_s = float(self._log.computing_ps[indices].sum()) / PS_PER_S
        mean, peak = self._log.kv_share(indices, makespan_s)
        own = self._plan.pools[pool.name]
        gpu, max_seqs = own.gpu, own.engine.max_seqs
        worked = self._worked(pool)
        kinds, work = worked.kinds, worked.of_gpu
        ranks = pool.dp * sum(activity.iterations for activity in kinds)
        held = pool.instances * self._held.get(pool.name, 1.0)
        slots_s = makespan_s * held * pool.dp * max_seqs
        total_s = float(busy_s.sum())
        return PoolSummary(
            name=pool.name,
            role=pool.role,
            hardware=gpu.name,
            times_as=gpu.times_as,
            clock_as=gpu.clock_as,
            instances=pool.instances,
            tp=pool.tp,
            ep=pool.ep,
            dp=pool.dp,
            pp=pool.pp,
            gpus=pool.instances * pool.gpus_per_instance,
            tp_servers=self._tp_servers(indices),
            kv_blocks_per_rank=self._instances[indices[0]].ranks[0].state.usable_blocks,
            prefix_caching=own.engine.prefix_caching,
            busy_share=_ratio(total_s, stages_s * held),
            busy_share_max=None if pool.name in self._held else _ratio(float(busy_s.max()), stages_s),
            busy_under_load=_ratio(loaded_s, arriving_held_s * pool.pp),
            prompts_share=_ratio(kinds[0].busy_s, total_s),
            prompts_host_share=_ratio(kinds[0].host_s, kinds[0].busy_s),
            decodes_host_share=_ratio(kinds[1].host_s, kinds[1].busy_s),
            communication_share=_ratio(max(total_s - computing_s, 0.0), total_s),
            max_seqs=max_seqs,
            batch_mean=_ratio(sum(activity.requests for activity in kinds), ranks),
            batch_use=_ratio(sum(activity.request_s for activity in kinds), slots_s),
            mfu=_ratio(sum(each.compute_s for each in work), total_s),
            memory_use=_ratio(sum(each.memory_s for each in work), total_s),
            kv_use_mean=mean,
            kv_use_max=peak,
            ffn=worked.ffn(pool),
        )


def _arriving(tally: RequestTally) -> tuple[float, float]:
    """From the first arrival to the last, in s."""
    if not len(tally):
        return 0.0, 0.0
    return float(tally.arrived_ps.min()) / PS_PER_S, float(tally.arrived_ps.max()) / PS_PER_S


def _held_share(planner: PlannerSummary | None) -> dict[str, float]:
    """Share of the run's time for which the GPUs of a pool were held, by pools that are planned."""
    if planner is None:
        return {}
    return {pool.name: pool.gpu_hours / pool.all_gpu_hours for pool in planner.pools if pool.all_gpu_hours}


def _model_error(sources: TimeSources, tally: RequestTally) -> ModelError:
    whole, to_first = tally.mean_parts_s(), tally.mean_ttft_parts_s()
    after = {part: whole[part] - to_first.get(part, 0.0) for part in whole}
    ttft, tpot, e2e = (sources.error_of(parts) for parts in (to_first, after, whole))
    return ModelError(ttft=ttft, tpot=tpot, e2e=e2e)


def _objectives(tally: RequestTally, slo: SloConfig) -> Objectives:
    return Objectives(
        ttft_s=slo.ttft_s,
        tpot_s=slo.tpot_s,
        e2e_s=slo.e2e_s,
        attainment=slo.attainment,
        window_s=slo.window_s,
        targets=judge(tally, slo),
    )


def _not_served(tally: RequestTally) -> tuple[NotServed, ...]:
    outcomes = tally.not_served.most_frequent()[:MOST_REASONS]
    return tuple(NotServed(status=each.status, reason=each.reason, requests=each.requests) for each in outcomes)


def _throughput(tally: RequestTally, completed: int, makespan_s: float) -> Throughput:
    return Throughput(
        requests_per_s=_rate(completed, makespan_s),
        input_tokens_per_s=_rate(tally.input_tokens, makespan_s),
        output_tokens_per_s=_rate(tally.output_tokens, makespan_s),
    )


def _rate(count: int, duration_s: float) -> float | None:
    return _ratio(count, duration_s)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _histogram(values_s: NDArray[np.float64], counts: NDArray[np.int64]) -> Histogram:
    """Counts in bins of equal ratio from the smallest to the largest positive gap; before them, of tokens that come
    together, as with drafts, in a bin from 0 to 0."""
    positive = values_s > 0
    if not positive.any():
        return Histogram()
    low, high = float(values_s[positive].min()), float(values_s[positive].max())
    edges = np.geomspace(low * 0.999, high * 1.001, ITL_HISTOGRAM_BINS + 1)
    binned, _ = np.histogram(values_s[positive], bins=edges, weights=counts[positive])
    edges_s, binned_counts = tuple(edges.tolist()), tuple(np.rint(binned).astype(int).tolist())
    together = int(counts[~positive].sum())
    if not together:
        return Histogram(edges_s=edges_s, counts=binned_counts)
    return Histogram(edges_s=(0.0, 0.0, *edges_s), counts=(together, 0, *binned_counts))
