"""vLLM's own memory-bound kernels (modules ``_C`` and ``_moe_C``): norms, RoPE, activation, quantisation, routing.

These run in the engine where its compiler does not replace them. Signatures of vLLM 0.24 are used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import BF16_TOLERANCE, Kernel, normal, relative_error
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.modules import load_operators, operators

_EPSILON = 1e-6
_NORM_TOLERANCE = 4 * BF16_TOLERANCE
_QUANT_TOLERANCE = 2.0**-4
"""e4m3 keeps 3 bits: rounding is at most 2^-4 relative, about 0.027 in norm."""
_SUM_TOLERANCE = 2.0**-12
"""Sums in fp32 of products of bf16 values, or of those and fp32."""
_BLOCK_TOKENS = 16
_POSITIONS = 32768


class VllmOps:
    """``torch.ops._C``, ``_C_cache_ops`` and ``_moe_C``."""

    def __init__(self, core: Path | None = None, moe: Path | None = None):
        reasons = [load_operators("_C_stable_libtorch", core), load_operators("_moe_C_stable_libtorch", moe)]
        self._missing = "; ".join(reason for reason in reasons if reason) if all(reasons) else None
        self._builders: dict[str, tuple[str, str, Callable[[Point], Kernel]]] = {
            "rms_norm": ("_C", "rms_norm", _rms_norm),
            "head_norm": ("_C", "rms_norm", _rms_norm),
            "add_rms_norm": ("_C", "fused_add_rms_norm", _add_rms_norm),
            "rope": ("_C", "rotary_embedding", _rope),
            "silu_and_mul": ("_C", "silu_and_mul", _silu_mul),
            "silu_mul_quant": ("_C", "silu_and_mul_per_block_quant", _silu_mul_quant),
            "group_quant": ("_C", "per_token_group_fp8_quant", _quant),
            "kv_write": ("_C_cache_ops", "reshape_and_cache_flash", _kv_write),
            "topk": ("_moe_C", "topk_softmax", _topk),
            "topk_softmax": ("_moe_C", "topk_softmax", _topk),
            "unpermute": ("_moe_C", "moe_sum", _sum),
            "moe_align": ("_moe_C", "moe_align_block_size", _align),
            "router_fp32_few": ("_C", "fp32_router_gemm", _scores_in_fp32),
            "router_few": ("_moe_C", "dsv3_router_gemm", _scores),
        }

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension modules _C, _moe_C (stable ABI)"

    def refusal(self, point: Point) -> str | None:
        if point.op not in self._builders:
            return "not one of vLLM's small kernels"
        namespace, name, _ = self._builders[point.op]
        if operators(namespace, name) is None:
            return f"torch.ops.{namespace}.{name} is not registered"
        if point.op == "kv_write" and point.get("d_v", 0) == 0:
            return "latent cache writes have another layout"
        if point.op in ("group_quant", "silu_mul_quant") and point["n"] % 128:
            return "columns are not a multiple of 128"
        return None

    def kernel(self, point: Point) -> Kernel:
        return self._builders[point.op][2](point)


def _scores_in_fp32(p: Point) -> Kernel:
    x, w = normal(p["m"], p["k"], device="cuda"), normal(p["n"], p["k"], device="cuda").float()
    return _router("fp32_router_gemm", torch.ops._C.fp32_router_gemm, x, w)


def _scores(p: Point) -> Kernel:
    x, w = normal(p["m"], p["k"], device="cuda"), normal(p["n"], p["k"], device="cuda")
    return _router("dsv3_router_gemm", torch.ops._moe_C.dsv3_router_gemm, x, w)


def _router(name: str, score: Callable[..., object], x: torch.Tensor, w: torch.Tensor) -> Kernel:
    out = torch.empty(x.shape[0], w.shape[0], device="cuda", dtype=torch.float32)
    return Kernel(
        f"vllm/{name}",
        lambda: score(out, x, w),
        [out],
        lambda: relative_error(out, x.double() @ w.double().T),
        _SUM_TOLERANCE,
    )


def _rms_norm(p: Point) -> Kernel:
    x, w = normal(p["m"], p["n"], device="cuda"), normal(p["n"], device="cuda")
    out = torch.empty_like(x)
    return Kernel(
        "vllm/rms_norm",
        lambda: torch.ops._C.rms_norm(out, x, w, _EPSILON),
        [out],
        lambda: relative_error(out, reference.rms_norm(x, w)),
        _NORM_TOLERANCE,
    )


def _add_rms_norm(p: Point) -> Kernel:
    """In place: x becomes the norm of x + residual, the residual the sum. Repeated calls keep sizes, not values."""
    x, residual = normal(p["m"], p["n"], device="cuda"), normal(p["m"], p["n"], device="cuda")
    w = torch.ones(p["n"], device="cuda", dtype=torch.bfloat16)

    def error() -> float:
        first, second = normal(p["m"], p["n"], device="cuda"), normal(p["m"], p["n"], device="cuda")
        expected = reference.rms_norm(first.float() + second.float(), w)
        torch.ops._C.fused_add_rms_norm(first, second, w, _EPSILON)
        return relative_error(first, expected)

    return Kernel(
        "vllm/fused_add_rms_norm",
        lambda: torch.ops._C.fused_add_rms_norm(x, residual, w, _EPSILON),
        [],
        error,
        _NORM_TOLERANCE,
    )


def _rope(p: Point) -> Kernel:
    """Rotates all n columns as heads of d_qk, in place."""
    d = p["d_qk"]
    x = normal(p["m"], p["n"], device="cuda")
    positions = torch.randint(0, _POSITIONS, (p["m"],), device="cuda")
    angles = torch.rand(_POSITIONS, d // 2, device="cuda") * 6.28
    table = torch.cat([angles.cos(), angles.sin()], dim=1).to(torch.bfloat16)

    def error() -> float:
        fresh = normal(p["m"], p["n"], device="cuda")
        cos, sin = table[positions].chunk(2, dim=1)
        expected = reference.rotate(fresh.view(p["m"], -1, d), cos, sin).flatten(1)
        torch.ops._C.rotary_embedding(positions, fresh, None, d, table, True)
        return relative_error(fresh, expected)

    return Kernel(
        "vllm/rotary_embedding",
        lambda: torch.ops._C.rotary_embedding(positions, x, None, d, table, True),
        [],
        error,
        4 * BF16_TOLERANCE,
    )


def _silu_mul(p: Point) -> Kernel:
    x = normal(p["m"], 2 * p["n"], device="cuda")
    out = torch.empty(p["m"], p["n"], device="cuda", dtype=torch.bfloat16)
    return Kernel(
        "vllm/silu_and_mul",
        lambda: torch.ops._C.silu_and_mul(out, x),
        [out],
        lambda: relative_error(out, silu_mul(x)),
        _NORM_TOLERANCE,
    )


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu of the first half of the columns times the second, in float32."""
    gate, up = x.float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def _silu_mul_quant(p: Point) -> Kernel:
    x = normal(p["m"], 2 * p["n"], device="cuda")
    out = torch.empty(p["m"], p["n"], device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(p["m"], p["n"] // 128, device="cuda")
    return Kernel(
        "vllm/silu_and_mul_per_block_quant",
        lambda: torch.ops._C.silu_and_mul_per_block_quant(out, x, scales, 128, None, False),
        [out, scales],
        lambda: relative_error(reference.dequantise_rows(out, scales), silu_mul(x)),
        _QUANT_TOLERANCE,
    )


def _quant(p: Point) -> Kernel:
    x = normal(p["m"], p["n"], device="cuda")
    out = torch.empty(p["m"], p["n"], device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(p["n"] // 128, p["m"], device="cuda").T
    largest = reference.FP8_LARGEST
    return Kernel(
        "vllm/per_token_group_fp8_quant",
        lambda: torch.ops._C.per_token_group_fp8_quant(
            x, out, scales, 128, 1e-10, -largest, largest, False, True, False
        ),
        [out, scales],
        lambda: relative_error(reference.dequantise_rows(out, scales), x),
        _QUANT_TOLERANCE,
    )


def _kv_write(p: Point) -> Kernel:
    """Scatters keys and values of m tokens, kv_heads of d_v each, into random slots of a paged cache."""
    heads, d = p["kv_heads"], p["d_v"]
    k, v = (normal(p["m"], heads, d, device="cuda") for _ in range(2))
    blocks = 4 * (p["m"] // _BLOCK_TOKENS + 1)
    caches = [torch.zeros(blocks, _BLOCK_TOKENS, heads, d, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    slots = torch.randperm(blocks * _BLOCK_TOKENS, device="cuda")[: p["m"]]
    one = torch.ones((), device="cuda")
    return Kernel(
        "vllm/reshape_and_cache_flash",
        lambda: torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, *caches, slots, "auto", one, one),
        caches,
        lambda: relative_error(caches[0].flatten(0, 1)[slots], k) + relative_error(caches[1].flatten(0, 1)[slots], v),
        0.0,
    )


def _topk(p: Point) -> Kernel:
    k = p["experts_per_token"]
    logits = normal(p["m"], p["n"], device="cuda", dtype=torch.float32 if p.op == "topk" else torch.bfloat16)
    weights = torch.empty(p["m"], k, device="cuda")
    ids, sources = (torch.empty(p["m"], k, dtype=torch.int32, device="cuda") for _ in range(2))

    def error() -> float:
        expected = logits.double().softmax(dim=1).topk(k, dim=1).values
        return relative_error(weights, expected / expected.sum(dim=1, keepdim=True))

    return Kernel(
        "vllm/topk_softmax",
        lambda: torch.ops._moe_C.topk_softmax(weights, ids, sources, logits, True, None),
        [weights],
        error,
        1e-4,
    )


def _sum(p: Point) -> Kernel:
    """Sums the k expert outputs of each token (their weights were applied by the down projection)."""
    k = p["experts_per_token"]
    tokens = max(p["m"] // k, 1)
    x = normal(tokens, k, p["n"], device="cuda")
    out = torch.empty(tokens, p["n"], device="cuda", dtype=torch.bfloat16)
    return Kernel(
        "vllm/moe_sum",
        lambda: torch.ops._moe_C.moe_sum(x, out),
        [out],
        lambda: relative_error(out, x.float().sum(dim=1)),
        4 * BF16_TOLERANCE,
    )


def _align(p: Point) -> Kernel:
    """Sorts (token, expert) pairs by expert and pads each expert to the row tile of the grouped GEMM."""
    k, experts, tile = p["experts_per_token"], p["n"], 64
    ids = torch.rand(p["m"], experts, device="cuda").topk(k, dim=1).indices.to(torch.int32)
    most = ids.numel() + experts * (tile - 1)
    order = torch.empty(most, dtype=torch.int32, device="cuda")
    owners = torch.empty(-(-most // tile), dtype=torch.int32, device="cuda")
    padded = torch.empty(1, dtype=torch.int32, device="cuda")

    def error() -> float:
        counts = torch.bincount(ids.flatten().long(), minlength=experts)
        expected = int(((counts + tile - 1) // tile * tile).sum())
        return float(abs(int(padded) - expected) / ids.numel())

    return Kernel(
        "vllm/moe_align_block_size",
        lambda: torch.ops._moe_C.moe_align_block_size(ids, experts, tile, order, owners, padded, None),
        [padded],
        error,
        0.0,
    )
