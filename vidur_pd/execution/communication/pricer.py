"""Durations and link loads of collectives on the idle fabric."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import simccl
from aicb import Communication
from netsim import Fabric, FlowGraph, Topology
from netsim.fabric import INTACT, FabricState, Gpus
from netsim.roce.config import RoceConfig
from vidur_pd.execution.communication.flows import behind_ps, planned
from vidur_pd.execution.communication.idle_fabric import IdleFabric, IdleRun

if TYPE_CHECKING:
    from netsim.backends.calibration import MessageTimes
    from vidur_pd.execution.communication.real_traffic import RealTraffic

CollectiveKey = tuple[Communication, Gpus]
COSTS_KEPT = 4096
"""Costs kept in one state of the links, the last ones made: popularity of experts that drifts makes new ones."""
STATES_KEPT = 256
"""States of links whose costs are kept, the last used ones: cables that flap come back to few. Our choice."""


class CollectiveFailed(RuntimeError):
    """A collective does not come to an end although nothing else is on the network."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveCost:
    """One collective run alone."""

    duration_ps: int
    links: NDArray[np.int64]
    """[touched links] topology link indices."""
    link_bytes: NDArray[np.float64]
    """[touched links] bytes carried by each."""
    link_flows: NDArray[np.float64]
    """[touched links] mean number of its flows on each while there is one."""
    link_busy_ps: NDArray[np.float64]
    """[touched links] time for which there is one."""


