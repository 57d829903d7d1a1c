"""Where instances stand: pools placed on the GPUs of a topology, and the rank groups of each instance."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
    """Without FFN workers."""
    ffn: Partition | None = None
    """Of FFN workers."""
    ffn_gpus: tuple[int, ...] = ()
    """Ordered (data-parallel group, tensor-parallel rank)."""

    @property
    def all_gpus(self) -> tuple[int, ...]:
        """FFN workers last."""
        return self.gpus + self.ffn_gpus

    def ffn_groups(self) -> tuple[tuple[int, ...], ...]:
        """[dp][tp] FFN workers that divide networks."""
        assert self.ffn is not None, f"{self.name} has no FFN workers"
        tp = self.ffn.tp
        return tuple(self.ffn_gpus[first : first + tp] for first in range(0, len(self.ffn_gpus), tp))

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


@dataclass(frozen=True, slots=True)
class PoolGpus:
    """Names of the GPUs of a pool."""

    own: str
    ffn: str
    """Of FFN workers; where there are none, the same."""

    def __str__(self) -> str:
        return self.own if self.own == self.ffn else f"{self.own} and {self.ffn}"


def build_cluster(
    config: ClusterConfig, gpus: Mapping[str, PoolGpus], twins: Mapping[str, str] | None = None
) -> Cluster:
    """Builds the topology, sized for the pools where its size is left open, and places the instances in order.

    An instance that fits into a node never straddles two; a larger one starts on a node border, and so does a pool with
    another GPU than the pool before: a server has GPUs of one kind. FFN workers are placed behind the instance's other
    GPUs as if they were an instance of their own. What then stays idle is warned about.

    Args:
        config: topology and pools.
        gpus: names of the GPUs of each pool.
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
        needed = max(span.last for span in _spans(standing, gpus, width))
    try:
        topology = build(spec, needed)
    except InputError as error:
        field = "cluster.topology.file" if isinstance(spec, FileSpec) else "cluster.topology"
        reason = str(error).removeprefix("topology ")
        raise InputError(f"{field}: {reason}{_mixed(config.pools, gpus)}") from None
    placements: list[Placement] = []
    numbers = {pool.name: itertools.count() for pool in config.pools}
    before: _Span | None = None
    for span in _spans(standing, gpus, topology.gpus_per_node):
        pool, own = span.pool, tuple(range(span.first, span.last))
        if span.last > topology.gpus:
            raise InputError(
                f"cluster.pools.{pool.name}: the pools need {span.last} GPUs up to here (instances do not straddle "
                f"nodes of {topology.gpus_per_node}, which have GPUs of one kind{_kinds(before, span)}), the topology "
                f"has {topology.gpus}"
            )
        if before is not None and span.first > before.last and before.gpu != span.gpu:
            _log.warning(
                "cluster.pools.%s: begins on a server of its own%s; %d GPUs of the server before stay idle",
                pool.name,
                _kinds(before, span),
                span.first - before.last,
            )
        before = span
        if span.is_ffn:
            placements[-1] = replace(placements[-1], ffn=ffn_partition_of(pool), ffn_gpus=own)
            continue
        name = f"{pool.name}-{next(numbers[pool.name])}"
        placements.append(Placement(name, pool.name, pool.role, partitions[pool.name], own))
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


def _mixed(pools: Sequence[PoolConfig], gpus: Mapping[str, PoolGpus]) -> str:
    if len({name for each in gpus.values() for name in (each.own, each.ffn)}) == 1:
        return ""
    kinds = ", ".join(f"{pool.name} {gpus[pool.name]}" for pool in pools)
    return f"; a server has GPUs of one kind, found in pools {kinds}"


def _kinds(before: _Span | None, span: _Span) -> str:
    if before is None or before.gpu == span.gpu:
        return ""
    return f": {span.gpu} here, {before.gpu} in pool {before.pool.name}"


def partition_of(pool: PoolConfig) -> Partition:
    """Parallel sizes of a pool's instances. Raises: InputError, where they do not go together."""
    try:
        return Partition(pool.tp, pool.ep, pool.dp, pool.pp, pool.redundant_experts)
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}.{error}") from None


def ffn_partition_of(pool: PoolConfig) -> Partition | None:
    """Parallel sizes of the FFN workers of a pool's instances, if there are any. Raises: as `partition_of`."""
    if pool.ffn is None:
        return None
    try:
        return Partition(pool.ffn.tp, pool.ffn.ep, pool.ffn.dp, 1, pool.ffn.redundant_experts)
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}.ffn.{error}") from None


@dataclass(frozen=True, slots=True)
class _Span:
    """GPUs in a row: of an instance, or of its FFN workers."""

    pool: PoolConfig
    is_ffn: bool
    gpu: str
    first: int
    last: int
    """One past the last."""


def _spans(pools: Sequence[PoolConfig], gpus: Mapping[str, PoolGpus], gpus_per_node: int) -> Iterator[_Span]:
    """In placement order."""
    free, kind = 0, ""
    for pool in pools:
        names = gpus[pool.name]
        parts = [(False, names.own, pool.tp * pool.dp * pool.pp)]
        parts += [] if pool.ffn is None else [(True, names.ffn, pool.ffn.gpus)]
        for _ in range(pool.instances):
            for is_ffn, name, size in parts:
                used_of_node = free % gpus_per_node
                if used_of_node and (used_of_node + size > gpus_per_node or name != kind):
                    free += gpus_per_node - used_of_node
                kind = name
                yield _Span(pool, is_ffn, name, free, free + size)
                free += size
