"""Where instances stand: pools placed on the GPUs of a topology, and the rank groups of each instance."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aicb import Partition
from boundary.errors import InputError
from netsim.topologies.build import FileSpec, build
from netsim.topology import Topology
from vidur_pd.config import ClusterConfig, PoolConfig, Role

_log = logging.getLogger(__name__)


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


def build_cluster(config: ClusterConfig, gpus: Mapping[str, str], twins: Mapping[str, str] | None = None) -> Cluster:
    """Builds the topology, sized for the pools where its size is left open, and places the instances in order.

    An instance that fits into a node never straddles two; a larger one starts on a node border, and so does a pool with
    another GPU than the pool before: a server has GPUs of one kind. What then stays idle is warned about.

    Args:
        config: topology and pools.
        gpus: name of the GPU of each pool.
        twins: pools whose instances stand on the GPUs of those of another pool, as many and as large, which comes
            before them.

    Raises: InputError, where the pools need more GPUs than a topology of given size has.
    """
    partitions = {pool.name: partition_of(pool) for pool in config.pools}
    twins = twins or {}
    standing = tuple(pool for pool in config.pools if pool.name not in twins)
    spec = config.topology
    width = None if isinstance(spec, FileSpec) else spec.gpus_per_node
    needed = sum(pool.instances * pool.gpus_per_instance for pool in standing)
    if width is not None:
        needed = max(last for _, _, last in _spans(standing, gpus, width))
    try:
        topology = build(spec, needed)
    except InputError as error:
        raise InputError(f"{error}{_mixed(config.pools, gpus)}") from None
    placements: list[Placement] = []
    numbers = {pool.name: itertools.count() for pool in config.pools}
    for pool, first, last in _spans(standing, gpus, topology.gpus_per_node):
        before = placements[-1] if placements else None
        if last > topology.gpus:
            raise InputError(
                f"cluster.pools.{pool.name}: the pools need {last} GPUs up to here (instances do not straddle nodes of "
                f"{topology.gpus_per_node}, which have GPUs of one kind{_kinds(before, pool, gpus)}), the topology has "
                f"{topology.gpus}"
            )
        if before is not None and first > before.gpus[-1] + 1 and gpus[before.pool] != gpus[pool.name]:
            _log.warning(
                "cluster.pools.%s: begins on a server of its own%s; %d GPUs of the server before stay idle",
                pool.name,
                _kinds(before, pool, gpus),
                first - before.gpus[-1] - 1,
            )
        name = f"{pool.name}-{next(numbers[pool.name])}"
        placements.append(Placement(name, pool.name, pool.role, partitions[pool.name], tuple(range(first, last))))
    return Cluster(topology, _with_twins(config.pools, placements, twins))


def _with_twins(
    pools: Sequence[PoolConfig], placements: Sequence[Placement], twins: Mapping[str, str]
) -> tuple[Placement, ...]:
    """Placements in the order of the pools, those of twins too."""
    placed: list[Placement] = []
    for pool in pools:
        own = [place for place in placements if place.pool == twins.get(pool.name, pool.name)]
        if pool.name in twins:
            partition = partition_of(pool)
            own = [
                Placement(f"{pool.name}-{number}", pool.name, pool.role, partition, place.gpus)
                for number, place in enumerate(own)
            ]
        placed += own
    return tuple(placed)


def _mixed(pools: Sequence[PoolConfig], gpus: Mapping[str, str]) -> str:
    if len(set(gpus.values())) == 1:
        return ""
    kinds = ", ".join(f"{pool.name} {gpus[pool.name]}" for pool in pools)
    return f"; a server has GPUs of one kind, found in pools {kinds}"


def _kinds(before: Placement | None, pool: PoolConfig, gpus: Mapping[str, str]) -> str:
    if before is None or gpus[before.pool] == gpus[pool.name]:
        return ""
    return f": {gpus[pool.name]} here, {gpus[before.pool]} in pool {before.pool}"


def partition_of(pool: PoolConfig) -> Partition:
    """Parallel sizes of a pool's instances. Raises: InputError, where they do not go together."""
    try:
        return Partition(pool.tp, pool.ep, pool.dp, pool.pp, pool.redundant_experts)
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}.{error}") from None


def _spans(
    pools: tuple[PoolConfig, ...], gpus: Mapping[str, str], gpus_per_node: int
) -> Iterator[tuple[PoolConfig, int, int]]:
    """(pool, first GPU, one past the last) of each instance in placement order."""
    free, kind = 0, ""
    for pool in pools:
        for _ in range(pool.instances):
            size = pool.gpus_per_instance
            used_of_node = free % gpus_per_node
            if used_of_node and (used_of_node + size > gpus_per_node or gpus[pool.name] != kind):
                free += gpus_per_node - used_of_node
            kind = gpus[pool.name]
            yield pool, free, free + size
            free += size
