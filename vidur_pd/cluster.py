"""Where instances stand: pools placed on the GPUs of a topology, and the rank groups of each instance."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from aicb import Partition
from boundary.errors import InputError
from netsim.config import FileSpec, build
from netsim.topology import Topology
from vidur_pd.config import ClusterConfig, PoolConfig, Role


@dataclass(frozen=True, slots=True)
class Placement:
    """One instance on its GPUs, ordered (pipeline stage, data-parallel rank, tensor-parallel rank)."""

    name: str
    pool: str
    role: Role
    partition: Partition
    gpus: tuple[int, ...]

    def stage_gpus(self, stage: int) -> tuple[int, ...]:
        """The ``tp · dp`` GPUs of a pipeline stage: the expert-parallel group."""
        width = self.partition.tp * self.partition.dp
        return self.gpus[stage * width : (stage + 1) * width]

    def tensor_group(self, stage: int, rank: int) -> tuple[int, ...]:
        """The ``tp`` GPUs of one data-parallel rank in one stage."""
        tp = self.partition.tp
        return self.stage_gpus(stage)[rank * tp : (rank + 1) * tp]

    def rank_gpus(self, rank: int) -> tuple[tuple[int, ...], ...]:
        """[stage][tp] GPUs that hold the KV cache of one data-parallel rank."""
        return tuple(self.tensor_group(stage, rank) for stage in range(self.partition.pp))


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """A topology and the instances on it."""

    topology: Topology
    placements: tuple[Placement, ...]


def with_nvlink_of(config: ClusterConfig, nvlink_bps: int) -> ClusterConfig:
    """The same cluster with this NVLink rate, where the topology gives none of its own."""
    spec = config.topology
    if isinstance(spec, FileSpec) or "nvlink" in spec.model_fields_set:
        return config
    return config.model_copy(update={"topology": spec.model_copy(update={"nvlink": nvlink_bps})})


def build_cluster(config: ClusterConfig) -> Cluster:
    """Builds the topology, sized for the pools where its size is left open, and places the instances in order.

    An instance that fits into a node never straddles two; a larger one starts on a node border.

    Raises: InputError, where the pools need more GPUs than a topology of given size has.
    """
    partitions = {pool.name: partition_of(pool) for pool in config.pools}
    spec = config.topology
    width = None if isinstance(spec, FileSpec) else spec.gpus_per_node
    needed = sum(pool.instances * pool.gpus_per_instance for pool in config.pools)
    if width is not None:
        needed = max(last for _, _, last in _spans(config.pools, width))
    topology = build(spec, needed)
    placements: list[Placement] = []
    numbers = {pool.name: itertools.count() for pool in config.pools}
    for pool, first, last in _spans(config.pools, topology.gpus_per_node):
        if last > topology.gpus:
            raise InputError(
                f"cluster.pools.{pool.name}: the pools need {last} GPUs up to here "
                f"(instances do not straddle nodes of {topology.gpus_per_node}), the topology has {topology.gpus}"
            )
        name = f"{pool.name}-{next(numbers[pool.name])}"
        placements.append(Placement(name, pool.name, pool.role, partitions[pool.name], tuple(range(first, last))))
    return Cluster(topology, tuple(placements))


def partition_of(pool: PoolConfig) -> Partition:
    """Parallel sizes of a pool's instances. Raises: InputError, where they do not go together."""
    try:
        return Partition(pool.tp, pool.ep, pool.dp, pool.pp, pool.redundant_experts)
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}.{error}") from None


def _spans(pools: tuple[PoolConfig, ...], gpus_per_node: int) -> Iterator[tuple[PoolConfig, int, int]]:
    """(pool, first GPU, one past the last) of each instance in placement order."""
    free = 0
    for pool in pools:
        for _ in range(pool.instances):
            size = pool.gpus_per_instance
            used_of_node = free % gpus_per_node
            if used_of_node and used_of_node + size > gpus_per_node:
                free += gpus_per_node - used_of_node
            yield pool, free, free + size
            free += size
