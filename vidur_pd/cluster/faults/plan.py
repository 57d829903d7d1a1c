"""Faults of a configuration on a cluster: what fails, from when to when. Names that do not fit are refused here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim import BACKENDS, LinkKind, Topology, capabilities_of
from netsim.units import PS_PER_S
from vidur_pd.config import SimulationConfig
from vidur_pd.config.faults import (
    DrainFault,
    FaultSpec,
    GpuFault,
    InstanceFault,
    LinkFault,
    LinkFlapFault,
    NicFault,
    PfcStormFault,
    SlowGpuFault,
    SlowLinkFault,
    StragglerFault,
)
from vidur_pd.execution.instances.placement import Placement


@dataclass(frozen=True, slots=True)
class InstanceDown:
    """An instance loses everything and is not there."""

    instance: int


@dataclass(frozen=True, slots=True)
class Draining:
    """An instance gets no new requests."""

    instance: int


@dataclass(frozen=True, slots=True)
class Slowness:
    """An instance computes ``factor`` times as long."""

    instance: int
    factor: float


@dataclass(frozen=True, slots=True)
class LinksDown:
    """Directed links fail."""

    links: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinksSlow:
    """Directed links keep a share of their capacity."""

    links: tuple[int, ...]
    share: float


@dataclass(frozen=True, slots=True)
class Storm:
    """The far ends of directed links keep their senders paused in a class."""

    links: tuple[int, ...]
    priority: int


MOST_FAULTS = 1_000_000
"""Of a run; each takes about 1 KB, and up to a millisecond of simulating."""
MOST_NAMED = 8
"""Instances that a message lists."""

Effect = InstanceDown | Draining | Slowness | LinksDown | LinksSlow | Storm


@dataclass(frozen=True, slots=True)
class Fault:
    """One effect in one interval; ``until_ps`` ``None``: for ever."""

    kind: str
    target: str
    """The instance, GPU or cable, as the configuration names it."""
    begin_ps: int
    until_ps: int | None
    effect: Effect


def plan_faults(config: SimulationConfig, topology: Topology, placements: Sequence[Placement]) -> tuple[Fault, ...]:
    """All faults in the order of the configuration; a flap is one per time that it goes down.

    Raises: InputError, for an instance, a GPU or a cable that is not there, for a storm without packets, and for more
    than `MOST_FAULTS`.
    """
    _check_number(config.faults)
    names = _Names(topology, placements, config.network.backend)
    return tuple(
        fault for place, spec in enumerate(config.faults) for fault in _intervals(spec, names, f"faults.{place}")
    )


def _check_number(specs: Sequence[FaultSpec]) -> None:
    faults = 0
    for place, spec in enumerate(specs):
        faults += spec.count if isinstance(spec, LinkFlapFault) else 1
        if faults > MOST_FAULTS:
            raise InputError(
                f"faults.{place}: found {faults:,} faults up to here (a flap is one per time that it goes down), "
                f"expected at most {MOST_FAULTS:,}"
            )


class _Names:
    """What the names in faults stand for."""

    def __init__(self, topology: Topology, placements: Sequence[Placement], backend: str) -> None:
        self._topology = topology
        self._backend = backend
        self._instance = {placement.name: index for index, placement in enumerate(placements)}
        self._instance_of_gpu = {gpu: index for index, placement in enumerate(placements) for gpu in placement.all_gpus}
        self._node = {name: node for node, name in enumerate(topology.node_name)}

    @cached_property
    def _links(self) -> tuple[_LinksByNode, _LinksByNode]:
        """By the node that they leave, and by the one that they reach."""
        return _LinksByNode(self._topology.link_src), _LinksByNode(self._topology.link_dst)

    def instance(self, name: str, field: str) -> int:
        if name not in self._instance:
            known = list(self._instance)
            names = ", ".join(known) if len(known) <= MOST_NAMED else f"{known[0]} to {known[-1]}"
            raise InputError(f"{field}.instance: found {name!r}, expected one of {names}")
        return self._instance[name]

    def instance_of_gpu(self, gpu: int, field: str) -> int:
        if gpu not in self._instance_of_gpu:
            used = self._instance_of_gpu
            raise InputError(f"{field}.gpu: found {gpu}, expected a GPU of an instance, {min(used)} to {max(used)}")
        return self._instance_of_gpu[gpu]

    def nic_links(self, gpu: int, field: str) -> tuple[int, ...]:
        if gpu >= self._topology.gpus:
            raise InputError(f"{field}.gpu: found {gpu}, expected 0 to {self._topology.gpus - 1}")
        at_gpu = np.unique(np.concatenate([links.of(gpu) for links in self._links]))
        links = at_gpu[self._topology.link_kind[at_gpu] != LinkKind.NVLINK]
        if not len(links):
            raise InputError(f"{field}.gpu: found {gpu}, expected a GPU with a NIC")
        return tuple(links.tolist())

    def cable(self, between: tuple[str, str], field: str) -> tuple[int, ...]:
        """Links from the first node to the second, then those back."""
        for name in between:
            if name not in self._node:
                known = self._topology.node_name
                raise InputError(f"{field}.between: found {name!r}, expected a node such as {known[0]} or {known[-1]}")
        first, second = (self._node[name] for name in between)
        links = [*self._between(first, second), *self._between(second, first)]
        if not links:
            ends = sorted(set(self._topology.link_dst[self._links[0].of(first)].tolist()))
            near = ", ".join(self._topology.node_name[node] for node in ends[:8])
            raise InputError(
                f"{field}.between: found no cable from {between[0]} to {between[1]}, expected one to {near}"
            )
        return tuple(links)

    def storm_links(self, spec: PfcStormFault, field: str) -> tuple[int, ...]:
        if not capabilities_of(self._backend).simulates_packets:
            pausing = [name for name in BACKENDS if capabilities_of(name).simulates_packets]
            raise InputError(
                f"{field}.kind: found 'pfc_storm' with backend {self._backend!r}, which has no pauses, "
                f"expected backend {' or '.join(pausing)}"
            )
        links = self.cable(spec.between, field)
        if (self._topology.link_kind[list(links)] == LinkKind.NVLINK).any():
            raise InputError(f"{field}.between: found an NVLink, expected a cable on which PFC pauses packets")
        return tuple(link for link in links if self._topology.link_dst[link] == self._node[spec.between[0]])

    def _between(self, src: int, dst: int) -> list[int]:
        leaving = self._links[0].of(src)
        found: list[int] = leaving[self._topology.link_dst[leaving] == dst].tolist()
        return found


class _LinksByNode:
    """Directed links by the node at one of their ends."""

    def __init__(self, ends: NDArray[np.int32]) -> None:
        """``ends``: [links] nodes."""
        self._order = np.argsort(ends, kind="stable")
        self._ends = ends[self._order]

    def of(self, node: int) -> NDArray[np.int64]:
        """Those of a node, rising."""
        first, last = np.searchsorted(self._ends, (node, node + 1))
        return self._order[first:last]


def _intervals(spec: FaultSpec, names: _Names, field: str) -> Iterator[Fault]:
    effect, target = _effect(spec, names, field)
    begin_ps = _ps(spec.at_s)
    if not isinstance(spec, LinkFlapFault):
        until_ps = None if spec.for_s is None else begin_ps + _ps(spec.for_s)
        yield Fault(spec.kind, target, begin_ps, until_ps, effect)
        return
    for _ in range(spec.count):
        yield Fault(spec.kind, target, begin_ps, begin_ps + _ps(spec.down_s), effect)
        begin_ps += _ps(spec.down_s) + _ps(spec.up_s)


def _effect(spec: FaultSpec, names: _Names, field: str) -> tuple[Effect, str]:
    """What happens, and to what."""
    match spec:
        case InstanceFault():
            return InstanceDown(names.instance(spec.instance, field)), spec.instance
        case DrainFault():
            return Draining(names.instance(spec.instance, field)), spec.instance
        case StragglerFault():
            return Slowness(names.instance(spec.instance, field), spec.factor), spec.instance
        case GpuFault():
            return InstanceDown(names.instance_of_gpu(spec.gpu, field)), f"gpu{spec.gpu}"
        case SlowGpuFault():
            return Slowness(names.instance_of_gpu(spec.gpu, field), spec.factor), f"gpu{spec.gpu}"
        case NicFault():
            return LinksDown(names.nic_links(spec.gpu, field)), f"gpu{spec.gpu}"
        case LinkFault() | LinkFlapFault():
            return LinksDown(names.cable(spec.between, field)), " - ".join(spec.between)
        case SlowLinkFault():
            return LinksSlow(names.cable(spec.between, field), spec.share), " - ".join(spec.between)
        case PfcStormFault():
            return Storm(names.storm_links(spec, field), spec.priority), " - ".join(spec.between)


def _ps(seconds: float) -> int:
    """At least one picosecond where it is not nothing."""
    return max(round(seconds * PS_PER_S), int(seconds > 0))
