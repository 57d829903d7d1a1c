"""The parts of a simulation, built from its configuration: model, cluster, instances, network, coupling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import simccl
from aicb import Model, Precision, load_model
from boundary.errors import InputError
from netsim import Fabric, NetworkBackend, SharesCapacity, Topology, create_backend
from netsim.units import PS_PER_MS, PS_PER_US
from vidur_pd._core import Flight, Loop
from vidur_pd.cluster import Placement, build_cluster, with_nvlink_of
from vidur_pd.config import SimulationConfig
from vidur_pd.events import EventQueue
from vidur_pd.execution.communication import CommunicationPricer
from vidur_pd.execution.coupling import CouplingPlan, Treatment, plan_coupling
from vidur_pd.execution.exact import ExactLauncher
from vidur_pd.execution.executor import Exchanges, InstanceExecutor
from vidur_pd.faults.plan import Fault, plan_faults
from vidur_pd.instance import Instance
from vidur_pd.kv import BlockPool, CountingBlockPool, PrefixCachingBlockPool
from vidur_pd.kv_transfer.modes.registry import mode_class
from vidur_pd.pools import Estimators, PoolParts, gpu_of, pool_parts
from vidur_pd.routing.router import routing_class
from vidur_pd.scheduling import AskedPolicy, Drafts, RankState
from vidur_pd.workload import generator

BrokenOff = Callable[[Flight], None]
"""Is told of flights that have come to nothing."""

HASH_BLOCK_TOKENS = 512
"""Prompt tokens behind one block hash where a workload has none of its own (Mooncake traces)."""


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Everything a simulation is made of, except its state."""

    config: SimulationConfig
    model: Model
    topology: Topology
    instances: tuple[Instance, ...]
    pools: dict[str, PoolParts]
    network: NetworkBackend
    pricers: dict[str, CommunicationPricer]
    """By GPU whose interconnect collectives use."""
    coupling: CouplingPlan
    fabric: Fabric
    """What becomes of links; the network follows it."""
    faults: tuple[Fault, ...]

    def launcher(
        self, loop: Loop, queue: EventQueue, exchanges: Exchanges, broken_off: BrokenOff
    ) -> ExactLauncher | None:
        """Couples iterations with the network as the configuration says; what launches them where the loop does not."""
        match self.coupling.in_force:
            case "isolated":
                return None
            case "fluid":
                assert isinstance(self.network, SharesCapacity)
                loop.couple(self.network.load_periodically(len(self.instances)))
                return None
            case "exact":
                parts = [self.pools[instance.placement.pool] for instance in self.instances]
                pricers = [self.pricers[of_pool.gpu.interconnect] for of_pool in parts]
                return ExactLauncher(loop, exchanges, self.network, pricers, queue, broken_off)

    @property
    def request_latency_ps(self) -> int:
        """From the client to the scheduler and from the sampled token back; charged once, before routing."""
        given_ms = self.config.engine.request_latency_ms
        if given_ms is not None:
            return round(given_ms * PS_PER_MS)
        entry = next(parts for parts in self.pools.values() if parts.pool.role != "decode")
        return round(entry.iteration_model.host.request_latency_us * PS_PER_US)

    @property
    def kv_precision(self) -> Precision:
        """Formats of what is handed over; equal for all pools that hand over."""
        handing = [parts for parts in self.pools.values() if parts.pool.role != "mixed"]
        return (handing or list(self.pools.values()))[0].precision


