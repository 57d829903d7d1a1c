"""Kernels that ship with torch: cuBLAS GEMMs, indexing, arg-max, grouped bf16 GEMM; on a CPU also plain attention.

On a GPU this library serves only what engines take from torch. On a CPU it serves every operation of small shapes, so
that the whole harness runs without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import (
    ATTENTION_TOLERANCE,
    BF16_TOLERANCE,
    Kernel,
    normal,
    relative_error,
    some_rows,
)
from aicb.profiling.libraries import reference

FP32_TOLERANCE = 2.0**-18
"""Sums of thousands of products in fp32, in another order; TF32 would be off by 2^-11."""
_CPU_ONLY = {"prefill_attention", "decode_attention", "rms_norm", "silu_mul"}


class TorchNative:
    """torch on ``cuda`` or ``cpu``."""

    def __init__(self, device: str):
        self._device = device
        self._builders: dict[str, Callable[[Point, str], Kernel]] = {
            "gemm": _gemm,
            "router_fp32": _scores_in_fp32,
            "bmm": _bmm,
            "grouped_gemm_contiguous": _grouped,
            "embedding": _embedding,
            "sampling": _sampling,
            "permute": _permute,
            "moe_sum": _sum_of_experts,
            "expert_copy": _copy,
            "add": _add,
            "device_copy": _copy,
            "memset": _memset,
            "prefill_attention": _attention,
            "decode_attention": _attention,
            "rms_norm": _rms_norm,
            "silu_mul": _silu_mul,
        }

    def missing(self) -> str | None:
        if self._device == "cuda" and not torch.cuda.is_available():
            return "torch finds no CUDA device"
        return None

    def version(self) -> str:
        return f"torch {torch.__version__}"

    def refusal(self, point: Point) -> str | None:
        if point.op not in self._builders or (self._device == "cuda" and point.op in _CPU_ONLY):
            return "not an operation that engines take from torch"
        if point.dtype not in ("bf16", ""):
            return f"no {point.dtype} kernel"
        if point.op == "grouped_gemm_contiguous" and (self._device == "cpu" or not hasattr(torch, "_grouped_mm")):
            return "torch._grouped_mm is not available"
        return None

    def kernel(self, point: Point) -> Kernel:
        return self._builders[point.op](point, self._device)


def _gemm(point: Point, device: str) -> Kernel:
    m, n, k = point["m"], point["n"], point["k"]
    x, w = normal(m, k, device=device), normal(n, k, device=device)
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    rows = some_rows(m)
    return Kernel(
        "cublas/linear" if device == "cuda" else "torch/linear",
        lambda: torch.mm(x, w.T, out=out),
        [out],
        lambda: relative_error(out[rows], reference.matmul_rows(x, w, rows)),
        BF16_TOLERANCE,
    )


def _scores_in_fp32(point: Point, device: str) -> Kernel:
    """Cast and product, as vLLM calls torch."""
    m, n, k = point["m"], point["n"], point["k"]
    x, w = normal(m, k, device=device), normal(n, k, device=device).float()
    holder = [torch.empty(0, device=device)]
    rows = some_rows(m)

    def run() -> None:
        holder[0] = torch.nn.functional.linear(x.float(), w)

    def error() -> float:
        return relative_error(holder[0][rows], x[rows].double() @ w.double().T)

    return Kernel("cublas/fp32_linear" if device == "cuda" else "torch/linear", run, [], error, FP32_TOLERANCE)


def _bmm(point: Point, device: str) -> Kernel:
    heads, m, n, k = point["heads"], point["m"], point["n"], point["k"]
    x, w = normal(heads, m, k, device=device), normal(heads, k, n, device=device)
    out = torch.empty(heads, m, n, device=device, dtype=torch.bfloat16)
    rows = some_rows(m)
    return Kernel(
        "cublas/bmm" if device == "cuda" else "torch/bmm",
        lambda: torch.bmm(x, w, out=out),
        [out],
        lambda: relative_error(out[:, rows], torch.bmm(x[:, rows].float(), w.float())),
        BF16_TOLERANCE,
    )


def _grouped(point: Point, device: str) -> Kernel:
    """``torch._grouped_mm``: rows sorted by expert, experts end at ``offsets``; no padding."""
    n, k, counts = point["n"], point["k"], torch.tensor(point.lengths)
    x, w = normal(point["rows"], k, device=device), normal(point["groups"], n, k, device=device)
    offsets = counts.cumsum(0).to(torch.int32).to(device)
    holder: list[torch.Tensor] = [torch.empty(0, device=device)]

    def run() -> None:
        holder[0] = torch._grouped_mm(x, w.transpose(1, 2), offs=offsets)

    def error() -> float:
        largest = int(counts.argmax())
        start, stop = int(offsets[largest]) - point.lengths[largest], int(offsets[largest])
        rows = [start + row for row in some_rows(stop - start)]
        return relative_error(holder[0][rows], reference.matmul_rows(x, w[largest], rows))

    return Kernel("torch/_grouped_mm", run, [], error, BF16_TOLERANCE)


def _embedding(point: Point, device: str) -> Kernel:
    """Lookup of random rows in a table of 32,768 (the vocabulary does not matter: one row is read per token)."""
    table = normal(32768, point["n"], device=device)
    ids = torch.randint(0, 32768, (point["m"],), device=device)
    out = torch.empty(point["m"], point["n"], device=device, dtype=torch.bfloat16)
    return Kernel(
        "torch/index_select",
        lambda: torch.index_select(table, 0, ids, out=out),
        [out],
        lambda: relative_error(out, table[ids]),
        0.0,
    )


def _permute(point: Point, device: str) -> Kernel:
    """Gathers each token's row once per expert chosen, in expert order."""
    k = point.get("experts_per_token", 1)
    source = normal(max(point["m"] // k, 1), point["n"], device=device)
    order = torch.randperm(point["m"], device=device) % source.shape[0]
    out = torch.empty(point["m"], point["n"], device=device, dtype=torch.bfloat16)
    return Kernel(
        "torch/index_select",
        lambda: torch.index_select(source, 0, order, out=out),
        [out],
        lambda: relative_error(out, source[order]),
        0.0,
    )


def _sum_of_experts(point: Point, device: str) -> Kernel:
    """Sums the k expert outputs of each token, as vLLM does for more than four."""
    k = point["experts_per_token"]
    x = normal(max(point["m"] // k, 1), k, point["n"], device=device)
    out = torch.empty(x.shape[0], point["n"], device=device, dtype=torch.bfloat16)
    return Kernel(
        "torch/sum",
        lambda: torch.sum(x, dim=1, out=out),
        [out],
        lambda: relative_error(out, x.float().sum(dim=1)),
        4 * BF16_TOLERANCE,
    )


def _sampling(point: Point, device: str) -> Kernel:
    """Greedy: bf16 logits to fp32, then arg-max, as vLLM's sampler does."""
    logits = normal(point["m"], point["n"], device=device)
    out = torch.empty(point["m"], dtype=torch.int64, device=device)

    def error() -> float:
        best = logits.float().amax(dim=1)
        found = logits.float().gather(1, out.clamp(0, point["n"] - 1)[:, None])[:, 0]
        return relative_error(found, best)

    return Kernel("torch/float_argmax", lambda: torch.argmax(logits.float(), dim=1, out=out), [out], error, 0.0)


def _add(point: Point, device: str) -> Kernel:
    x, y = normal(point["m"], point["n"], device=device), normal(point["m"], point["n"], device=device)
    out = torch.empty_like(x)
    return Kernel(
        "torch/add",
        lambda: torch.add(x, y, out=out),
        [out],
        lambda: relative_error(out, x.float() + y.float()),
        BF16_TOLERANCE,
    )


def _copy(point: Point, device: str) -> Kernel:
    x = normal(point["m"], point["n"], device=device)
    out = torch.empty_like(x)
    return Kernel("torch/copy_", lambda: out.copy_(x), [out], lambda: relative_error(out, x), 0.0)


def _memset(point: Point, device: str) -> Kernel:
    out = torch.empty(point["m"], point["n"], device=device, dtype=torch.bfloat16)
    return Kernel("torch/zero_", lambda: out.zero_(), [out], lambda: float(out.abs().max()), 0.0)


def _rms_norm(point: Point, device: str) -> Kernel:
    x, w = normal(point["m"], point["n"], device=device), normal(point["n"], device=device)
    holder: list[torch.Tensor] = [x]

    def run() -> None:
        holder[0] = torch.nn.functional.rms_norm(x, (point["n"],), w, 1e-6)

    return Kernel(
        "torch/rms_norm", run, [], lambda: relative_error(holder[0], reference.rms_norm(x, w)), 4 * BF16_TOLERANCE
    )


def _silu_mul(point: Point, device: str) -> Kernel:
    x = normal(point["m"], 2 * point["n"], device=device)
    gate, up = x.chunk(2, dim=1)
    holder: list[torch.Tensor] = [x]

    def run() -> None:
        holder[0] = torch.nn.functional.silu(gate) * up

    return Kernel(
        "torch/silu_mul",
        run,
        [],
        lambda: relative_error(holder[0], torch.nn.functional.silu(gate.float()) * up.float()),
        4 * BF16_TOLERANCE,
    )


def _attention(point: Point, device: str) -> Kernel:
    """``scaled_dot_product_attention``, one call per sequence."""
    heads, kv_heads, d_qk, d_v = (point[name] for name in ("heads", "kv_heads", "d_qk", "d_v"))
    parts = []
    for new, keys in zip(point.queries, point.lengths, strict=True):
        q, k = normal(new, heads, d_qk, device=device), normal(keys, kv_heads, d_qk, device=device)
        v = normal(keys, kv_heads, d_v, device=device)
        positions = torch.arange(keys - new, keys, device=device)
        parts.append((q, k, v, positions, torch.arange(keys, device=device)[None] <= positions[:, None]))
    holder: list[torch.Tensor] = []

    def run() -> None:
        holder[:] = [
            torch.nn.functional.scaled_dot_product_attention(
                q.transpose(0, 1),
                k.repeat_interleave(heads // kv_heads, 1).transpose(0, 1),
                v.repeat_interleave(heads // kv_heads, 1).transpose(0, 1),
                attn_mask=mask,
            )
            for q, k, v, _, mask in parts
        ]

    def error() -> float:
        return max(
            relative_error(found.transpose(0, 1), reference.attention(q, k, v, positions))
            for found, (q, k, v, positions, _) in zip(holder, parts, strict=True)
        )

    return Kernel("torch/scaled_dot_product_attention", run, [], error, ATTENTION_TOLERANCE)
