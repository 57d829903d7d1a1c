"""Errors of times that are transferred to an H100, against published ones of the same kernels (``vidur-pd validate``).

Tables of aiconfigurator 095f58a with rows of both GPUs, the same framework and version: the H200's row is transferred
and compared with the H100's, so that what differs between their builds and ours does not count. Nothing is fitted to
the rows that are scored: the form of the transfer was chosen on SGLang 0.5.10's GEMM and attention, which are not among
them, and the errors that estimates claim (`transfer_reference`) are the 68 % quantiles there.

Those benchmarks replay the same operands, so that small ones stay in L2; their GEMMs take up to six copies of the
weights in turns. Both GPUs have the same clock law, so that clocks cancel.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as arrow_compute
import pyarrow.csv as arrow_csv

from aicb.estimators.transfer_reference import Parts, parts_of, shares, transfer_error, transferred_us
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import Kernel, KernelCost
from aicb.kernels.mla_decode import MlaDecode
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.gpu import get_gpu
from aicb.model.precision import GemmDtype, Precision
from boundary.errors import InputError

ORIGIN, TARGET = get_gpu("h200"), get_gpu("h100")
SYSTEMS = {"h200_sxm": ORIGIN, "h100_sxm": TARGET}
LEAST_POINTS = 20
"""Classes with fewer are left out."""
MOST_ROWS = 6000
"""Of a table: every so many rows are taken that no more remain."""
WEIGHT_COPIES = 6
"""That the published GEMMs take in turns."""
PRECISION = Precision()


@dataclass(frozen=True, slots=True)
class TransferErrors:
    """Transferred times of one kernel and class against those of the target."""

    kernel: str
    bound_by: str
    points: int
    ratio: float
    """Time on the H100 over that on the H200, median."""
    bias: float
    """Median error."""
    median: float
    """Of absolute errors."""
    p90: float
    within_claim: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published kernel on both GPUs."""

    kernel: str
    table: str
    chosen: Mapping[str, str]
    shape: tuple[str, ...]
    """Columns that make a shape."""
    cost: Callable[[Sequence[int]], KernelCost]
    """Of a shape."""
    copies: int = 1
    """Operand sets in turns."""


FP8: GemmDtype = "fp8"
BF16: GemmDtype = "bf16"
DTYPES = {"fp8_block": FP8, "bfloat16": BF16}
"""Number formats by the tables' names."""


def _kernel_cost(*kernels: Kernel) -> KernelCost:
    costs = [kernel.cost(PRECISION) for kernel in kernels]
    flops, moved, cold = (sum(column) for column in zip(*(cost[:3] for cost in costs), strict=True))
    return KernelCost(flops, moved, cold, costs[0].dtype)


def _gemm(dtype: GemmDtype) -> Callable[[Sequence[int]], KernelCost]:
    def cost(shape: Sequence[int]) -> KernelCost:
        m, n, k = shape
        return _kernel_cost(Gemm(m, n, k, dtype))

    return cost


def _prefill(shape: Sequence[int]) -> KernelCost:
    heads, kv_heads, dim, batch, length = shape
    lengths = np.full(batch, length)
    return _kernel_cost(PrefillAttention(lengths, lengths, heads, kv_heads, dim, dim))


def _decode(shape: Sequence[int]) -> KernelCost:
    heads, kv_heads, dim, batch, kv = shape
    return _kernel_cost(DecodeAttention(np.full(batch, kv), heads, kv_heads, dim))


def _mla(shape: Sequence[int]) -> KernelCost:
    heads, batch, kv = shape
    return _kernel_cost(MlaDecode(np.full(batch, kv), heads, 576, 512))


def _quant(shape: Sequence[int]) -> KernelCost:
    """fp8 from bf16, one scale."""
    rows, cols = shape
    return _kernel_cost(Elementwise("quant", rows, cols, 3 * rows * cols))