def assemble(config: SimulationConfig, hash_block_tokens: int | None = None) -> Parts:
    """Builds all parts; ``hash_block_tokens`` is the block size of the workload's hashes.

    Raises: InputError of any package, for everything that can be wrong before simulated time starts.
    """
    plan = plan_coupling(config)
    model = load_model(config.model)
    gpus = {pool.name: gpu_of(config, pool) for pool in config.cluster.pools}
    # Of several kinds the fastest NVLink: what the others' collectives put on it is held back by their own rate.
    nvlink_bps = max(round(simccl.gpu_named(gpu.interconnect).nvlink_gbytes_per_s * 8e9) for gpu in gpus.values())
    config = config.model_copy(update={"cluster": with_nvlink_of(config.cluster, nvlink_bps)})
    cluster = build_cluster(config.cluster, {name: gpu.name for name, gpu in gpus.items()})
    estimators: Estimators = {}
    pools = {pool.name: pool_parts(config, pool, model, estimators) for pool in config.cluster.pools}
    _check_kv(config, pools)
    mode_class(config.kv_transfer.mode)
    for field, policy in config.routing:
        if policy is not None:
            routing_class(f"routing.{field}", policy)
    network = create_backend(config.network.backend, cluster.topology, config.network.roce)
    stack = simccl.Stack(config.network.collectives)
    roce = config.network.roce
    fabric = Fabric(cluster.topology)
    fabric.carry_with(network)
    priced_on = None if plan.collectives is Treatment.SIMULATED else fabric
    pricers = {
        gpu: CommunicationPricer(cluster.topology, plan.pricing_backend, gpu, stack, roce=roce, live=priced_on)
        for gpu in sorted({parts.gpu.interconnect for parts in pools.values()})
    }
    hash_block_tokens = hash_block_tokens or HASH_BLOCK_TOKENS
    instances = []
    for index, placement in enumerate(cluster.placements):
        parts = pools[placement.pool]
        pricer = pricers[parts.gpu.interconnect]
        instances.append(_instance(index, placement, parts, pricer, config.seed, hash_block_tokens))
    faults = plan_faults(config, cluster.topology, cluster.placements)
    return Parts(config, model, cluster.topology, tuple(instances), pools, network, pricers, plan, fabric, faults)


def _check_kv(config: SimulationConfig, pools: dict[str, PoolParts]) -> None:
    """The KV of all pools that hand it over has one format and one block size."""
    if not config.is_disaggregated:
        return
    for field in ("kv", "block_tokens"):
        found = {p.pool.name: getattr(p.engine, field) for p in pools.values() if p.pool.role != "mixed"}
        if len(set(found.values())) > 1:
            text = ", ".join(f"{name} {value}" for name, value in found.items())
            raise InputError(f"engine.{field}: found {text}, expected one value for pools that hand KV over")


def _instance(
    index: int,
    placement: Placement,
    parts: PoolParts,
    pricer: CommunicationPricer,
    seed: int,
    hash_block_tokens: int,
) -> Instance:
    engine, drafting = parts.engine, parts.drafting

    def block_pool() -> BlockPool:
        if engine.prefix_caching:
            return PrefixCachingBlockPool(parts.num_kv_blocks, engine.block_tokens, hash_block_tokens)
        return CountingBlockPool(parts.num_kv_blocks, engine.block_tokens)

    def drafts(rank: int) -> Drafts | None:
        if drafting is None:
            return None
        stream = generator(seed, f"speculative.{placement.name}.{rank}")
        return Drafts(drafting.drafts, drafting.acceptance, stream)

    states = [
        RankState(
            block_pool(),
            role=placement.role,
            max_batched_tokens=engine.max_batched_tokens,
            max_seqs=engine.max_seqs,
            max_model_len=parts.max_model_len,
            long_prefill_token_threshold=engine.long_prefill_token_threshold,
            drafts_per_step=0 if drafting is None else drafting.drafts,
        )
        for _ in range(placement.partition.dp)
    ]
    asked = [AskedPolicy(engine.policy, parts.policy, state) for state in states if parts.policy is not None]
    executor = InstanceExecutor(
        placement,
        parts.iteration_model,
        pricer,
        drafting=drafting,
        halves=parts.halves,
        fast_forward=engine.fast_forward,
    )
    ranks = [(state, drafts(rank)) for rank, state in enumerate(states)]
    return Instance(index, placement, ranks, executor, asked)
