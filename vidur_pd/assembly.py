"""The parts of a simulation, built from its configuration: model, cluster, instances, network, coupling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

import simccl
from aicb import IterationModel, Model, Precision, load_model
from aicb.gpu import Gpu, get_gpu
from aicb.memory import instance_memory
from netsim import GraphHandle, NetworkBackend, SharesCapacity, Topology, create_backend
from netsim.units import PS_PER_MS, PS_PER_US
from vidur_pd.cluster import Placement, build_cluster, partition_of, with_nvlink_of
from vidur_pd.config import EngineConfig, PoolConfig, SimulationConfig
from vidur_pd.errors import InputError
from vidur_pd.events import EventQueue
from vidur_pd.execution.communication import CommunicationPricer
from vidur_pd.execution.exact import ExactLauncher
from vidur_pd.execution.executor import InstanceExecutor
from vidur_pd.execution.fluid import FluidLauncher, Transfers
from vidur_pd.execution.isolated import IsolatedLauncher
from vidur_pd.instance import Instance, Launcher
from vidur_pd.kv import BlockPool, CountingBlockPool, PrefixCachingBlockPool
from vidur_pd.scheduling import VllmV1Scheduler

HASH_BLOCK_TOKENS = 512
"""Prompt tokens behind one block hash where a workload has none of its own (Mooncake traces)."""


class Coupling(Launcher, Protocol):
    """A launcher that also hears of other traffic and of its own flow graphs."""

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on."""
        ...

    def completed(self, handle: GraphHandle, at_ps: int) -> None:
        """A flow graph that is no transfer's has completed."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PoolParts:
    """What the instances of a pool share."""

    pool: PoolConfig
    engine: EngineConfig
    gpu: Gpu
    precision: Precision
    iteration_model: IterationModel
    num_kv_blocks: int
    max_model_len: int


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
    """By GPU."""

    @property
    def coupling(self) -> Literal["isolated", "fluid", "exact"]:
        """The coupling in force: without shared capacity there is nothing for ``fluid`` to couple."""
        wanted = self.config.network.coupling
        return "isolated" if wanted == "fluid" and not isinstance(self.network, SharesCapacity) else wanted

    def launcher(self, queue: EventQueue, transfers: Transfers) -> Coupling:
        """The coupling of iterations with the network that the configuration names."""
        match self.coupling:
            case "isolated":
                return IsolatedLauncher(queue)
            case "fluid":
                assert isinstance(self.network, SharesCapacity)
                capacity_bps = self.topology.capacity_bps.astype(np.float64)
                return FluidLauncher(queue, self.network, capacity_bps, transfers)
            case "exact":
                pricers = {name: self.pricers[parts.gpu.name] for name, parts in self.pools.items()}
                return ExactLauncher(queue, self.network, pricers)

    @property
    def request_latency_ps(self) -> int:
        """From the client to the scheduler and from the sampled token back; charged once, before routing."""
        given_ms = self.config.engine.request_latency_ms
        if given_ms is not None:
            return round(given_ms * PS_PER_MS)
        entry = next(parts for parts in self.pools.values() if parts.pool.role != "decode")
        return round(entry.iteration_model.host.request_latency_us * PS_PER_US)

    @property
    def wire_precision(self) -> Precision:
        """Formats of what is handed over; equal for all pools that hand over."""
        handing = [parts for parts in self.pools.values() if parts.pool.role != "mixed"]
        return (handing or list(self.pools.values()))[0].precision


def assemble(config: SimulationConfig, hash_block_tokens: int | None = None) -> Parts:
    """Builds all parts; ``hash_block_tokens`` is the block size of the workload's hashes.

    Raises: InputError of any package, for everything that can be wrong before simulated time starts.
    """
    _check_coupling(config)
    model = load_model(config.model)
    get_gpu(config.hardware)
    nvlink_bps = round(simccl.gpu_named(config.hardware).nvlink_gbytes_per_s * 8e9)
    config = config.model_copy(update={"cluster": with_nvlink_of(config.cluster, nvlink_bps)})
    cluster = build_cluster(config.cluster)
    pools = {pool.name: _pool_parts(config, pool, model) for pool in config.cluster.pools}
    _check_wire(config, pools)
    network = create_backend(config.network.backend, cluster.topology)
    pricers = {
        gpu: CommunicationPricer(cluster.topology, config.network.backend, gpu)
        for gpu in sorted({config.hardware_of(pool) for pool in config.cluster.pools})
    }
    instances = tuple(
        _instance(index, placement, pools[placement.pool], pricers, hash_block_tokens or HASH_BLOCK_TOKENS)
        for index, placement in enumerate(cluster.placements)
    )
    return Parts(config, model, cluster.topology, instances, pools, network, pricers)


def _check_coupling(config: SimulationConfig) -> None:
    network = config.network
    if network.coupling == "exact" and any(pool.pp > 1 for pool in config.cluster.pools):
        raise InputError("network.coupling: found 'exact' with a pool of pp > 1, expected 'isolated' or 'fluid'")
    if network.coupling == "exact" and network.backend == "analytical":
        raise InputError("network.coupling: found 'exact' with backend 'analytical', which has no contention to couple")


def _check_wire(config: SimulationConfig, pools: dict[str, PoolParts]) -> None:
    """The KV of all pools that hand it over has one format and one block size."""
    if not config.is_disaggregated:
        return
    for field in ("kv", "block_tokens"):
        found = {p.pool.name: getattr(p.engine, field) for p in pools.values() if p.pool.role != "mixed"}
        if len(set(found.values())) > 1:
            text = ", ".join(f"{name} {value}" for name, value in found.items())
            raise InputError(f"engine.{field}: found {text}, expected one value for pools that hand KV over")


def _pool_parts(config: SimulationConfig, pool: PoolConfig, model: Model) -> PoolParts:
    engine, gpu = config.engine_of(pool), get_gpu(config.hardware_of(pool))
    partition = partition_of(pool)
    precision = Precision(weights=engine.weights, kv=engine.kv)
    try:
        memory = instance_memory(
            model,
            partition,
            precision,
            gpu,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            max_batched_tokens=engine.max_batched_tokens,
            max_seqs=engine.max_seqs,
            block_tokens=engine.block_tokens,
            cuda_graphs=engine.cuda_graphs,
        )
        iteration_model = IterationModel(
            model, partition, precision, gpu, cuda_graphs=engine.cuda_graphs, max_seqs=engine.max_seqs
        )
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}: {error}") from error
    max_model_len = engine.max_model_len or model.max_context_tokens
    if max_model_len > model.max_context_tokens:
        raise InputError(
            f"engine.max_model_len: found {max_model_len}, "
            f"expected at most the {model.max_context_tokens} tokens of {model.name}"
        )
    return PoolParts(
        pool=pool,
        engine=engine,
        gpu=gpu,
        precision=precision,
        iteration_model=iteration_model,
        num_kv_blocks=engine.num_kv_blocks or memory.num_kv_blocks,
        max_model_len=max_model_len,
    )


def _instance(
    index: int,
    placement: Placement,
    parts: PoolParts,
    pricers: dict[str, CommunicationPricer],
    hash_block_tokens: int,
) -> Instance:
    engine = parts.engine

    def block_pool() -> BlockPool:
        if engine.prefix_caching:
            return PrefixCachingBlockPool(parts.num_kv_blocks, engine.block_tokens, hash_block_tokens)
        return CountingBlockPool(parts.num_kv_blocks, engine.block_tokens)

    schedulers = [
        VllmV1Scheduler(
            role=placement.role,
            max_batched_tokens=engine.max_batched_tokens,
            max_seqs=engine.max_seqs,
            max_model_len=parts.max_model_len,
            long_prefill_token_threshold=engine.long_prefill_token_threshold,
            pool=block_pool(),
        )
        for _ in range(placement.partition.dp)
    ]
    return Instance(
        index, placement, schedulers, InstanceExecutor(placement, parts.iteration_model, pricers[parts.gpu.name])
    )
