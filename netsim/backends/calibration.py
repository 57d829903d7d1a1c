"""Calibration: what a message between two hosts was measured to take alone, and flows that take as long.

A message of ``n`` bytes takes ``α + n · β`` within a range of sizes, whose numbers are those of an ordered pair of
agents (`netsim.backends.rdma`), processes for the nodes behind one NIC. Flows between nodes of one agent are not
measured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.flow import FlowGraph
from netsim.routing import Router
from netsim.units import PS_PER_NS, PS_PER_S

TOLERANCE: Final = 0.05
"""Share of a measured time by which a line may miss it before a range is divided; our choice: what medians over TCP
scatter by. Protocols of UCX and slow starts change times by more (`netsim/README.md`, calibration)."""
_log = logging.getLogger(__name__)
_PS_PER_BYTE_AT_1_BPS: Final = 8 * PS_PER_S


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Range of sizes in which time grows linearly with the size."""

    first_bytes: int
    last_bytes: int
    alpha_ns: float
    """Time that a message takes whatever its size; negative where the range only leads to a size that takes long."""
    ns_per_byte: float
    """β of the formula above; 0 where the size does not matter."""
    largest_residual: float
    """Share by which a measurement in the range is away from the line, at most."""

    def time_ps(self, size_bytes: int) -> float:
        """What a message takes alone."""
        return PS_PER_NS * (self.alpha_ns + self.ns_per_byte * size_bytes)


Ranges = tuple[SizeRange, ...]
"""Of a pair, rising. Between two of them the upper one holds, as if a protocol had ended with the lower one."""


class MessageTimes(Protocol):
    """What messages take alone."""

    def range_of(self, src: int, dst: int, size_bytes: int) -> SizeRange | None:
        """The range that a message between two nodes is in; ``None`` inside an agent, which is not measured.

        Raises:
            InputError: a node has no agent, its pair was not measured, or only with smaller messages.
        """
        ...


class Calibration:
    """Ranges of the pairs of agents; below the first range its own line holds, down to no bytes.

    Args:
        agents: nodes of each agent, by rank.
        pairs: by ranks of sender and receiver.
    """

    def __init__(self, agents: Sequence[Sequence[int]], pairs: Mapping[tuple[int, int], Ranges]) -> None:
        self.agents = tuple(tuple(nodes) for nodes in agents)
        self.pairs = dict(pairs)
        self._rank_of = {node: rank for rank, nodes in enumerate(self.agents) for node in nodes}

    def rank_of(self, node: int) -> int:
        """The agent of a node. Raises: InputError, where it has none."""
        if node not in self._rank_of:
            raise InputError(f"calibration: found node {node} at the end of a flow, expected an agent for it")
        return self._rank_of[node]

    def range_of(self, src: int, dst: int, size_bytes: int) -> SizeRange | None:
        """See `MessageTimes.range_of`."""
        pair = (self.rank_of(src), self.rank_of(dst))
        if pair[0] == pair[1]:
            return None
        ranges = self.pairs.get(pair, ())
        found = next((each for each in ranges if size_bytes <= each.last_bytes), None)
        if found is None:
            most = f"at most {ranges[-1].last_bytes}" if ranges else "a pair that was measured"
            raise InputError(
                f"calibration: found a flow of {size_bytes} bytes from node {src} to node {dst} (agents {pair[0]} and "
                f"{pair[1]}), expected {most}"
            )
        return found


class CalibratedFlows:
    """Flows that take, alone on their paths, what was measured.

    Of α, what the latency of the path does not account for precedes the first byte; β becomes the highest rate of the
    flow, so that flows which share links are no faster together than the links of the topology. A lower rate that a
    flow has already stays. Where the topology is slower than what was measured, it counts, and a warning says so once
    if it is so by more than what a line may miss (`TOLERANCE`).
    """

    def __init__(self, times: MessageTimes, router: Router) -> None:
        self._times, self._router = times, router
        self._has_warned = False

    def applied(self, graph: FlowGraph) -> tuple[FlowGraph, NDArray[np.int64]]:
        """The graph of such flows, and the delay [flows] that each has got.

        Raises:
            InputError: as `MessageTimes.range_of`.
        """
        kinds = np.column_stack((graph.src, graph.dst, graph.flow_label, graph.size_bytes, graph.max_rate_bps))
        kinds, of_flow = np.unique(kinds.astype(np.int64), axis=0, return_inverse=True)
        changes = np.array([self._changed(*row) for row in kinds.tolist()], dtype=np.int64).reshape(-1, 2)
        added_ps, rates_bps = changes[of_flow.reshape(-1)].T
        return replace(graph, delay_ps=graph.delay_ps + added_ps, max_rate_bps=rates_bps), added_ps

    def _changed(self, src: int, dst: int, label: int, size_bytes: int, max_rate_bps: int) -> tuple[int, int]:
        """Added delay and highest rate of a flow."""
        found = self._times.range_of(src, dst, size_bytes)
        if found is None:
            return 0, max_rate_bps
        measured_ps = found.time_ps(size_bytes)
        if size_bytes == 0:  # no bytes meet no link
            return round(measured_ps), max_rate_bps
        work = size_bytes * _PS_PER_BYTE_AT_1_BPS
        draining_ps = PS_PER_NS * found.ns_per_byte * size_bytes
        if max_rate_bps and work / max_rate_bps > draining_ps:
            measured_ps += work / max_rate_bps - draining_ps
            draining_ps = work / max_rate_bps
        left_ps = measured_ps - self._router.path_latency_ps(src, dst, label)
        least_ps = work / self._router.bottleneck_bps(src, dst, label)
        if left_ps < least_ps:
            counting_ps = measured_ps - left_ps + least_ps
            if measured_ps < (1 - TOLERANCE) * counting_ps:
                self._warn(f"{size_bytes} bytes from node {src} to node {dst}", measured_ps, counting_ps)
            return 0, max_rate_bps
        draining_ps = min(max(draining_ps, least_ps), left_ps)
        return round(left_ps - draining_ps), int(work / draining_ps)

    def _warn(self, what: str, measured_ps: float, counting_ps: float) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "calibration: %s were measured in %s ms, which the links of the topology do not allow: their %s ms count",
            what,
            f"{measured_ps * 1e-9:.6g}",
            f"{counting_ps * 1e-9:.6g}",
        )
