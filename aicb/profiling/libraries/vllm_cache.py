"""vLLM's kernels around the cache of latent and fp8 attention, and DeepSeek's grouped router (vLLM 0.24 signatures).

Writes of latents, fp8 keys and index keys; gathers of cached latents for a prefill's past; the merge of attention over
past and new keys by log-sum-exp; sigmoid scores with bias, groups, top-k.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from aicb.kernels.point import Point
from aicb.kernels.sparse_prefill import SPARSE_FP8_KEY_BYTES
from aicb.model.precision import SCALE_BYTES
from aicb.profiling.kernel_library import BF16_TOLERANCE, Kernel, normal, relative_error
from aicb.profiling.libraries.modules import load_operators, operators

PAGE_TOKENS = 64
LATENT, VALUE = 576, 512
_FP8_TOLERANCE = 2.0**-4
"""e4m3 keeps 3 bits: rounding is at most 2^-4 relative, about 0.027 in norm."""
_ROUTED_SCALE = 2.5
"""``routed_scaling_factor`` of DeepSeek-V3."""
_GROUPS = {256: (8, 4)}
"""Experts → (groups, groups kept); one group elsewhere (Kimi-K2)."""
_CACHE_FORMATS = {"": ("auto", LATENT), "_fp8": ("fp8", LATENT), "_sparse_fp8": ("fp8_ds_mla", SPARSE_FP8_KEY_BYTES)}
"""Suffix of the operation → vLLM's name of the cache's format, elements of a row."""


class VllmCache:
    """``torch.ops._C_cache_ops``, ``_C`` and ``_moe_C``."""

    def __init__(self, core: Path | None = None, moe: Path | None = None):
        reasons = [load_operators("_C_stable_libtorch", core), load_operators("_moe_C_stable_libtorch", moe)]
        self._missing = "; ".join(reason for reason in reasons if reason) if all(reasons) else None
        write, gather = ("_C_cache_ops", "concat_and_cache_mla"), ("_C_cache_ops", "gather_and_maybe_dequant_cache")
        self._builders: dict[str, tuple[tuple[str, str], Callable[[Point], Kernel]]] = {
            "latent_write": (write, _latent_write),
            "latent_write_fp8": (write, _latent_write),
            "latent_write_sparse_fp8": (write, _latent_write),
            "latent_gather": (gather, _latent_gather),
            "latent_gather_fp8": (gather, _latent_gather),
            "latent_gather_sparse_fp8": (("_C_cache_ops", "cp_gather_and_upconvert_fp8_kv_cache"), _latent_expand),
            "kv_write_fp8": (("_C_cache_ops", "reshape_and_cache_flash"), _kv_write),
            "index_write": (("_C_cache_ops", "indexer_k_quant_and_cache"), _index_write),
            "index_gather": (("_C_cache_ops", "cp_gather_indexer_k_quant_cache"), _index_gather),
            "merge_states": (("_C", "merge_attn_states"), _merge),
            "grouped_topk": (("_moe_C", "grouped_topk"), _grouped_topk),
        }

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension modules _C, _moe_C (stable ABI)"

    def refusal(self, point: Point) -> str | None:
        if point.op not in self._builders:
            return "not one of vLLM's cache kernels"
        (namespace, name), _ = self._builders[point.op]
        if operators(namespace, name) is None:
            return f"torch.ops.{namespace}.{name} is not registered"
        return None

    def kernel(self, point: Point) -> Kernel:
        return self._builders[point.op][1](point)


def _latent_write(p: Point) -> Kernel:
    """Scatters latents and rotary keys of m tokens into random slots."""
    name, width = _CACHE_FORMATS[p.op.removeprefix("latent_write")]
    latent, rotary = normal(p["m"], VALUE, device="cuda"), normal(p["m"], LATENT - VALUE, device="cuda")
    dtype = torch.bfloat16 if name == "auto" else torch.uint8
    cache = torch.zeros(_pages(4 * p["m"]), PAGE_TOKENS, width, device="cuda", dtype=dtype)
    slots = torch.randperm(cache.shape[0] * PAGE_TOKENS, device="cuda")[: p["m"]]
    one = torch.ones(1, device="cuda")

    def error() -> float:
        rows = cache.flatten(0, 1)[slots]
        return relative_error(_expand(rows, name), torch.cat([latent, rotary], dim=1).float())

    return Kernel(
        f"vllm/concat_and_cache_mla({name})",
        lambda: torch.ops._C_cache_ops.concat_and_cache_mla(latent, rotary, cache, slots, name, one),
        [cache] if name == "auto" else [],
        error,
        0.0 if name == "auto" else _FP8_TOLERANCE,
    )


def _expand(rows: torch.Tensor, name: str) -> torch.Tensor:
    """[rows, 576] float32 of cached rows."""
    if name == "auto":
        return rows.float()
    if name == "fp8":
        return rows.view(torch.float8_e4m3fn).float()
    scales = rows[:, VALUE : VALUE + 16].contiguous().view(torch.float32).repeat_interleave(128, dim=1)
    latent = rows[:, :VALUE].contiguous().view(torch.float8_e4m3fn).float() * scales
    return torch.cat([latent, rows[:, VALUE + 16 :].contiguous().view(torch.bfloat16).float()], dim=1)


def _latent_gather(p: Point) -> Kernel:
    """Copies m cached latents of one request out of their pages; an fp8 cache is expanded to bf16 on the way."""
    name, _ = _CACHE_FORMATS[p.op.removeprefix("latent_gather")]
    pages = _pages(p["m"])
    source = normal(2 * pages, PAGE_TOKENS, LATENT, device="cuda")
    cache = source if name == "auto" else source.to(torch.float8_e4m3fn).view(torch.uint8)
    table = torch.randperm(2 * pages, device="cuda")[:pages].to(torch.int32)[None]
    out = torch.empty(p["m"], LATENT, device="cuda", dtype=torch.bfloat16)
    starts = torch.tensor([0, p["m"]], dtype=torch.int32, device="cuda")
    owner, one = torch.zeros(p["m"], dtype=torch.int32, device="cuda"), torch.ones(1, device="cuda")
    arguments = (cache, out, table, starts, owner, p["m"], name, one, None)

    def error() -> float:
        rows = cache[table[0].long()].flatten(0, 1)[: p["m"]]
        return relative_error(out, _expand(rows, name))

    call = torch.ops._C_cache_ops.gather_and_maybe_dequant_cache
    label = f"vllm/gather_and_maybe_dequant_cache({name})"
    return Kernel(label, lambda: call(*arguments), [out], error, 0.0 if name == "auto" else BF16_TOLERANCE)


def _latent_expand(p: Point) -> Kernel:
    """Expands m cached 656-byte latents of one request to bf16."""
    pages = _pages(p["m"])
    rows = 2 * pages * PAGE_TOKENS
    cache = torch.empty(rows, SPARSE_FP8_KEY_BYTES, device="cuda", dtype=torch.uint8)
    cache[:, :VALUE] = normal(rows, VALUE, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8)
    cache[:, VALUE : VALUE + 16] = (torch.rand(rows, 4, device="cuda") + 0.5).view(torch.uint8)
    cache[:, VALUE + 16 :] = normal(rows, LATENT - VALUE, device="cuda").view(torch.uint8)
    table = torch.randperm(2 * pages, device="cuda")[:pages].to(torch.int32)[None]
    out = torch.empty(p["m"], LATENT, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([p["m"]], dtype=torch.int32, device="cuda")
    start = torch.zeros(1, dtype=torch.int32, device="cuda")
    paged = cache.view(-1, PAGE_TOKENS, SPARSE_FP8_KEY_BYTES)
    call = torch.ops._C_cache_ops.cp_gather_and_upconvert_fp8_kv_cache

    def error() -> float:
        wanted = paged[table[0].long()].flatten(0, 1)[: p["m"]]
        return relative_error(out, _expand(wanted, "fp8_ds_mla"))

    label = "vllm/cp_gather_and_upconvert_fp8_kv_cache"
    return Kernel(label, lambda: call(paged, out, table, lengths, start, 1), [out], error, 2 * BF16_TOLERANCE)


def _kv_write(p: Point) -> Kernel:
    """Quantises and scatters keys and values of m tokens, kv_heads of d_v each."""
    heads, d = p["kv_heads"], p["d_v"]
    k, v = (normal(p["m"], heads, d, device="cuda") for _ in range(2))
    blocks = -(-4 * p["m"] // 16)
    caches = [torch.zeros(blocks, 16, heads, d, device="cuda", dtype=torch.uint8) for _ in range(2)]
    slots = torch.randperm(blocks * 16, device="cuda")[: p["m"]]
    one = torch.ones(1, device="cuda")

    def error() -> float:
        written = [cache.flatten(0, 1)[slots].view(torch.float8_e4m3fn) for cache in caches]
        return max(relative_error(written[0].float(), k.float()), relative_error(written[1].float(), v.float()))

    return Kernel(
        "vllm/reshape_and_cache_flash(fp8)",
        lambda: torch.ops._C_cache_ops.reshape_and_cache_flash(k, v, *caches, slots, "fp8", one, one),
        [],
        error,
        _FP8_TOLERANCE,
    )


def _index_write(p: Point) -> Kernel:
    """Quantises m index keys of n elements, one scale each; a page holds its elements, then its scales."""
    d = p["n"]
    keys = normal(p["m"], d, device="cuda")
    cache = torch.zeros(_pages(4 * p["m"]), PAGE_TOKENS, d + SCALE_BYTES, device="cuda", dtype=torch.uint8)
    slots = torch.randperm(cache.shape[0] * PAGE_TOKENS, device="cuda")[: p["m"]]

    def error() -> float:
        values, scales = _index_rows(cache, d)
        return relative_error(values[slots].float() * scales[slots, None], keys.float())

    call = torch.ops._C_cache_ops.indexer_k_quant_and_cache
    label = "vllm/indexer_k_quant_and_cache"
    return Kernel(label, lambda: call(keys, cache, slots, d, "ue8m0"), [], error, _FP8_TOLERANCE)


def _index_gather(p: Point) -> Kernel:
    """Copies m index keys of one request and their scales out of their pages."""
    d, pages = p["n"], _pages(p["m"])
    cache = torch.empty(2 * pages, PAGE_TOKENS * (d + SCALE_BYTES), device="cuda", dtype=torch.uint8)
    elements = normal(2 * pages, PAGE_TOKENS * d, device="cuda").to(torch.float8_e4m3fn)
    cache[:, : PAGE_TOKENS * d] = elements.view(torch.uint8)
    cache[:, PAGE_TOKENS * d :] = (torch.rand(2 * pages, PAGE_TOKENS, device="cuda") + 0.5).view(torch.uint8)
    paged = cache.view(2 * pages, PAGE_TOKENS, d + SCALE_BYTES)
    table = torch.randperm(2 * pages, device="cuda")[:pages].to(torch.int32)[None]
    keys = torch.empty(p["m"], d, device="cuda", dtype=torch.float8_e4m3fn)
    scales = torch.empty(p["m"], SCALE_BYTES, device="cuda", dtype=torch.uint8)
    starts = torch.tensor([0, p["m"]], dtype=torch.int32, device="cuda")

    def error() -> float:
        values, factors = _index_rows(paged[table[0].long()], d)
        expected = values[: p["m"]].float() * factors[: p["m"], None]
        return relative_error(keys.float() * scales.view(torch.float32), expected)

    call = torch.ops._C_cache_ops.cp_gather_indexer_k_quant_cache
    label = "vllm/cp_gather_indexer_k_quant_cache"
    return Kernel(label, lambda: call(paged, keys, scales, table, starts), [keys, scales], error, 0.0)


def _index_rows(cache: torch.Tensor, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Elements [rows, d] and scales [rows] of pages of index keys."""
    flat = cache.reshape(cache.shape[0], -1)
    values = flat[:, : PAGE_TOKENS * d].contiguous().view(torch.float8_e4m3fn).view(-1, d)
    return values, flat[:, PAGE_TOKENS * d :].contiguous().view(torch.float32).flatten()


