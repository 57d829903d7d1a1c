"""The state of one simulation: network, fabric, prices of collectives, and instances with their ranks, all idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import simccl
from netsim import Fabric, NetworkBackend, SharesCapacity, capabilities_of, create_backend
from vidur_pd._core import Loop, RunningIteration
from vidur_pd.execution.clock import EventQueue
from vidur_pd.execution.communication.pricer import CommunicationPricer
from vidur_pd.execution.coupling.exact import ExactLauncher, GroupPricers
from vidur_pd.execution.coupling.expert_weights import InstanceExperts
from vidur_pd.execution.coupling.plan import Treatment
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.execution.instances.placement import Placement
from vidur_pd.execution.iteration.pricer import IterationPricer, StageCommunications
from vidur_pd.execution.iteration.workers import WorkerIterationPricer
from vidur_pd.scheduling import AskedPolicy, Drafts, Policy, RankState
from vidur_pd.scheduling.kv_blocks import BlockPool, CountingBlockPool, KvGroups, PrefixCacheSizes
from vidur_pd.simulation.plan import SimulationPlan
from vidur_pd.simulation.pools import PoolModel
from vidur_pd.workload import generator

if TYPE_CHECKING:
    from netsim.backends.calibration import Calibration
    from vidur_pd.execution.communication.real_traffic import RealTraffic

BrokenOff = Callable[[RunningIteration], None]
"""Callback for iterations that were aborted."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulationState:
    """State of one run: all that a run of a plan changes."""

    plan: SimulationPlan
    network: NetworkBackend
    fabric: Fabric
    """State of links (down, slow), which the network follows."""
    communication_pricers: dict[str, CommunicationPricer]
    """By name of the GPU whose interconnect the collectives use."""
    instances: tuple[Instance, ...]
    iteration_pricers: tuple[IterationPricer, ...]
    """[instances]"""
    experts: tuple[InstanceExperts | None, ...]
    """[instances] ``None`` where they do not change."""
    traffic: RealTraffic | None
    """``None`` where all is simulated."""

    def launcher(
        self, loop: Loop, queue: EventQueue, communications: StageCommunications, broken_off: BrokenOff
    ) -> ExactLauncher | None:
        """Couples iterations with the network as configured; returns a launcher where the loop does not launch them."""
        match self.plan.coupling.in_force:
            case "isolated":
                return None
            case "fluid":
                assert isinstance(self.network, SharesCapacity)
                loop.couple(self.network.load_periodically(len(self.instances)))
                return None
            case "exact":
                pools = [self.plan.pools[instance.placement.pool] for instance in self.instances]
                known = self.communication_pricers
                pricers = [GroupPricers(known[p.gpu.interconnect], known[p.ffn_gpu.interconnect]) for p in pools]
                return ExactLauncher(loop, communications, self.network, pricers, queue, broken_off)


def assemble(plan: SimulationPlan) -> SimulationState:
    """The state in which a run begins.

    Raises: InputError, where the network backend cannot carry the plan, or a policy of the user's own cannot be made.
    """
    config, topology = plan.config, plan.topology
    stack, roce = simccl.Stack(config.network.collectives), config.network.roce
    traffic, calibration = _measurements(plan)
    messages = calibration if traffic is None else traffic
    network = create_backend(plan.coupling.transfer_backend, topology, roce, calibration=messages)
    fabric = Fabric(topology)
    fabric.carry_with(network)
    priced_on = None if plan.coupling.collectives is Treatment.SIMULATED else fabric
    pricers = {
        gpu: CommunicationPricer(
            topology,
            plan.coupling.pricing_backend,
            gpu,
            stack,
            nvls=config.network.nvls,
            roce=roce,
            live=priced_on,
            calibration=calibration,
            traffic=traffic,
        )
        for gpu in sorted({gpu.interconnect for pool in plan.pools.values() for gpu in (pool.gpu, pool.ffn_gpu)})
    }
    instances = tuple(_instance(plan, index, placement) for index, placement in enumerate(plan.placements))
    experts = tuple(_experts(plan.pools[placement.pool]) for placement in plan.placements)
    of_iterations = tuple(
        _iteration_pricer(plan, pricers, placement, own)
        for placement, own in zip(plan.placements, experts, strict=True)
    )
    return SimulationState(plan, network, fabric, pricers, instances, of_iterations, experts, traffic)


