"""Durations and link loads of collectives on the idle fabric."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import simccl
from aicb import Communication
from netsim import NetworkBackend, Topology, create_backend

Gpus = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCost:
    """One collective run alone."""

    duration_ps: int
    links: NDArray[np.int64]
    """[touched links] topology link indices."""
    link_bytes: NDArray[np.float64]
    """[touched links] bytes carried by each."""


class CommunicationPricer:
    """Runs each distinct collective once on an idle copy of the fabric and remembers its cost.

    Sizes between grid points (eight per octave) are interpolated linearly between the two neighbours: with one protocol
    the time of a collective is affine in its size, and a change of protocol is blurred over at most an eighth of an
    octave. With the ``analytical`` backend the duration is simccl's closed form instead.
    """

    def __init__(self, topology: Topology, backend: str, gpu: str) -> None:
        self._topology = topology
        self._gpu = gpu
        self._closed_form = backend == "analytical"
        self._idle: NetworkBackend = create_backend(backend, topology)
        self._communicators: dict[Gpus, simccl.Communicator] = {}
        self._exact: dict[tuple[str, int, Gpus], CollectiveCost] = {}
        self._priced: dict[tuple[str, int, Gpus], CollectiveCost] = {}

    def communicator(self, gpus: Gpus) -> simccl.Communicator:
        if gpus not in self._communicators:
            self._communicators[gpus] = simccl.Communicator(gpus, self._topology, self._gpu)
        return self._communicators[gpus]

    def cost(self, communication: Communication, gpus: Gpus) -> CollectiveCost:
        """Cost of a collective among ``gpus``; nothing among fewer than two."""
        key = (communication.op, communication.size_bytes, gpus)
        if key not in self._priced:
            self._priced[key] = self._interpolated(*key)
        return self._priced[key]

    def _interpolated(self, op: str, size_bytes: int, gpus: Gpus) -> CollectiveCost:
        if len(gpus) < 2 or size_bytes == 0:
            return CollectiveCost(0, np.zeros(0, dtype=np.int64), np.zeros(0))
        step = 1 << max(0, size_bytes.bit_length() - 4)
        below = size_bytes - size_bytes % step
        low = self._run(op, below, gpus)
        if below == size_bytes:
            return low
        high = self._run(op, below + step, gpus)
        share = (size_bytes - below) / step
        duration = round(low.duration_ps + share * (high.duration_ps - low.duration_ps))
        return CollectiveCost(duration, high.links, high.link_bytes * (size_bytes / (below + step)))

    def _run(self, op: str, size_bytes: int, gpus: Gpus) -> CollectiveCost:
        key = (op, size_bytes, gpus)
        if key not in self._exact:
            self._exact[key] = self._measure(op, size_bytes, gpus)
        return self._exact[key]

    def _measure(self, op: str, size_bytes: int, gpus: Gpus) -> CollectiveCost:
        communicator = self.communicator(gpus)
        before = self._idle.link_stats().carried_bytes
        start_ps = self._idle.now_ps
        handle = self._idle.submit(simccl.plan_collective(op, size_bytes, communicator).graph(), start_ps)
        end_ps = start_ps
        finished = False
        while not finished:
            bound = self._idle.next_event_ps()
            assert bound is not None, f"{op} of {size_bytes} bytes never completes"
            for completion in self._idle.advance(2**62):
                finished = finished or completion.flow is None
                end_ps = completion.at_ps
        self._idle.forget(handle)
        carried = self._idle.link_stats().carried_bytes - before
        links = np.flatnonzero(carried > 0)
        duration_ps = end_ps - start_ps
        if self._closed_form:
            duration_ps = simccl.collective_time(op, size_bytes, communicator).time_ps
        return CollectiveCost(duration_ps, links, carried[links])