def _merge(p: Point) -> Kernel:
    """Weighs two partial outputs [m, n / d_v heads, d_v] by their log-sum-exps."""
    heads = p["n"] // p["d_v"]
    parts = [normal(p["m"], heads, p["d_v"], device="cuda") for _ in range(2)]
    sums = [normal(heads, p["m"], device="cuda", dtype=torch.float32) for _ in range(2)]
    out = torch.empty_like(parts[0])

    def error() -> float:
        weight = (sums[0].double() - sums[1].double()).sigmoid().T[..., None]
        return relative_error(out, parts[0].double() * weight + parts[1].double() * (1.0 - weight))

    call = torch.ops._C.merge_attn_states
    arguments = (out, None, parts[0], sums[0], parts[1], sums[1], None, None)
    return Kernel("vllm/merge_attn_states", lambda: call(*arguments), [out], error, BF16_TOLERANCE)


def _grouped_topk(p: Point) -> Kernel:
    """Sigmoid scores of m tokens for n experts; groups are ranked by their two best biased scores, experts by theirs;
    weights are unbiased, renormalised and scaled."""
    experts, k = p["n"], p["experts_per_token"]
    groups, kept = _GROUPS.get(experts, (1, 1))
    logits = normal(p["m"], experts, device="cuda", dtype=torch.float32)
    bias = normal(experts, device="cuda", dtype=torch.float32, scale=0.1)
    holder: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run() -> None:
        found = torch.ops._moe_C.grouped_topk(logits, groups, kept, k, True, _ROUTED_SCALE, bias, 1)
        holder[:] = [(found[0], found[1])]

    def error() -> float:
        scores = logits.double().sigmoid()
        biased = (scores + bias.double()).view(len(scores), groups, -1)
        best = biased.topk(2, dim=2).values.sum(dim=2).topk(kept, dim=1).indices
        allowed = torch.zeros(len(scores), groups, 1, device="cuda").scatter_(1, best[..., None], 1.0) > 0
        chosen = biased.masked_fill(~allowed, float("-inf")).flatten(1).topk(k, dim=1).indices
        weights = scores.gather(1, chosen)
        expected = weights / weights.sum(dim=1, keepdim=True) * _ROUTED_SCALE
        return relative_error(holder[0][0].sort(dim=1).values, expected.sort(dim=1).values)

    return Kernel("vllm/grouped_topk", run, [], error, 1e-4)


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)