def _experts(dtype: GemmDtype) -> Callable[[Sequence[int]], KernelCost]:
    """Both products of experts with balanced rows."""

    def cost(shape: Sequence[int]) -> KernelCost:
        hidden, inner, experts, top_k, tp, ep, tokens = shape
        local, width = experts // ep, inner // tp
        rows = max(tokens * top_k // ep, 1)
        active = min(local, rows)
        up, down = (
            GroupedGemm(rows, local, active, n, k, dtype, "contiguous")
            for n, k in ((2 * width, hidden), (hidden, width))
        )
        return _kernel_cost(up, down)

    return cost


_GEMM = ("m", "n", "k")
_ATTENTION = ("num_heads", "num_kv_heads", "head_dim", "batch_size")
_MOE = ("hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size", "num_tokens")
_FULL = {"kv_cache_dtype": "bfloat16", "head_dim": "128"}


def comparisons() -> list[Comparison]:
    """The published kernels that are compared. Experts on all ranks alone: with EP the tables have other rows."""
    found = [
        Comparison(
            f"{DTYPES[name]} GEMM, sglang {version}",
            "gemm",
            {"framework": "sglang", "version": version, "gemm_dtype": name},
            _GEMM,
            _gemm(DTYPES[name]),
            WEIGHT_COPIES,
        )
        for version, name in (("0.5.9", "fp8_block"), ("0.5.14", "fp8_block"), ("0.5.14", "bfloat16"))
    ]
    for framework in ("sglang", "vllm"):
        chosen = {"framework": framework, **_FULL}
        prefill = {**chosen, "attn_dtype": "bfloat16"}
        found += [
            Comparison(
                f"prefill attention, {framework}", "attention_context", prefill, (*_ATTENTION, "seq_len"), _prefill
            ),
            Comparison(
                f"decode attention, {framework}", "attention_generation", chosen, (*_ATTENTION, "kv_len"), _decode
            ),
        ]
    latent = {"framework": "sglang", "version": "0.5.10", "kv_cache_dtype": "bfloat16"}
    static = {"framework": "vllm", "quant_dtype": "fp8"}
    found += [
        Comparison("MLA decode, sglang", "mla_generation", latent, ("num_heads", "batch_size", "kv_len"), _mla),
        Comparison("quantisation, vllm", "quantize_scale_matrix", static, ("m", "k"), _quant),
    ]
    for name, dtype in DTYPES.items():
        whole = {"framework": "vllm", "moe_dtype": name, "moe_ep_size": "1", "distribution": "balanced"}
        found.append(Comparison(f"{dtype} experts, vllm", "moe_fused", whole, _MOE, _experts(dtype)))
    return found


def transferred(folder: Path) -> Iterator[TransferErrors]:
    """All comparisons by class of kernel.

    Raises:
        InputError: a table is missing.
    """
    for comparison in comparisons():
        yield from _compare(comparison, folder)


def _compare(comparison: Comparison, folder: Path) -> Iterator[TransferErrors]:
    points = []
    gpus = [replace(gpu, l2_bytes=gpu.l2_bytes // comparison.copies) for gpu in (ORIGIN, TARGET)]
    for shape, (origin_us, target_us) in _pairs(comparison, folder):
        cost = comparison.cost(shape)
        here, there = (parts_of(cost, True, gpu, ORIGIN) for gpu in gpus)
        points.append(compared(origin_us, target_us, (here, there), is_product=comparison.table == "gemm"))
    yield from by_class(comparison.kernel, points)


class Compared(NamedTuple):
    """One kernel on both GPUs."""

    bound_by: str
    error: float
    """Relative, of the transferred time."""
    claimed: float
    ratio: float
    """Time on the target over that on the measured GPU."""


def compared(origin_us: float, target_us: float, on_both: tuple[Parts, Parts], *, is_product: bool) -> Compared:
    """A time on the measured GPU, transferred, against that on the target."""
    bound_by = shares(origin_us, *on_both)
    found = float(transferred_us(origin_us, *on_both))
    claim = transfer_error(bound_by, TARGET, ORIGIN, is_product=is_product)
    return Compared(bound_by.largest, found / target_us - 1.0, claim, target_us / origin_us)


def by_class(kernel: str, points: Iterable[Compared]) -> Iterator[TransferErrors]:
    """Errors of each class with enough points."""
    classes: defaultdict[str, list[Compared]] = defaultdict(list)
    for each in points:
        classes[each.bound_by].append(each)
    for bound_by, found in sorted(classes.items()):
        if len(found) >= LEAST_POINTS:
            yield errors_of_transfers(kernel, bound_by, found)


def errors_of_transfers(kernel: str, bound_by: str, found: Sequence[Compared]) -> TransferErrors:
    """Errors over some points."""
    error, claimed, ratio = np.array([each[1:] for each in found]).T
    size = np.abs(error)
    return TransferErrors(
        kernel=kernel,
        bound_by=bound_by,
        points=len(found),
        ratio=float(np.median(ratio)),
        bias=float(np.median(error)),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        within_claim=float((size <= claimed).mean()),
    )


def _pairs(comparison: Comparison, folder: Path) -> list[tuple[tuple[int, ...], tuple[float, float]]]:
    """Shapes with the mean time [µs] on the H200 and on the H100."""
    path = folder / f"{comparison.table}.csv.gz"
    if not path.is_file():
        raise InputError(f"{folder}: found no {path.name}, expected aiconfigurator's tables of both GPUs")
    table = _read(path)
    for key, value in comparison.chosen.items():
        table = table.filter(arrow_compute.equal(table[key], value))
    times: defaultdict[tuple[int, ...], defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    columns = [table[name].to_pylist() for name in (*comparison.shape, "system", "latency_us")]
    for *shape, system, latency_us in zip(*columns, strict=True):
        times[tuple(map(int, shape))][system].append(float(latency_us))
    both = [(shape, found) for shape, found in times.items() if len(found) == len(SYSTEMS)]
    kept = both[:: -(-len(both) // MOST_ROWS) or 1]
    means = [(shape, tuple(float(np.mean(found[system])) for system in SYSTEMS)) for shape, found in kept]
    return [(shape, (h200, h100)) for shape, (h200, h100) in means]


def _read(path: Path) -> pa.Table:
    """A table of texts."""
    with gzip.open(path) as file:
        names = file.readline().decode().strip().split(",")
        options = arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        return arrow_csv.read_csv(file, arrow_csv.ReadOptions(column_names=names), convert_options=options)
