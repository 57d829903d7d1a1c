"""Memory-bound kernels: norms, RoPE, quantisation, activations, routing, copies.

A kernel measured under its own name has a surface over (columns, rows). Of several implementations of one kernel only
the one of the last part of the table counts: mixing them would bend the surface. Kernels that were not measured take
the *envelope* of the ``rms_norm`` rows: the least time in which a norm moved so many bytes, floor included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from aicb.kernels.columns import Columns
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.fitting.kriging import Floats, Scales
from aicb.kernels.fitting.surface import AXIS_REACH, ReferenceModel, Surface
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes, Shape
from aicb.kernels.point import ListedPlace, Point, SweptModel, point
from aicb.kernels.sparse_prefill import SPARSE_FP8_KEY_BYTES
from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import GatedDeltaNet, GroupedQueryAttention, LatentAttention, MoeFfn
from aicb.model.partition import kv_heads_per_rank
from aicb.model.precision import SCALE_BLOCK, SCALE_BYTES, Precision

_SCALE = SCALE_BYTES / SCALE_BLOCK
"""Bytes of fp8 scales per element."""
_SPARSE_LATENT = SPARSE_FP8_KEY_BYTES / 576
"""Bytes of a latent in the fp8 cache of sparse attention, per element."""
HYBRID: Mapping[str, float] = {
    **{"offset_norm": 8.0, "offset_sum_norm": 14.0, "delta_split": 12.0, "delta_join": 4.0, "delta_clear": 2.0},
    **{"delta_results": 4.0, "delta_norm_sums": 2.0, "delta_gated_norm": 6.0, "delta_prepare": 4.0, "delta_conv": 4.0},
    **{"delta_decode": 516.0, "gated_head_norm": 4.0, "output_gate": 6.0, "gate_sigmoid": 4.0, "gate_mul": 4.0},
}
"""Kernels of vLLM's hybrid models (``aicb.operators.hybrid_kernels``), measured inside an engine only, with bytes as in
``KERNELS``, small tensors left out. Of a decode [states, channels]: a state of 128 x 128 in bf16 per value head, read
and written, over the 256 channels that Qwen3-Next has per value head, 512 bytes; each channel and its result, 4."""
SGLANG: Mapping[str, float] = {
    **{"qk_norm": 4.0, "rope_write": 4.0, "sglang_rope": 4.0, "sglang_kv_write": 4.0, "sglang_topk": 2.0},
    **{"sglang_align": 4.0, "sglang_sum": 2.0},
}
"""SGLang's (`aicb.profiling.libraries.sglang_ops`)."""
IN_ENGINES = frozenset({*HYBRID, "logits_join"})
"""Measured inside engines only, by no profile."""
KERNELS: Mapping[str, float | None] = {
    **{"rms_norm": 4.0, "add_rms_norm": 8.0, "head_norm": 4.0, "rope": 4.0, "quant": 3.0 + _SCALE, "silu_mul": 6.0},
    **{"silu_mul_quant": 5.0 + _SCALE, "topk": 4.0, "permute": 4.0, "unpermute": 4.0, "kv_write": 4.0},
    **{"embedding": 4.0, "sampling": 10.0, "conv": 4.0, "add": 6.0, "grouped_topk": 4.0, "kv_write_fp8": 3.0},
    **{"latent_write": 4.0, "latent_write_fp8": 3.0, "latent_write_sparse_fp8": 2.0 + _SPARSE_LATENT},
    **{"merge_states": 6.0, "index_write": 3.0 + _SCALE, "index_gather": 2.0 + 2 * _SCALE, "latent_gather": 4.0},
    **{"latent_gather_fp8": 3.0, "latent_gather_sparse_fp8": 2.0 + _SPARSE_LATENT, "moe_align": 4.0},
    **{"group_quant": 3.0 + _SCALE, "rope_latent": 4.0, "silu_and_mul": 6.0, "moe_sum": 2.0, "expert_copy": 4.0},
    **{"topk_softmax": 2.0, "logits_join": 4.0},
    **HYBRID,
    **SGLANG,
    **{"gating": None, "assemble_k": None, "state_copy": None, "layer_norm": None},
}
"""Names, and bytes read and written per element of [m, n] where these follow from the name; ``None``: never measured.

bf16 or fp32 in, bf16 or fp8 with a 4-byte scale per 128 out. Operators that also move what depends on other sizes state
their bytes themselves.
"""
STATED_BY_SHAPE = frozenset({"rms_norm", "quant", "silu_mul_quant", "topk"})
"""Kernels that a table of operators may state by [m, n] alone."""
ESTIMATED = frozenset({*HYBRID, "moe_sum", "expert_copy", "logits_join"})
"""Kernels of vLLM for which bytes are a poor measure (``aicb.operators.hybrid_kernels``, ``moe_kernels``, ``head``):
their times are flagged where a table does not have them."""
ENVELOPE_ERROR = 0.25
"""Relative error (68 %) of a kernel priced by its bytes: fused kernels of engines differ by that much from one norm."""
_REFERENCE_BANDWIDTH_SHARE = 0.6
_REFERENCE_FLOOR_US = 2.0
"""Shape of the reference along rows (bytes / share of bandwidth + floor), see ``rms_norm`` at 8192 rows."""
_FLOORS_US: Mapping[str, float] = {"moe_sum": 5.0}
"""Of kernels that take much longer for their first row: torch's sums of 8 to 10 rows take 4.5 to 5.2 us."""
_PAST_TOKENS = (16, 64, 256, 1024, 4096, 8192, 16384, 32768)
"""Cached latents that a chunk's prefill gathers; new tokens whose two parts of attention are merged."""
_ROPE_TOKENS = (
    *(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    *(768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
)
"""Tokens whose queries of latent attention are rotated."""
_SPARSE_PAST_TOKENS = (64, 256, 1024, 4096, 16384, 65536)


@dataclass(frozen=True, slots=True)
class Elementwise(Kernel):
    """A memory-bound kernel over ``[rows, cols]``."""

    operations = tuple(KERNELS)
    preferred_libraries: ClassVar = {"kv_write": ("vllm/",), "topk": ("vllm/",)}
    stays_in_cache = True

    name: str
    """One of ``KERNELS``."""
    rows: int
    cols: int
    moved_bytes: int
    """Bytes read plus bytes written."""

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        return KernelCost(0.0, float(self.moved_bytes), 0.0, "bf16")

    def describe(self) -> str:
        return f"[{self.rows}, {self.cols}] {self.name}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        """Bytes by the shape where the row does not state them."""
        moved = KERNELS[operation]
        if operation in ("unpermute", "moe_sum", "sglang_sum"):  # writes one row per token
            moved = 2.0 * (1.0 + 1.0 / row.integer("experts_per_token", 1))
        has_shape = operation in STATED_BY_SHAPE or (bool(row.text("m")) and bool(row.text("n")))
        rows, cols = (row.integer("m"), row.integer("n")) if has_shape else (row.integer("m", 1), row.integer("n", 1))
        default = None if moved is None or not has_shape else moved * rows * cols
        return cls(operation, rows, cols, round(row.number("bytes", default)))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> ElementwiseTimes:
        del variant
        return ElementwiseTimes(measured)

    @classmethod
    def profiled_operations(cls) -> tuple[str, ...]:
        return tuple(name for name, moved in KERNELS.items() if moved is not None and name not in IN_ENGINES)

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "rms_norm", None

    def tensor_bytes(self, precision: Precision) -> int:
        del precision
        return self.moved_bytes

    def listed_points(self, place: ListedPlace) -> Iterator[Point]:
        """Kernels that libraries run; gates, state copies and the like are priced by their bytes."""
        shape = {"m": self.rows, "n": self.cols}
        match self.name:
            case "rms_norm" | "add_rms_norm" | "head_norm" | "embedding" | "sampling" | "add":
                yield point(self.name, "bf16", shape, tag=place.tag, priority=1)
            case "silu_mul":
                for kernel in ("silu_mul", "silu_and_mul"):
                    yield point(kernel, "bf16", shape, tag=place.tag, priority=1)
            case "quant":
                for kernel in ("quant", "group_quant"):
                    yield point(kernel, "bf16->fp8", shape, tag=place.tag, priority=1)
            case "silu_mul_quant":
                yield point(self.name, "bf16->fp8", shape, tag=place.tag, priority=1)
            case "rope":
                yield point("rope", "bf16", {**shape, "d_qk": _rotary_dim(place)}, tag=place.tag, priority=1)
            case "topk" | "grouped_topk":
                k = next(layer.ffn for layer in place.model.layers if isinstance(layer.ffn, MoeFfn)).experts_per_token
                others = ("topk_softmax", "sglang_topk") if self.name == "topk" else ()
                for kernel in (self.name, *others, "moe_align", "sglang_align"):
                    yield point(kernel, "", {**shape, "experts_per_token": k}, tag=place.tag, priority=1)
                rows = {"m": place.tokens * k, "n": place.model.hidden, "experts_per_token": k}
                yield point("permute", "bf16", rows, tag=place.tag, priority=1)
                for kernel in ("unpermute", "moe_sum", "sglang_sum"):
                    yield point(kernel, "bf16", rows, tag=place.tag, priority=1)
                copied = {"m": place.tokens, "n": place.model.hidden}
                yield point("expert_copy", "bf16", copied, tag=place.tag, priority=1)
            case "latent_write" | "latent_write_fp8" | "latent_write_sparse_fp8" | "index_write":
                yield point(self.name, "", shape, tag=place.tag, priority=1)
            case "kv_write" | "kv_write_fp8":
                for attention in {layer.attention for layer in place.model.layers}:
                    if isinstance(attention, GroupedQueryAttention):
                        kv = {"kv_heads": self.cols // (2 * attention.head_dim), "d_v": attention.head_dim}
                        yield point(self.name, "bf16", {**shape, **kv}, tag=place.tag, priority=1)
                        yield from _sglang_points(attention, place)

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        """Kernels around the cache of latents, and the convolution before a delta rule."""
        for latent, kv, tp in swept.attentions(LatentAttention):
            tag = swept.tag(tp)
            if kv == "bf16":
                yield from _compiled_rope_points(latent, tp, swept)
            if latent.indexer is None:
                suffix, width = "_fp8" if kv == "fp8" else "", latent.heads // tp * latent.v_head_dim
                for tokens in _PAST_TOKENS:
                    gathered = {"m": tokens, "n": latent.kv_elements}
                    yield point(f"latent_gather{suffix}", "", gathered, tag=tag, priority=1)
                    if tokens <= swept.max_tokens:
                        merged = {"m": tokens, "n": width, "d_v": latent.v_head_dim}
                        yield point("merge_states", "bf16", merged, tag=tag, priority=1)
            else:
                name = "latent_gather_sparse_fp8" if kv == "fp8" else "index_gather"
                elements = latent.kv_elements if kv == "fp8" else latent.indexer.head_dim
                for tokens in _SPARSE_PAST_TOKENS:
                    yield point(name, "", {"m": tokens, "n": elements}, tag=tag, priority=1)
        for delta, kv, tp in swept.attentions(GatedDeltaNet):
            if kv == "bf16":
                yield from _convolution_points(delta, tp, swept)


class ElementwiseTimes(KernelTimes[Elementwise]):
    """Times of all memory-bound kernels."""

    def __init__(self, measured: MeasuredTimes):
        self._bandwidth = measured.gpu.hbm_bytes_per_s
        norms = measured.table.select("rms_norm")
        self._envelope = _envelope([(4.0 * row["m"] * row["n"], measured.time_us(row, 0.0)) for row in norms])
        selected = {kernel: measured.table.select(kernel) for kernel, moved in KERNELS.items() if moved is not None}
        self.surfaces = {kernel: self._surface(kernel, rows, measured) for kernel, rows in selected.items() if rows}

    def price(self, kernel: Elementwise) -> Estimate:
        place = self.place(kernel)
        if place is not None:
            return place[0].price(*place[1])
        found = self.envelope(kernel.moved_bytes)
        if kernel.name not in ESTIMATED or found.is_estimate:
            return found
        return replace(found, is_estimate=True, source="estimate: bytes at the bandwidth envelope of rms_norm")

    def place(self, kernel: Elementwise) -> tuple[Surface, Shape] | None:
        surface = self.surfaces.get(kernel.name)
        return None if surface is None else (surface, (float(kernel.cols), float(max(kernel.rows, 1))))

    def envelope(self, moved_bytes: float) -> Estimate:
        """Least measured time of moving so many bytes; linear between and beyond the measured volumes."""
        volumes, times = self._envelope
        right = min(max(bisect_right(volumes, moved_bytes), 1), len(volumes) - 1)
        slope = (times[right] - times[right - 1]) / (volumes[right] - volumes[right - 1])
        time_us = max(times[right - 1] + slope * (moved_bytes - volumes[right - 1]), times[0])
        is_far = moved_bytes > AXIS_REACH * volumes[-1]
        kind = "estimate: beyond" if is_far else "interpolated"
        return Estimate(time_us, is_far, f"{kind} bandwidth envelope of rms_norm", ENVELOPE_ERROR)

    def _surface(self, kernel: str, rows: list[KernelRow], measured: MeasuredTimes) -> Surface:
        """Shapes (columns, rows)."""
        latest = [row for row in rows if row.kernel == rows[-1].kernel]
        shapes = np.array([[row["n"], row["m"]] for row in latest], dtype=np.float64)
        times_us = np.array([measured.time_us(row, 0.0) for row in latest])
        per_element = KERNELS[kernel]
        assert per_element is not None

        floor_us = _FLOORS_US.get(kernel, _REFERENCE_FLOOR_US)

        def reference_us(shapes: Floats) -> Floats:
            moved = per_element * shapes.prod(axis=1)
            return np.asarray(floor_us + moved / (_REFERENCE_BANDWIDTH_SHARE * self._bandwidth) * 1e6)

        scales = Scales((4.0, 4.0), (0.1, 4.0), 0.3, 0.02)
        return Surface(ReferenceModel(f"{kernel} (columns)", 1, reference_us, np.log2, scales), shapes, times_us)


def _envelope(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Least time of moving at least so many bytes, as increasing (bytes, time)."""
    volumes: list[float] = []
    times: list[float] = []
    for volume, time in sorted(points, reverse=True):
        if not times or time < times[-1]:
            volumes.append(volume)
            times.append(time)
    return volumes[::-1], times[::-1]


def _rotary_dim(place: ListedPlace) -> int:
    for layer in place.model.layers:
        if isinstance(layer.attention, GroupedQueryAttention):
            return layer.attention.rotary_dim
        if isinstance(layer.attention, LatentAttention):
            return layer.attention.qk_rope_head_dim
    raise AssertionError("no attention with rotary embedding")


def _sglang_points(attention: GroupedQueryAttention, place: ListedPlace) -> Iterator[Point]:
    """Kernels that normalise, rotate and write, of heads that are rotated whole."""
    heads, kv_heads = attention.heads // place.tp, kv_heads_per_rank(attention.kv_heads, place.tp)
    shape = {"heads": heads, "kv_heads": kv_heads, "d_qk": attention.head_dim}
    rotated, written = (heads + kv_heads) * attention.head_dim, 2 * kv_heads * attention.head_dim
    if attention.rotary_dim == attention.head_dim:
        for name, columns in (
            ("sglang_rope", rotated),
            ("sglang_kv_write", written),
            ("rope_write", rotated + written),
        ):
            yield point(name, "bf16", {"m": place.tokens, "n": columns, **shape}, tag=place.tag, priority=1)
        if attention.qk_norm == "per_head":
            normalised = {"m": place.tokens * (heads + kv_heads), "n": attention.head_dim, **shape}
            yield point("qk_norm", "bf16", normalised, tag=place.tag, priority=1)


def _compiled_rope_points(latent: LatentAttention, tp: int, swept: SweptModel) -> Iterator[Point]:
    heads = latent.heads // tp
    shape = {"n": heads * latent.qk_head_dim, "heads": heads, "d_qk": latent.qk_rope_head_dim}
    for tokens in _ROPE_TOKENS:
        if tokens <= swept.max_tokens:
            yield point("rope_latent", "bf16", {"m": tokens, **shape}, tag=swept.tag(tp), priority=1)


def _convolution_points(delta: GatedDeltaNet, tp: int, swept: SweptModel) -> Iterator[Point]:
    for batch, q in LINEAR_PROMPTS:
        if batch * q <= swept.max_tokens:
            shape = {"m": batch * q, "n": delta.conv_channels // tp, "batch": batch}
            yield point("conv", "bf16", shape, tag=swept.tag(tp))


LINEAR_PROMPTS = (
    *((1, q) for q in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
    *((4, 256), (4, 1024), (4, 2048), (8, 1024), (16, 512)),
)
"""(batch, tokens of each) of prompts of linear attention."""
