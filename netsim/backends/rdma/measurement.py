"""Measurement: when the flows of a graph started and arrived on real hosts, put together from what the ranks report."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netsim.backends.contract import FlowTimes
from netsim.backends.rdma.clock import ClockLine, ClockOffset
from netsim.units import PS_PER_NS

NOT_YET: Final = -1
_ARRAYS: Final = ("sends", "ready", "posted", "left", "receives", "arrived")


@dataclass(frozen=True, slots=True, eq=False)
class RankReport:
    """What a rank has measured, on its own clock (ns; -1: has not happened)."""

    sends: NDArray[np.int64]
    """[sends] flows"""
    ready: NDArray[np.int64]
    """[sends] all that the flow waits for has happened, its delay included"""
    posted: NDArray[np.int64]
    """[sends] given to the engine"""
    left: NDArray[np.int64]
    """[sends] given back by the engine: buffers can be used again"""
    receives: NDArray[np.int64]
    """[receives] flows"""
    arrived: NDArray[np.int64]
    """[receives] all bytes are in memory"""
    clock: ClockLine
    lanes: Mapping[int, str]
    """Transports and devices to each rank that it sends to."""
    retransmits: int
    """Growth of the counters of its host during the flows."""

    def fields(self) -> dict[str, Any]:
        """All but the arrays, for JSON."""
        return {
            "clock": [[each.at_ns, each.offset_ns, each.error_ns] for each in (self.clock.before, self.clock.after)],
            "lanes": {str(rank): lane for rank, lane in self.lanes.items()},
            "retransmits": self.retransmits,
        }

    def as_bytes(self) -> bytes:
        """The arrays as one ``.npz``."""
        buffer = io.BytesIO()
        np.savez(buffer, **{name: getattr(self, name) for name in _ARRAYS})
        return buffer.getvalue()


def report_from(fields: Mapping[str, Any], content: bytes) -> RankReport:
    """Inverse of `RankReport.fields` and `RankReport.as_bytes`."""
    before, after = (ClockOffset(*each) for each in fields["clock"])
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return RankReport(
            **{name: arrays[name] for name in _ARRAYS},
            clock=ClockLine(before, after),
            lanes={int(rank): lane for rank, lane in fields["lanes"].items()},
            retransmits=fields["retransmits"],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """Times of the flows in ps after the common start, on the clock of rank 0; -1 where it has not happened."""

    ready_ps: NDArray[np.int64]
    start_ps: NDArray[np.int64]
    left_ps: NDArray[np.int64]
    """[flows] the engine has given the buffer back; over TCP that is long before the arrival"""
    end_ps: NDArray[np.int64]
    clock_error_ps: NDArray[np.int64]
    """[flows] by which ``end_ps - start_ps`` may be wrong, as two clocks have been compared"""
    engine: str
    lane: tuple[str, ...]
    """[flows] transports and devices of its connections, as UCX names them"""
    device: tuple[str, ...]
    """[flows] that the hosts file pins its sender to, or empty"""
    retransmits: NDArray[np.int64]
    """[flows] of the host of its sender, during the whole run"""
    failure: str | None
    """Why the run ended early."""

    def flow_times(self) -> FlowTimes:
        """Start and end, as of any backend."""
        return FlowTimes(self.start_ps, self.end_ps, (self.end_ps < 0) & (self.failure is not None))

    def statuses(self) -> list[str]:
        """``completed``, ``failed: reason``, or ``failed: waits for a failed flow`` for those that never started."""
        return [
            "completed" if end >= 0 else f"failed: {self.failure}" if start >= 0 else "failed: waits for a failed flow"
            for start, end in zip(self.start_ps.tolist(), self.end_ps.tolist(), strict=True)
        ]


def merged(
    reports: Mapping[int, RankReport],
    sender: NDArray[np.int64],
    receiver: NDArray[np.int64],
    devices: Mapping[int, str],
    engine: str,
    t0_ns: int,
    failure: str | None,
) -> Measurement:
    """The measurement from the reports of the ranks that could give one.

    Args:
        reports: by rank.
        sender: [flows] rank.
        receiver: [flows] rank.
        devices: by rank, as pinned.
        engine: that has sent.
        t0_ns: common start, on the clock of rank 0.
        failure: why the run ended early, if it did.
    """
    flows = len(sender)
    ready, start, left, end = (np.full(flows, NOT_YET, dtype=np.int64) for _ in range(4))
    ranks = max(int(sender.max(initial=0)), int(receiver.max(initial=0))) + 1
    error, resent = np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    for rank, report in reports.items():
        if rank < ranks:
            error[rank], resent[rank] = report.clock.error_ns, report.retransmits
        for target, flow, at_ns in (
            (ready, report.sends, report.ready),
            (start, report.sends, report.posted),
            (left, report.sends, report.left),
            (end, report.receives, report.arrived),
        ):
            happened = at_ns >= 0
            since_ns = report.clock.on_rank_0(at_ns[happened]) - t0_ns
            target[flow[happened]] = np.maximum(since_ns, 0) * PS_PER_NS
    late = (end >= 0) & (start >= 0) & (end < start)
    end[late] = start[late]  # a flow across hosts that is shorter than the error of their clocks
    lanes = {(rank, peer): lane for rank, report in reports.items() for peer, lane in report.lanes.items()}
    pairs = list(zip(sender.tolist(), receiver.tolist(), strict=True))
    is_apart = sender != receiver
    return Measurement(
        ready_ps=ready,
        start_ps=start,
        left_ps=left,
        end_ps=end,
        clock_error_ps=np.rint((error[sender] + error[receiver]) * is_apart * PS_PER_NS).astype(np.int64),
        engine=engine,
        lane=tuple(lanes.get(pair, "") for pair in pairs),
        device=tuple(devices.get(rank, "") for rank, _ in pairs),
        retransmits=resent[sender],
        failure=failure,
    )
