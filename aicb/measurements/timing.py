"""Timing of a measured row: cold, in a CUDA graph, or inside an engine.

An engine runs a kernel between others of the same model: launch gaps are those of a CUDA graph, activations come warm
from L2, but weights and KV cache have been evicted since the last layer. That is how ``rotated_us`` is measured.

Replays ran at whatever clock the power limit allowed at that moment, which depends on what ran before: the same GEMM
takes 1.39 ms in the first 60 ms of load and 1.63 ms afterwards. Times are converted to the device's reference clock
(``clock.py``) by the part that follows the clock. Iterations are slowed from there to the clock they run at.

Older rows have no rotated time. Their cold time contains the event floor and the write-back of the lines the flush
left dirty in L2; their graph time replays the same operands, which stay in L2 if they fit. So

    engine = max(graph, cold - event floor - write-back · min(1, cold bytes / L2))

The write-back is measured by rows whose operands exceed twice L2, where graph replays are cold as well: the median of
``cold - event floor - graph``. Operators without cold operands (elementwise kernels) take the graph time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from aicb.measurements.clock import clocked_share
from aicb.measurements.gpu import Gpu
from aicb.measurements.table import KernelRow, KernelTable
from aicb.model.precision import ELEMENT_BYTES, weight_matrix_bytes

Timing = Literal["engine", "graph", "cold"]
"""``cold``: flushed L2, event floor included. ``graph``: per call in a replayed CUDA graph, L2 warm. ``engine``: what
the kernel takes between other kernels of a model, see ``MeasuredTimes``."""
_MAX_WRITE_BACK_SAMPLE_US = 600.0
"""Longer kernels differ between cold and graph by clocks (power limit) more than by the write-back."""


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Times of the rows of one table under one timing."""

    table: KernelTable
    timing: Timing
    gpu: Gpu
    write_back_us: float
    floors_us: Mapping[str, float]
    """Event floor of each probe run; runs without a null kernel take the mean."""

    @classmethod
    def of(cls, table: KernelTable, timing: Timing, gpu: Gpu) -> MeasuredTimes:
        """Times with the write-back determined from the weight-bound GEMM rows of the table; 0 where it has none."""
        floors = table.launch.event_floor_us
        excess = [
            row.cold_us - floors.get(row.run, fmean(floors.values())) - row.graph_us
            for row in table.select("gemm")
            if row.graph_us is not None
            and row["m"] <= 128
            and gemm_weight_bytes(row) >= 2 * gpu.l2_bytes
            and row.cold_us < _MAX_WRITE_BACK_SAMPLE_US
        ]
        return cls(table, timing, gpu, max(median(excess or [0.0]), 0.0), floors)

    def time_us(self, row: KernelRow, cold_bytes: float) -> float:
        """Time of a row, ``cold_bytes`` of whose operands are evicted between executions.

        Where the graph time was not measured, the cold time stands in for it, unchanged.
        """
        match self.timing:
            case "cold":
                return row.cold_us
            case "graph":
                return row.cold_us if row.graph_us is None else row.graph_us
        if row.rotated_us is not None:
            return self._at_reference_clock(row, row.rotated_us)
        if row.graph_us is not None and cold_bytes == 0:
            return row.graph_us
        flushed = self.write_back_us * min(1.0, cold_bytes / self.gpu.l2_bytes)
        floor = self.floors_us.get(row.run) or fmean(self.floors_us.values())
        return max(row.graph_us or 0.0, row.cold_us - floor - flushed)

    def _at_reference_clock(self, row: KernelRow, time_us: float) -> float:
        """``rotated_us`` converted to the reference clock of the device; unchanged where either clock is unknown."""
        law, clock_mhz = self.gpu.clock, row.rotated_clock_mhz
        if clock_mhz is None or row.moved_bytes is None or law is None:
            return time_us
        share = clocked_share(time_us, row.moved_bytes, self.gpu.hbm_bytes_per_s)
        return float(time_us * (clock_mhz / law.reference_mhz) ** share)


def gemm_weight_bytes(row: KernelRow) -> float:
    """Bytes of the weights of a dense or grouped GEMM row."""
    if row.dtype == "mxfp4":
        return float(weight_matrix_bytes(row["n"], row["k"], "mxfp4") * row["active_groups"])
    return float(row["n"] * row["k"] * row.shape.get("active_groups", 1) * ELEMENT_BYTES[row.dtype])
