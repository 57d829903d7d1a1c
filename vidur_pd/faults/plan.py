"""Faults of a configuration on a cluster: what fails, from when to when. Names that do not fit are refused here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from boundary.errors import InputError
from netsim import LinkKind, Topology
from netsim.backend import PACKET_BACKENDS
from vidur_pd.cluster import Placement
from vidur_pd.config import SimulationConfig
from vidur_pd.faults.config import (
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
from vidur_pd.metrics.quantities import PS_PER_S


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

    Raises: InputError, for an instance, a GPU or a cable that is not there, and for a storm without packets.
    """
    names = _Names(topology, placements, config.network.backend)
    return tuple(
        fault for place, spec in enumerate(config.faults) for fault in _intervals(spec, names, f"faults.{place}")
    )


class _Names:
    """What the names in faults stand for."""

    def __init__(self, topology: Topology, placements: Sequence[Placement], backend: str) -> None:
        self._topology = topology
        self._placements = placements
        self._backend = backend
        self._node = {name: node for node, name in enumerate(topology.node_name)}

    def instance(self, name: str, field: str) -> int:
        names = [placement.name for placement in self._placements]
        if name not in names:
            raise InputError(f"{field}.instance: found {name!r}, expected one of {', '.join(names)}")
        return names.index(name)

    def instance_of_gpu(self, gpu: int, field: str) -> int:
        for index, placement in enumerate(self._placements):
            if gpu in placement.gpus:
                return index
        used = sorted(gpu for placement in self._placements for gpu in placement.gpus)
        raise InputError(f"{field}.gpu: found {gpu}, expected a GPU of an instance, {used[0]} to {used[-1]}")

    def nic_links(self, gpu: int, field: str) -> tuple[int, ...]:
        if gpu >= self._topology.gpus:
            raise InputError(f"{field}.gpu: found {gpu}, expected 0 to {self._topology.gpus - 1}")
        is_at_gpu = (self._topology.link_src == gpu) | (self._topology.link_dst == gpu)
        links = np.flatnonzero(is_at_gpu & (self._topology.link_kind != LinkKind.NVLINK))
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
        links = [*self._links(first, second), *self._links(second, first)]
        if not links:
            ends = sorted(set(self._topology.link_dst[self._topology.link_src == first].tolist()))
            near = ", ".join(self._topology.node_name[node] for node in ends[:8])
            raise InputError(
                f"{field}.between: found no cable from {between[0]} to {between[1]}, expected one to {near}"
            )
        return tuple(links)

    def storm_links(self, spec: PfcStormFault, field: str) -> tuple[int, ...]:
        if self._backend not in PACKET_BACKENDS:
            raise InputError(
                f"{field}.kind: found 'pfc_storm' with backend {self._backend!r}, which has no pauses, "
                f"expected backend {' or '.join(PACKET_BACKENDS)}"
            )
        links = self.cable(spec.between, field)
        if (self._topology.link_kind[list(links)] == LinkKind.NVLINK).any():
            raise InputError(f"{field}.between: found an NVLink, expected a cable on which PFC pauses packets")
        return tuple(link for link in links if self._topology.link_dst[link] == self._node[spec.between[0]])

    def _links(self, src: int, dst: int) -> list[int]:
        found: list[int] = np.flatnonzero((self._topology.link_src == src) & (self._topology.link_dst == dst)).tolist()
        return found


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
