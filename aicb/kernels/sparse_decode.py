"""Sparse attention of decodes (DeepSeek Sparse Attention); piecewise-linear in the keys of all requests.

scores: Σ S_i, one fp8 key of 132 bytes each, for so many sequences;
choice: Σ S_i, one fp32 score each;
attention: over a bf16 cache the prefill's kernel, with a query per sequence and Σ min(S_i, topk) keys; over an fp8
cache a split-KV kernel that works through ``topk`` slots of every query, whatever the lengths.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.columns import Columns, kv_dtype
from aicb.kernels.fitting.estimate import tokens_by_step
from aicb.kernels.fitting.kriging import Floats
from aicb.kernels.fitting.surface import AXIS_REACH, Surface
from aicb.kernels.fitting.volume import PricedVolume, lengths_between, linear_through, through_lengths
from aicb.kernels.kernel import CacheKernel, CacheTimes, KernelCost
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.reference.mla_schedule import BLOCK_TOKENS
from aicb.kernels.reference.sparse_times import SparseSurfaces
from aicb.kernels.sparse_prefill import (
    SPARSE_FP8_KEY_BYTES,
    SparseStep,
    latent_shape,
    latent_tag,
    sparse_cost,
    sparse_shape,
    step_of,
)
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import Indexer, LatentAttention
from aicb.model.precision import KvDtype, Precision

_BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_KV_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_DRAFT_BATCHES = (1, 8, 32, 64, 128)
"""Batches also measured with two query tokens per sequence."""
_CACHE_LIMIT_BYTES = 12 << 30


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlaDecode(CacheKernel):
    """One kernel of absorbed MLA decode over the keys that an indexer chooses; ``d_qk`` and ``d_v`` are the latent's.

    ``heads`` beyond ``query_heads`` are further query tokens of the same request, which choose keys of their own.
    """

    operations = ("mla_sparse_decode", "index_logits_decode", "index_topk_decode")
    cold_operations = frozenset({"mla_sparse_decode", "index_logits_decode"})

    kv_tokens: NDArray[np.int64]
    heads: int
    d_qk: int
    d_v: int
    step: SparseStep
    query_heads: int
    """Heads of one query token, padded to what the kernel takes."""
    topk: int
    index_heads: int
    index_dim: int
    kv_dtype: KvDtype | None = field(default=None, kw_only=True)
    """Format of the cache; ``None``: that of the instance, which the estimator knows."""

    @property
    def queries(self) -> int:
        """Query tokens per request."""
        return -(-self.heads // self.query_heads)

    def cost(self, precision: Precision) -> KernelCost:
        new = np.full_like(self.kv_tokens, self.queries)
        return sparse_cost(self, new, self.query_heads, is_fp8=(self.kv_dtype or precision.kv) == "fp8")

    def describe(self) -> str:
        return f"batch {self.kv_tokens.size} kv {int(self.kv_tokens.sum())} heads {self.heads}/1"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        step = step_of(operation)
        kv = row.lengths("kv_len", row.integer("batch", 1))
        heads, latent, index = sparse_shape(row, step)
        all_heads, dtype = heads * row.integer("q_len", 1), kv_dtype(row) if step == "attention" else None
        return cls(kv, all_heads, *latent, step, heads, row.integer("k", 2048), *index, kv_dtype=dtype)

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> SparseDecodeTimes | None:
        assert variant == "bf16" or variant == "fp8"
        return SparseDecodeTimes(measured, variant) if SparseSurfaces.are_measured(measured) else None

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return "mla_decode", "bf16"

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        """Attention over an fp8 cache, and the indexer, which knows one format; a bf16 cache's decodes share the
        prefill's kernel."""
        for attention, kv, tp in swept.attentions(LatentAttention):
            index = attention.indexer
            if index is None:
                continue
            if kv == "fp8":
                shape = {**latent_shape(attention, tp), "k": index.topk}
                yield from _decodes(shape, swept.max_kv_tokens, latent_tag(shape))
            else:
                yield from _index_decodes(index, swept.max_kv_tokens)


class SparseDecodeTimes(CacheTimes[SparseMlaDecode]):
    """Times over a cache of one format."""

    def __init__(self, measured: MeasuredTimes, kv: KvDtype):
        self.surfaces, self._kv, self._measured = SparseSurfaces(measured), kv, measured

    def decode_times(self, kernel: SparseMlaDecode, batch: int) -> SparseStepTimes:
        gpu = self._measured.gpu
        one = kernel.over(np.array([kernel.topk])).cost(Precision(kv=self._kv))
        memory_us = 0.0 if self._measured.timing == "graph" else one.cold_bytes / gpu.hbm_bytes_per_s * 1e6
        bound_us = max(memory_us, one.flops / gpu.peak_flops[one.dtype] * 1e6) / kernel.topk
        most = kernel.topk if kernel.step == "attention" else None
        return SparseStepTimes(self.function(kernel, batch), most, bound_us)

    def function(self, kernel: SparseMlaDecode, batch: int) -> PricedVolume:
        """Time as a function of the keys of all requests (of the chosen ones, for attention)."""
        rows = float(batch * kernel.queries)
        if kernel.step == "index_logits":
            return _line(self.surfaces.decode_scores, (float(kernel.queries), float(batch)), batch)
        if kernel.step == "index_topk":
            return _line(self.surfaces.decode_choice, (rows,), batch)
        if self._kv == "fp8":
            found = self.surfaces.decode.price(float(kernel.query_heads), rows)
            flat = linear_through([(0.0, found.time_us), (1.0, found.time_us)], 0.0)
            return PricedVolume(flat, (0.0, np.inf), found.is_estimate, found.source, lambda: found.error)
        surface = self.surfaces.prefill
        keys = np.append(np.geomspace(64.0, kernel.topk, 8)[:-1].round(), float(kernel.topk))
        shapes = np.column_stack([np.full_like(keys, kernel.query_heads), keys, np.full_like(keys, rows)])
        times_us = np.maximum.accumulate(surface.times(shapes))
        longest = surface.price(*shapes[-1].tolist())
        curve = linear_through([(0.0, float(times_us[0])), *zip(keys * batch, times_us, strict=True)], 0.0)
        return PricedVolume(curve, (0.0, np.inf), longest.is_estimate, longest.source, lambda: longest.error)


