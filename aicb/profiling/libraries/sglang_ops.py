"""SGLang's own kernels around attention and around the products of experts.

One normalises queries and keys; one rotates them, or rotates them and writes keys and values into the cache; one writes
these alone; one chooses experts by softmax of their scores; two sort the pairs of tokens and experts; and one sums the
results of a token's experts, of up to 32 tokens made by torch.compile (``fused_moe.py``,
``_use_moe_sum_reduce_torch_compile``). Most are compiled at their first use. Signatures of SGLang 0.5.17 are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import BF16_TOLERANCE, Kernel, normal, relative_error
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.modules import import_modules

COMPILED_SUMS = 32
"""Tokens up to which sums are torch.compile's."""
_POSITIONS = 32768
_TILE = 64
_TOLERANCE = 4 * BF16_TOLERANCE
_MODULES = {
    "norm": "sglang.kernels.ops.layernorm.norm",
    "rope": "sglang.kernels.ops.attention.rope",
    "cache": "sglang.kernels.ops.kvcache.kvcache",
    "gate": "sglang.kernels.ops.moe.moe_fused_gate",
    "align": "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size",
    "moe": "sgl_kernel",
}


class SglangOps:
    """Kernels of an installed SGLang, by operation."""

    def __init__(self) -> None:
        found, self._missing = import_modules("sglang", _MODULES.values())
        self._modules: dict[str, Any] = dict(zip(_MODULES, found, strict=False))

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"sglang {version('sglang')}, small kernels"

    def refusal(self, point: Point) -> str | None:
        if point.op not in self._builders:
            return "not one of SGLang's small kernels"
        if point.op in _WITH_HEADS and point["d_qk"] not in (64, 128, 256):
            return "heads of 64, 128 and 256 columns only"
        if point.op == "sglang_sum" and point["experts_per_token"] == 2:
            return "results of two experts are added by torch"
        return None

    def kernel(self, point: Point) -> Kernel:
        return self._builders[point.op](point)

    @property
    def _builders(self) -> dict[str, Callable[[Point], Kernel]]:
        return {
            "qk_norm": self._qk_norm,
            "rope_write": self._rope_write,
            "sglang_rope": self._rope,
            "sglang_kv_write": self._kv_write,
            "sglang_topk": self._topk,
            "sglang_align": self._align,
            "sglang_sum": self._sum,
        }

    def _qk_norm(self, p: Point) -> Kernel:
        """In place, m rows of heads of queries and keys together."""
        heads = _Heads.of(p)
        tokens = p["m"] // (heads.queries + heads.keys)
        q, k, weights = heads.queries_of(tokens), heads.keys_of(tokens), normal(heads.dim, device="cuda")
        norm = self._modules["norm"].fused_inplace_qknorm

        def error() -> float:
            fresh_q, fresh_k = heads.queries_of(tokens), heads.keys_of(tokens)
            expected = [reference.rms_norm(each, weights) for each in (fresh_q, fresh_k)]
            norm(fresh_q, fresh_k, weights, weights)
            return sum(relative_error(*pair) for pair in zip((fresh_q, fresh_k), expected, strict=True))

        return Kernel("sglang/fused_inplace_qknorm", lambda: norm(q, k, weights, weights), [], error, 2 * _TOLERANCE)

    def _rope(self, p: Point) -> Kernel:
        heads, tokens = _Heads.of(p), p["m"]
        q, k, table, positions = heads.queries_of(tokens), heads.keys_of(tokens), _table(heads.dim), _positions(tokens)
        rotate = self._modules["rope"].apply_rope_inplace

        def error() -> float:
            fresh_q, fresh_k = heads.queries_of(tokens), heads.keys_of(tokens)
            cos, sin = table[positions].chunk(2, dim=1)
            expected = [reference.rotate(each, cos, sin) for each in (fresh_q, fresh_k)]
            rotate(fresh_q, fresh_k, table, positions, is_neox=True)
            return sum(relative_error(*pair) for pair in zip((fresh_q, fresh_k), expected, strict=True))

        return Kernel(
            "sglang/apply_rope_inplace",
            lambda: rotate(q, k, table, positions, is_neox=True),
            [],
            error,
            2 * _TOLERANCE,
        )

    def _rope_write(self, p: Point) -> Kernel:
        """Rotates in place and scatters keys and values into random slots."""
        heads, tokens = _Heads.of(p), p["m"]
        q, k, v = heads.queries_of(tokens), heads.keys_of(tokens), heads.keys_of(tokens)
        table, positions = _table(heads.dim), _positions(tokens)
        caches, slots = heads.caches(tokens)
        rotate = self._modules["rope"].apply_rope_inplace_with_kvcache

        def error() -> float:
            fresh = heads.keys_of(tokens)
            expected = reference.rotate(fresh, *table[positions].chunk(2, dim=1)).flatten(1)
            rotate(heads.queries_of(tokens), fresh, v, *caches, table, positions, slots, is_neox=True)
            return relative_error(caches[0][slots], expected) + relative_error(caches[1][slots], v.flatten(1))

        return Kernel(
            "sglang/apply_rope_inplace_with_kvcache",
            lambda: rotate(q, k, v, *caches, table, positions, slots, is_neox=True),
            [],
            error,
            2 * _TOLERANCE,
        )

    def _kv_write(self, p: Point) -> Kernel:
        heads, tokens = _Heads.of(p), p["m"]
        k, v = (heads.keys_of(tokens).flatten(1) for _ in range(2))
        caches, slots = heads.caches(tokens)
        store = self._modules["cache"].store_cache
        return Kernel(
            "sglang/store_cache",
            lambda: store(k, v, *caches, slots),
            list(caches),
            lambda: relative_error(caches[0][slots], k) + relative_error(caches[1][slots], v),
            0.0,
        )

    def _topk(self, p: Point) -> Kernel:
        """The kernel allots its results itself; the bias is zero."""
        k, scores = p["experts_per_token"], normal(p["m"], p["n"], device="cuda")
        bias = torch.zeros(p["n"], device="cuda")
        choose = self._modules["gate"].moe_fused_gate

        def error() -> float:
            expected = scores.double().softmax(dim=1).topk(k, dim=1).values
            found, _ = choose(scores, bias, k, scoring_func="softmax", renormalize=True)
            return relative_error(found, expected / expected.sum(dim=1, keepdim=True))

        return Kernel(
            "sglang/moe_fused_gate",
            lambda: choose(scores, bias, k, scoring_func="softmax", renormalize=True),
            [],
            error,
            1e-4,
        )

    def _align(self, p: Point) -> Kernel:
        k, experts = p["experts_per_token"], p["n"]
        ids = torch.rand(p["m"], experts, device="cuda").topk(k, dim=1).indices.to(torch.int32)
        align = self._modules["align"].moe_align_block_size

        def error() -> float:
            counts = torch.bincount(ids.flatten().long(), minlength=experts)
            expected = int(((counts + _TILE - 1) // _TILE * _TILE).sum())
            return float(abs(int(align(ids, _TILE, experts)[2]) - expected) / ids.numel())

        return Kernel("sglang/moe_align_block_size", lambda: align(ids, _TILE, experts), [], error, 0.0)

    def _sum(self, p: Point) -> Kernel:
        k = p["experts_per_token"]
        tokens = max(p["m"] // k, 1)
        x = normal(tokens, k, p["n"], device="cuda")
        out = torch.empty(tokens, p["n"], device="cuda", dtype=torch.bfloat16)
        add = _compiled_sum() if tokens <= COMPILED_SUMS else self._modules["moe"].moe_sum_reduce
        return Kernel(
            "sglang/moe_sum_reduce",
            lambda: add(x, out, 1.0),
            [out],
            lambda: relative_error(out, x.float().sum(dim=1)),
            _TOLERANCE,
        )


_WITH_HEADS = frozenset({"qk_norm", "rope_write", "sglang_rope", "sglang_kv_write"})


class _Heads:
    """Heads of queries and keys of one rank."""

    def __init__(self, queries: int, keys: int, dim: int):
        self.queries, self.keys, self.dim = queries, keys, dim

    @classmethod
    def of(cls, point: Point) -> _Heads:
        return cls(point["heads"], point["kv_heads"], point["d_qk"])

    def queries_of(self, tokens: int) -> torch.Tensor:
        return normal(tokens, self.queries, self.dim, device="cuda")

    def keys_of(self, tokens: int) -> torch.Tensor:
        return normal(tokens, self.keys, self.dim, device="cuda")

    def caches(self, tokens: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Caches of keys and values ``[slots, columns]``, and a random slot of each token; slot 0 is SGLang's own."""
        size = 4 * tokens + 1
        keys, values = (torch.zeros(size, self.keys * self.dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return (keys, values), 1 + torch.randperm(size - 1, device="cuda")[:tokens]


def _table(dim: int) -> torch.Tensor:
    """Cosines and sines of each position in float32, as SGLang's kernels take them."""
    angles = torch.rand(_POSITIONS, dim // 2, device="cuda") * 6.28
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def _positions(tokens: int) -> torch.Tensor:
    return torch.randint(0, _POSITIONS, (tokens,), device="cuda")


@cache
def _compiled_sum() -> Callable[[torch.Tensor, torch.Tensor, float], object]:
    compiled: Callable[[torch.Tensor, torch.Tensor, float], object] = torch.compile(_summed)
    return compiled


def _summed(x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    torch.sum(x, dim=1, out=out)
    out.mul_(factor)
