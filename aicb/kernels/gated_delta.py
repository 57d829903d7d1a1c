"""The gated delta rule of linear attention: chunked over prompts, recurrent for decodes."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.columns import Columns
from aicb.kernels.elementwise import LINEAR_PROMPTS
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import AXIS_REACH, ReferenceModel, Surface
from aicb.kernels.fitting.volume import linear_through
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes, Shape, SurfaceTimes
from aicb.kernels.point import Point, SweptModel, point
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import GatedDeltaNet
from aicb.model.precision import ELEMENT_BYTES, Precision, StateDtype

CHUNK_KERNELS = 6
"""Kernels of one chunked call: cumulative sum, k·kᵀ, triangular inverse, w and u, state pass, output (fla-core)."""
CHUNK_TOKENS = 64
"""Tokens per chunk (flash-linear-attention 0.6.0, ``chunk_gated_delta_rule``)."""
CHUNK_STEP_US = 1.0
HEAD_TOKEN_NS = 3.0
"""A link of the chain of chunks, and a token of one value head: their shape matters, measurements set the scale."""
RECURRENT_ERROR = 0.05
"""Relative error (68 %) of the recurrent gated delta rule: its five points lie on a line within 5 %."""
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, eq=False)
class GatedDeltaPrefill(Kernel):
    """Chunked gated delta rule over whole chunks of new tokens, one entry per request."""

    operations = ("gdn_prefill",)

    new_tokens: NDArray[np.int64]
    key_heads: int
    value_heads: int
    head_dim: int

    def cost(self, precision: Precision) -> KernelCost:
        """Chunked form (arXiv 2412.06464, section 3.3), the triangular solve ignored.

        FLOPs per token and value head, with chunk c and head d: KKᵀ, QKᵀ, W, U and the output within the chunk, 2cd
        each; the three products with the state, 2d² each.
        """
        tokens, d = float(self.new_tokens.sum()), self.head_dim
        flops = tokens * self.value_heads * (5 * 2 * CHUNK_TOKENS * d + 3 * 2 * d * d)
        state = 2.0 * len(self.new_tokens) * self.value_heads * d * d * ELEMENT_BYTES[precision.state]
        moved = tokens * _token_bytes(self.key_heads, self.value_heads, d) + state
        return KernelCost(flops, moved, state, "bf16")

    def describe(self) -> str:
        return f"q {int(self.new_tokens.sum())} heads {self.value_heads}/{self.key_heads} d {self.head_dim}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        new = row.lengths("q_len", row.integer("batch", 1))
        return cls(new, row.integer("kv_heads"), row.integer("heads"), row.integer("d_qk"))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> ChunkedTimes | None:
        del variant
        return ChunkedTimes(measured, *cls.operations) if measured.table.select(*cls.operations) else None

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return self.operations[0], None

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for delta, kv, tp in swept.attentions(GatedDeltaNet):
            for batch, q in LINEAR_PROMPTS if kv == "bf16" else ():
                if batch * q <= swept.max_tokens * (2 if batch == 1 else 1):
                    shape = {**_heads(delta, tp), "batch": batch, "q_len": q}
                    yield point("gdn_prefill", "bf16", shape, queries=(q,) * batch, tag=swept.tag(tp))


@dataclass(frozen=True, slots=True, eq=False)
class VllmGatedDeltaPrefill(GatedDeltaPrefill):
    """The same as vLLM 0.24.0 runs it, with states gathered before and put back after; measured inside the engine."""

    operations = ("gdn_prefill_vllm",)

    @classmethod
    def profiled_operations(cls) -> tuple[str, ...]:
        return ()

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        del swept
        yield from ()


@dataclass(frozen=True, slots=True)
class GatedDeltaDecode(Kernel):
    """Recurrent gated delta rule: one state per sequence, read and written."""

    operations = ("gdn_decode",)
    cold_operations = frozenset({"gdn_decode"})

    sequences: int
    key_heads: int
    value_heads: int
    head_dim: int

    def cost(self, precision: Precision) -> KernelCost:
        """State read, decayed, corrected by the delta rule, queried and written back: 7d² per value head."""
        elements = float(self.sequences * self.value_heads * self.head_dim**2)
        state = 2.0 * elements * ELEMENT_BYTES[precision.state]
        moved = state + self.sequences * _token_bytes(self.key_heads, self.value_heads, self.head_dim)
        return KernelCost(7.0 * elements, moved, state, "bf16")

    def describe(self) -> str:
        return f"batch {self.sequences} heads {self.value_heads}/{self.key_heads} d {self.head_dim}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        return cls(row.integer("batch"), row.integer("kv_heads"), row.integer("heads"), row.integer("d_qk"))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> RecurrentTimes:
        assert variant == "bf16" or variant == "fp32"
        return RecurrentTimes(measured, variant)

    def variant(self, precision: Precision) -> StateDtype:
        return precision.state

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "gdn_decode", None

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for delta, kv, tp in swept.attentions(GatedDeltaNet):
            for batch in _BATCHES if kv == "bf16" else ():
                if batch <= swept.max_tokens:
                    shape = {**_heads(delta, tp), "batch": batch, "q_len": 1}
                    yield point("gdn_decode", "bf16", shape, queries=(1,) * batch, tag=swept.tag(tp))


class ChunkedTimes(SurfaceTimes[GatedDeltaPrefill]):
    """Chunked gated delta rule: shapes (value heads, sequences, tokens of all).

    The reference is linear in tokens and value heads, and each chunk of a sequence waits for the one before.
    """

    def __init__(self, measured: MeasuredTimes, operation: str):
        rows = [row for row in measured.table.select(operation) if row.graph_us is not None]
        rows = rows or [max(measured.table.select(operation), key=lambda row: row["q_len"])]
        shapes = [(row["heads"], row.shape.get("batch", 1), row.shape.get("batch", 1) * row["q_len"]) for row in rows]
        times_us = np.array([measured.time_us(row, 0.0) for row in rows])
        scales = Scales((3.0, 3.0, 3.0), (1.0,) * 3, 0.0, 0.02)
        reference = ReferenceModel("chunked gated delta rule (value heads)", 1, _chunked_us, np.log2, scales)
        super().__init__(Surface(reference, np.array(shapes, dtype=np.float64), times_us))

    def shape_of(self, kernel: GatedDeltaPrefill) -> Shape:
        return float(kernel.value_heads), float(len(kernel.new_tokens)), float(kernel.new_tokens.sum())


def _chunked_us(shapes: Floats) -> Floats:
    heads, sequences, tokens = shapes.T
    chain_us = CHUNK_STEP_US * tokens / sequences / CHUNK_TOKENS
    return np.asarray(5.0 * CHUNK_KERNELS + np.hypot(chain_us, HEAD_TOKEN_NS * 1e-3 * heads * tokens))


class RecurrentTimes(KernelTimes[GatedDeltaDecode]):
    """Recurrent gated delta rule: time as a function of the bytes of state read and written."""

    is_bounded = True

    def __init__(self, measured: MeasuredTimes, state: StateDtype):
        self._precision, self._bytes_per_s = Precision(state=state), measured.gpu.hbm_bytes_per_s
        rows = measured.table.select("gdn_decode")
        self._exact = {
            (row["heads"], row["kv_heads"], row["d_qk"], row["batch"]): measured.time_us(row, _state_bytes(row))
            for row in rows
        }
        times: dict[float, list[float]] = {}
        for row in rows:
            times.setdefault(_state_bytes(row), []).append(measured.time_us(row, _state_bytes(row)))
        points = [(volume, fmean(same)) for volume, same in times.items()]
        floor_us, slope_us = _line(points)
        start = (0.0, min(max(floor_us, 0.0), min(time for _, time in points)))
        self._time = linear_through([start, *points], max(slope_us, 1e6 / self._bytes_per_s))
        volumes = [volume for volume, _ in points]
        self._volume_range = (min(volumes) / AXIS_REACH, max(volumes) * AXIS_REACH)

    def price(self, kernel: GatedDeltaDecode) -> Estimate:
        exact = self._measured_us(kernel)
        if exact is not None:
            return Estimate(exact, False, "measured recurrent gated delta rule", RECURRENT_ERROR)
        volume = kernel.cost(self._precision).cold_bytes
        low, high = self._volume_range
        is_estimate = not low <= volume <= high
        bound = volume / self._bytes_per_s * 1e6
        time_us = max(float(self._time(np.array([volume]))[0]), bound)
        kind = "estimate:" if is_estimate else "interpolated"
        return Estimate(time_us, is_estimate, f"{kind} recurrent gated delta rule", RECURRENT_ERROR)

    def _measured_us(self, kernel: GatedDeltaDecode) -> float | None:
        """The measured time of this kernel with fp32 state."""
        if self._precision.state != "fp32":
            return None
        return self._exact.get((kernel.value_heads, kernel.key_heads, kernel.head_dim, kernel.sequences))


def _token_bytes(key_heads: int, value_heads: int, head_dim: int) -> int:
    """Queries, keys, values and results of one token in bf16, its two gates per value head in fp32."""
    return 2 * ELEMENT_BYTES["bf16"] * (key_heads + value_heads) * head_dim + 2 * ELEMENT_BYTES["fp32"] * value_heads


def _heads(delta: GatedDeltaNet, tp: int) -> dict[str, int]:
    d = delta.head_dim
    return {"heads": delta.value_heads // tp, "kv_heads": delta.key_heads // tp, "d_qk": d, "d_v": d}


def _state_bytes(row: KernelRow) -> float:
    """fp32 state, read and written."""
    return 2.0 * row["batch"] * row["heads"] * row["d_qk"] * row["d_v"] * 4


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(floor, slope) minimising the relative error of floor + slope · volume."""
    volume, time = (np.array(column) for column in zip(*points, strict=True))
    floor, slope = np.linalg.lstsq(np.column_stack([1.0 / time, volume / time]), np.ones_like(time), rcond=None)[0]
    return float(floor), float(slope)