def _line(surface: Surface, site: tuple[float, ...], batch: int) -> PricedVolume:
    """Time of a site as a function of the keys of ``batch`` sequences."""
    shapes = surface.shapes
    is_own = (shapes[:, : len(site)] == site).all(axis=1)
    longest = float(shapes[:, -1].max())
    lengths = lengths_between(64.0, longest, 1, shapes[is_own, -1])
    steepest = surface.reference.reference_us(np.array([[*site, 2.0 * longest], [*site, longest]]))
    slope_us = float(steepest[0] - steepest[1]) / (longest * batch)
    function, error = through_lengths(surface, site, lengths, lengths * batch, slope_us)
    is_estimate = bool(surface.are_estimates(np.array([[*site, longest]])).any())
    kind = "estimate:" if is_estimate else "interpolated" if is_own.any() else "borrowed"
    reach = (0.0, AXIS_REACH * longest * batch)
    return PricedVolume(function, reach, is_estimate, f"{kind} {surface.reference.label}", error)


@dataclass(frozen=True, slots=True, eq=False)
class SparseStepTimes:
    """One kernel of sparse decode for a batch of one size over consecutive iterations (``DecodeTimes``)."""

    priced: PricedVolume
    most_keys: int | None
    """Keys of a request that count at most; ``None``: all."""
    bound_us_per_key: float
    """Roofline."""

    @property
    def source(self) -> str:
        return self.priced.source

    @property
    def error(self) -> float:
        return self.priced.error_of()

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[…, steps] µs, and […] whether the keys lie beyond the reach of the measurements."""
        keys = keys_by_step(kv_tokens, steps, self.most_keys)
        time_us = np.maximum(self.priced.time(keys), keys * self.bound_us_per_key)
        return time_us, np.asarray(self.priced.is_estimate | (keys[..., -1] > self.priced.volume_range[1]))


def keys_by_step(kv_tokens: NDArray[np.int64], steps: int, most: int | None) -> Floats:
    """[…, steps] Σ_i (S_i + j) over [… , requests], each request's part at most ``most``."""
    if most is None:
        return tokens_by_step(kv_tokens, steps)
    if kv_tokens.ndim > 1:
        return np.stack([keys_by_step(kv, steps, most) for kv in kv_tokens])
    growing = kv_tokens[kv_tokens < most]
    full = (len(kv_tokens) - len(growing)) * most
    later = np.arange(steps, dtype=np.int64)
    return np.asarray(full + np.minimum(growing[None, :] + later[:, None], most).sum(axis=1), dtype=np.float64)


def _decodes(shape: dict[str, int], max_kv: int, tag: str) -> Iterator[Point]:
    """Sparse decode reads ``k`` keys whatever the length, so few lengths show what the length still changes."""
    for queries, batch in [*((1, batch) for batch in _BATCHES), *((2, batch) for batch in _DRAFT_BATCHES)]:
        for kv in (1024, 4096, 32768):
            if kv <= max_kv and batch * kv * SPARSE_FP8_KEY_BYTES <= _CACHE_LIMIT_BYTES:
                size = {"batch": batch, "q_len": queries, "kv_len": kv, "page_tokens": BLOCK_TOKENS}
                lengths, new = (kv,) * batch, (queries,) * batch
                yield point("mla_sparse_decode", "fp8", {**shape, **size}, lengths=lengths, queries=new, tag=tag)


def _index_decodes(index: Indexer, max_kv: int) -> Iterator[Point]:
    scores = {"heads": index.heads, "kv_heads": 1, "d_qk": index.head_dim, "page_tokens": BLOCK_TOKENS}
    for queries, batch in [*((1, batch) for batch in _BATCHES), *((2, batch) for batch in _DRAFT_BATCHES)]:
        for kv in _KV_LENGTHS:
            if kv > max_kv or batch * kv * index.cache_bytes > _CACHE_LIMIT_BYTES:
                continue
            lengths, new = (kv,) * batch, (queries,) * batch
            size = {"batch": batch, "q_len": queries, "kv_len": kv}
            yield point(
                "index_logits_decode", "fp8", {**scores, **size}, lengths=lengths, queries=new, tag="sparse/index"
            )
            if queries == 1:
                choice = {"k": index.topk, **size}
                yield point("index_topk_decode", "", choice, lengths=lengths, queries=new, tag="sparse/index")