NO_COST = CollectiveCost(0, np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """Costs in one state of the links."""

    state: FabricState
    priced: dict[CollectiveKey, CollectiveCost] = field(default_factory=dict)
    exact: dict[CollectiveKey, CollectiveCost] = field(default_factory=dict)
    """Those that were run."""
    link_flows: dict[CollectiveKey, dict[int, float]] = field(default_factory=dict)
    """Of all sizes, under no bytes; by link that has some: mean number of flows while there is one."""


class CommunicationPricer:
    """Runs each distinct collective once on an idle copy of the fabric and remembers its cost.

    Sizes between grid points (eight per octave) are interpolated linearly between the two neighbours: with one protocol
    time and bytes on links are affine in the size, and a change of protocol is blurred over at most an eighth of an
    octave. With the ``analytical`` backend the duration is simccl's closed form instead (DeepEP's flows take it on any
    backend), unless messages were measured (``calibration``), and with ``traffic`` it is what the flows took between
    real hosts. How many flows of a collective are on a link at a time is taken from the first size that is run. What
    runs within a server runs on one for all that are identical; real servers are all measured.

    Where links that a group can meet have failed or are slow, the same flows run on the fabric as it is then: engines
    choose their rings and kernels when they start. The closed form is slowed down by as much as the flows are.
    """

    def __init__(
        self,
        topology: Topology,
        backend: str,
        gpu: str,
        stack: simccl.Stack = simccl.Stack.NCCL,
        *,
        nvls: bool = True,
        roce: RoceConfig | None = None,
        live: Fabric | None = None,
        calibration: MessageTimes | None = None,
        traffic: RealTraffic | None = None,
    ) -> None:
        """``nvls``: whether NCCL may have NVSwitches reduce. ``roce``: settings of a packet-level backend. ``live``:
        what becomes of links; ``None``: nothing."""
        simccl.check_measured(stack, gpu)
        self._stack = stack
        self._topology = topology
        self._gpu = gpu
        self._nvls = nvls
        self._closed_form = backend == "analytical" and calibration is None
        self._traffic = traffic
        self._fabric = IdleFabric(topology, backend, roce, calibration)
        self._live = Fabric(topology) if live is None else live
        self._communicators: dict[Gpus, simccl.Communicator] = {}
        self._whole = _Known(INTACT)
        self._states: OrderedDict[FabricState, _Known] = OrderedDict()
        """Others than the whole, the last used one last."""

    def state_among(self, gpus: Gpus) -> FabricState:
        """What has become of the links that collectives among the GPUs can meet."""
        return self._live.state_among(gpus)

    def _known_in(self, state: FabricState) -> _Known:
        if state == INTACT:
            return self._whole
        known = self._states.pop(state, None) or _Known(state)
        self._states[state] = known
        if len(self._states) > STATES_KEPT:
            self._states.popitem(last=False)
        return known

    def communicator(self, gpus: Gpus) -> simccl.Communicator:
        if gpus not in self._communicators:
            self._communicators[gpus] = simccl.Communicator(gpus, self._topology, self._gpu, may_use_nvls=self._nvls)
        return self._communicators[gpus]

    def flows(self, what: Communication, communicator: simccl.Communicator) -> FlowGraph:
        """The flows of a collective by the kernels that run here."""
        graph = planned(what, communicator, self._stack_of(what)).graph()
        if what.behind:
            graph = replace(graph, ready_ps=graph.ready_ps + behind_ps(what, communicator))
        share = 1.0 if what.exchange is None else what.exchange.mean_share
        return graph if share == 1.0 else _thinned(graph, share)

    def _stack_of(self, what: Communication) -> simccl.Stack:
        """Whose kernel runs: FlashInfer's where it normalises as well."""
        return simccl.Stack.FLASHINFER if what.is_normalised else self._stack

    def cost(self, communication: Communication, gpus: Gpus) -> CollectiveCost:
        """Cost of a collective among ``gpus`` as links are; nothing among fewer than two."""
        if len(gpus) < 2 or communication.size_bytes == 0:
            return NO_COST
        known = self._known_in(self.state_among(gpus))
        exchange = communication.exchange
        if exchange is None or exchange.mean_share == 1.0:
            return self._cost((communication, gpus), known)
        even = replace(communication, exchange=replace(exchange, mean_share=1.0))
        return _carrying(self._cost((even, gpus), known), exchange.mean_share)

    def _cost(self, key: CollectiveKey, known: _Known) -> CollectiveCost:
        if key not in known.priced:
            _make_room(known.priced)
            what, gpus = key
            are_models = known is self._whole and self._traffic is None
            home = self._fabric.servers.canonical(gpus) if are_models else gpus
            if home == gpus:
                known.priced[key] = self._interpolated(key, known)
            else:
                known.priced[key] = self._fabric.servers.relocated(self._cost((what, home), known), gpus)
        return known.priced[key]

    def _interpolated(self, key: CollectiveKey, known: _Known) -> CollectiveCost:
        what, gpus = key
        step = 1 << max(0, what.size_bytes.bit_length() - 4)
        below = what.size_bytes - what.size_bytes % step
        low = self._run((replace(what, size_bytes=below), gpus), known)
        if below == what.size_bytes:
            return low
        high = self._run((replace(what, size_bytes=below + step), gpus), known)
        return _between(low, high, (what.size_bytes - below) / step)

    def _run(self, key: CollectiveKey, known: _Known) -> CollectiveCost:
        if key not in known.exact:
            _make_room(known.exact)
            known.exact[key] = self._measure(key, known)
        return known.exact[key]

    def _measure(self, key: CollectiveKey, known: _Known) -> CollectiveCost:
        what, gpus = key
        communicator = self.communicator(gpus)
        graph = self.flows(what, communicator)
        run = self._fabric.run(graph, known.state)
        if run is None:
            raise CollectiveFailed(
                f"network.roce: found that {what.op} of {what.size_bytes} bytes among GPUs {gpus[0]} to {gpus[-1]} "
                "does not end on the idle fabric, expected settings with which it does (retransmission_timeout, "
                "max_retries)"
            )
        duration_ps = run.duration_ps
        if self._traffic is not None:
            duration_ps = self._traffic.duration_ps(graph, what.op, what.size_bytes, gpus)
        if self._closed_form and what.exchange is None:
            closed = simccl.collective_time(what.op, what.size_bytes, communicator, stack=self._stack_of(what))
            duration_ps = closed.time_ps + behind_ps(what, communicator)
            if known is not self._whole:
                whole = self._fabric.run(graph)
                assert whole is not None, "the analytical backend ends every graph where nothing has failed"
                duration_ps = round(duration_ps * run.duration_ps / whole.duration_ps)
        flows = _mean_flows(run, known.link_flows, (replace(what, size_bytes=0), gpus))
        return CollectiveCost(duration_ps, run.links, run.carried_bytes, flows, run.busy_ps.astype(np.float64))


def _mean_flows(run: IdleRun, first: dict[CollectiveKey, dict[int, float]], key: CollectiveKey) -> NDArray[np.float64]:
    """[touched links] mean number of flows on each while there is one, by the first run of this key."""
    if key not in first:
        _make_room(first)
        mean_flows = run.flow_ps / np.maximum(run.busy_ps, 1)
        first[key] = dict(zip(run.links.tolist(), mean_flows.tolist(), strict=True))
    return np.array([max(first[key].get(link, 0.0), 1.0) for link in run.links.tolist()])


def _make_room(costs: dict[CollectiveKey, Any]) -> None:
    """For one more."""
    if len(costs) >= COSTS_KEPT:
        del costs[next(iter(costs))]


def _thinned(graph: FlowGraph, share: float) -> FlowGraph:
    """Flows that last as long, but carry only so much, as slowly."""
    size_bytes, max_rate_bps = (
        np.ceil(share * each).astype(np.int64) for each in (graph.size_bytes, graph.max_rate_bps)
    )
    return replace(graph, size_bytes=size_bytes, max_rate_bps=max_rate_bps)


def _carrying(cost: CollectiveCost, share: float) -> CollectiveCost:
    """A cost that lasts as long, but leaves only so much on links on average."""
    return replace(cost, link_bytes=share * cost.link_bytes, link_busy_ps=share * cost.link_busy_ps)


def _between(low: CollectiveCost, high: CollectiveCost, share: float) -> CollectiveCost:
    """The cost ``share`` of the way from one to the other; flows are those of the larger one where it has some."""
    links = low.links if np.array_equal(low.links, high.links) else np.union1d(low.links, high.links)
    columns = np.zeros((6, len(links)))
    for row, cost in enumerate((low, high)):
        place = np.searchsorted(links, cost.links)
        columns[row, place], columns[2 + row, place], columns[4 + row, place] = (
            cost.link_bytes,
            cost.link_busy_ps,
            cost.link_flows,
        )
    low_bytes, high_bytes, low_busy_ps, high_busy_ps, low_flows, high_flows = columns
    return CollectiveCost(
        duration_ps=round(low.duration_ps + share * (high.duration_ps - low.duration_ps)),
        links=links,
        link_bytes=low_bytes + share * (high_bytes - low_bytes),
        link_flows=np.where(high_flows > 0, high_flows, low_flows),
        link_busy_ps=low_busy_ps + share * (high_busy_ps - low_busy_ps),
    )