def _measurements(plan: SimulationPlan) -> tuple[RealTraffic | None, Calibration | None]:
    """Real traffic on backend ``rdma``, or the calibration of the network that is simulated."""
    network = plan.config.network
    if capabilities_of(network.backend).sends_traffic:
        from vidur_pd.execution.communication.real_traffic import real_traffic

        return real_traffic(network, (gpu for placement in plan.placements for gpu in placement.all_gpus)), None
    if network.calibration is not None:
        from netsim.formats.calibration_file import read_calibration

        return None, read_calibration(network.calibration)
    return None, None


def _experts(pool: PoolModel) -> InstanceExperts | None:
    if pool.first_experts is None:
        return None
    placed = pool.first_experts()
    return InstanceExperts(pool.engine, placed, pool.iteration_model.with_experts(placed))


def _iteration_pricer(
    plan: SimulationPlan,
    pricers: dict[str, CommunicationPricer],
    placement: Placement,
    experts: InstanceExperts | None,
) -> IterationPricer:
    pool = plan.pools[placement.pool]
    if pool.workers is not None:
        return WorkerIterationPricer(
            placement,
            pool.workers,
            pricers[pool.gpu.interconnect],
            pricers[pool.ffn_gpu.interconnect],
            runs_schedule=plan.coupling.in_force == "exact",
        )
    return IterationPricer(
        placement,
        pool.iteration_model if experts is None else experts.model,
        pricers[pool.gpu.interconnect],
        drafting=pool.drafting,
        drafts_per_step=pool.drafts_per_step,
        halves=pool.halves,
        fast_forward=pool.engine.fast_forward,
    )


def _instance(plan: SimulationPlan, index: int, placement: Placement) -> Instance:
    pool = plan.pools[placement.pool]
    engine, drafting = pool.engine, pool.drafting

    groups = KvGroups(
        whole=pool.kv_groups.whole,
        spanned=pool.kv_groups.spanned,
        most_spanned_blocks=pool.kv_groups.most_spanned_blocks(engine.block_tokens),
    )

    def block_pool() -> BlockPool:
        if not engine.prefix_caching:
            return CountingBlockPool(pool.num_kv_blocks, engine.block_tokens, groups)
        drops = drafting is not None and drafting.drops_last_hit
        sizes = PrefixCacheSizes(pool.num_kv_blocks, engine.block_tokens, plan.hash_block_tokens, groups, drops)
        return (pool.policy or Policy).prefix_cache(pool.policy_options, sizes)

    def drafts(rank: int) -> Drafts | None:
        if drafting is None or not pool.drafts_per_step:
            return None
        stream = generator(plan.config.seed, f"speculative.{placement.name}.{rank}")
        return Drafts(drafting.acceptances, stream, match=drafting.match)

    states = [
        RankState(
            block_pool(),
            role=plan.role_of(placement),
            max_batched_tokens=pool.max_batched_tokens,
            max_seqs=engine.max_seqs,
            max_model_len=pool.max_model_len,
            long_prefill_token_threshold=engine.long_prefill_token_threshold,
            drafts_per_step=pool.drafts_per_step,
            watermark_blocks=pool.watermark_blocks,
            pipeline_stages=placement.partition.pp,
            plans_ahead=pool.plans_ahead,
            by_priority=engine.scheduling_policy == "priority",
            chunks_prompts=engine.chunked_prefill,
            pipelines_chunks=pool.pipelines_chunks,
            lookahead_tokens=pool.lookahead_tokens,
        )
        for _ in range(placement.partition.dp)
    ]
    asked = [
        AskedPolicy(engine.policy, pool.policy, state, pool.policy_options)
        for state in states
        if pool.policy is not None
    ]
    ranks = [(state, drafts(rank)) for rank, state in enumerate(states)]
    return Instance(index, placement, ranks, asked)
