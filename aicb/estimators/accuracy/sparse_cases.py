"""Kernels of fp8 caches and of sparse attention, as cases of the accuracy table (`held_out`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from aicb.estimators.interpolation import InterpolationEstimator
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.elementwise import Elementwise, ElementwiseTimes
from aicb.kernels.fitting.surface import Surface
from aicb.kernels.kernel import Kernel
from aicb.kernels.mla_decode import MlaDecode
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.kernels.sparse_decode import SparseDecodeTimes, SparseMlaDecode
from aicb.kernels.sparse_prefill import SparseMlaPrefill, SparseStep
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import Timing
from aicb.model.precision import Precision


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and the columns of its shapes that are held out together."""

    kernel: str
    groups: str
    surface: Surface
    columns: tuple[int, ...]
    kernel_of: Callable[[list[float]], Kernel]
    """The operator of a shape, for estimators that know no surface."""


def surface_of(estimator: InterpolationEstimator, kind: type[Kernel], variant: Hashable = None) -> Surface:
    """The measured times of a kernel."""
    surface = getattr(estimator.fitted(kind, variant), "surface", None)
    assert isinstance(surface, Surface), kind
    return surface


def small_surface(estimator: InterpolationEstimator, name: str) -> Surface:
    """The measured times of a memory-bound kernel."""
    times = estimator.fitted(Elementwise)
    assert isinstance(times, ElementwiseTimes)
    return times.surfaces[name]


def fp8_and_sparse_cases(gpu: Gpu, timing: Timing) -> list[Case]:
    """Attention over an fp8 cache, sparse attention, and the kernels around both caches."""
    estimator = InterpolationEstimator(gpu, Precision(kv="fp8", state="fp32"), timing)
    sparse = estimator.fitted(SparseMlaDecode, "fp8")
    assert isinstance(sparse, SparseDecodeTimes)
    surfaces = sparse.surfaces
    small = {name: small_surface(estimator, name) for name in ("grouped_topk", "latent_write", "kv_write_fp8")}
    return [
        Case(
            "FA3 prefill, fp8", "(q, S)", surface_of(estimator, PrefillAttention, ("fp8", True)), (5, 6), _fp8_prefill
        ),
        Case(
            "FA3 decode, fp8", "batch column", surface_of(estimator, DecodeAttention, "fp8"), (0, 1, 2, 3), _fp8_decode
        ),
        Case(
            "FlashMLA decode, fp8", "batch column", surface_of(estimator, MlaDecode, "fp8"), (0, 1), _fp8_latent_decode
        ),
        Case("sparse prefill", "(keys, q)", surfaces.prefill, (1, 2), _sparse_prefill),
        Case("index scores, prefill", "(keys, q)", surfaces.prefill_scores, (0, 1), _index("index_logits")),
        Case("index top-k, prefill", "(keys, q)", surfaces.prefill_choice, (0, 1), _index("index_topk")),
        Case("sparse decode, fp8", "(heads, batch)", surfaces.decode, (0, 1), _sparse_decode),
        Case("index scores, decode", "batch column", surfaces.decode_scores, (0, 1), _index_scores),
        Case("index top-k, decode", "batch column", surfaces.decode_choice, (0,), _index_topk),
        *(Case(name, "m", surface, (1,), _small(name)) for name, surface in small.items()),
    ]


def _fp8_prefill(shape: list[float]) -> Kernel:
    heads, kv_heads, d_qk, d_v, _, kv, new = map(int, shape)
    return PrefillAttention(np.array([new]), np.array([kv]), heads, kv_heads, d_qk, d_v, "fp8")


def _fp8_decode(shape: list[float]) -> Kernel:
    heads, kv_heads, dim, batch, kv = map(int, shape)
    return DecodeAttention(np.full(batch, kv), heads, kv_heads, dim, kv_dtype="fp8")


def _fp8_latent_decode(shape: list[float]) -> Kernel:
    heads, batch, kv = map(int, shape)
    return MlaDecode(np.full(batch, kv), heads, 576, 512, kv_dtype="fp8")


def _chunk(keys: float, queries: float) -> tuple[int, int]:
    """(new, KV) tokens of a chunk whose queries see so many keys on average."""
    new = int(queries)
    return new, max(round(keys + (new - 1) / 2), new)


def _prefill(kernel: SparseStep, heads: int, size: tuple[int, int]) -> Kernel:
    new, kv = np.array([size[0]]), np.array([size[1]])
    return SparseMlaPrefill(new, kv, kernel, heads, 576, 512, 2048, 64, 128)


def _sparse_prefill(shape: list[float]) -> Kernel:
    heads, keys, queries = shape
    return _prefill("attention", int(heads), _chunk(keys, queries))


def _index(kernel: SparseStep) -> Callable[[list[float]], Kernel]:
    return lambda shape: _prefill(kernel, 128, _chunk(*shape))


def _step(kernel: SparseStep, heads: int, queries: int, size: tuple[int, int]) -> Kernel:
    kv = np.full(size[0], size[1])
    return SparseMlaDecode(kv, heads * queries, 576, 512, kernel, heads, 2048, 64, 128, kv_dtype="fp8")


def _sparse_decode(shape: list[float]) -> Kernel:
    return _step("attention", int(shape[0]), 1, (int(shape[1]), 4096))


def _index_scores(shape: list[float]) -> Kernel:
    queries, batch, kv = map(int, shape)
    return _step("index_logits", 128, queries, (batch, kv))


def _index_topk(shape: list[float]) -> Kernel:
    return _step("index_topk", 128, 1, (int(shape[0]), int(shape[1])))


def _small(kernel: str) -> Callable[[list[float]], Kernel]:
    per_element = 3 if kernel.endswith("fp8") else 4
    return lambda s: Elementwise(kernel, int(s[1]), int(s[0]), per_element * int(s[0]) * int(s[1]))
