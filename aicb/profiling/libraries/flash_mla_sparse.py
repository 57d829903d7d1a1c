"""FlashMLA beyond dense bf16 decode: sparse prefill and fp8 sparse decode, and dense decode over an fp8 cache.

Sparse kernels attend to the keys whose indices they are given. The checked indices are random keys of the causal past,
each once; of a query that sees fewer keys than slots the rest is -1, which the kernels mask. Schedules depend on
lengths only and are made once per step, so they are made outside the timed call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from aicb.kernels.point import Point
from aicb.kernels.sparse_prefill import SPARSE_FP8_KEY_BYTES
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.flash_mla import LATENT, PAGE_TOKENS, VALUE, sequence
from aicb.profiling.libraries.modules import load_operators, operators

HEAD_MULTIPLE = 64
"""Sparse kernels on SM90 take multiples of 64 query heads."""
SCALE_COLUMNS = 128
_CHECKED_QUERIES = 6
_FP8_ATTENTION_TOLERANCE = 2.0**-4
"""Probabilities are rounded to e4m3 (3 bits, at most 2^-4 relative, about 0.027 in norm) before the second product."""


class FlashMlaSparse:
    """Sparse kernels of vLLM's module ``_flashmla_C``."""

    def __init__(self, module_path: Path | None = None):
        self._missing = load_operators("_flashmla_C", module_path)

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _flashmla_C"

    def refusal(self, point: Point) -> str | None:
        formats = {"mla_sparse_prefill": "bf16", "mla_sparse_decode": "fp8"}
        if point.op not in formats:
            return "not a sparse operation of FlashMLA"
        if (point["d_qk"], point["d_v"], point.dtype) != (LATENT, VALUE, formats[point.op]):
            return "sparse prefill is bf16 and sparse decode fp8, with latents of 576, values of 512"
        if point["heads"] % HEAD_MULTIPLE or point["k"] % HEAD_MULTIPLE:
            return f"heads or k is not a multiple of {HEAD_MULTIPLE}"
        if operators("_flashmla_C", "sparse_decode_fwd") is None:
            return "this build has no sparse kernels"
        return None

    def kernel(self, point: Point) -> Kernel:
        return _sparse_prefill(point) if point.op == "mla_sparse_prefill" else _sparse_decode(point)


class FlashMlaFp8:
    """Dense decode over an e4m3 cache with one scale, of vLLM's module ``_flashmla_extension_C``."""

    def __init__(self, module_path: Path | None = None):
        self._missing = load_operators("_flashmla_extension_C", module_path)

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _flashmla_extension_C"

    def refusal(self, point: Point) -> str | None:
        if (point.op, point.dtype) != ("mla_decode", "fp8"):
            return "dense decode over an fp8 cache only"
        return None if (point["d_qk"], point["d_v"]) == (LATENT, VALUE) else "latents are of 576, values of 512"

    def kernel(self, point: Point) -> Kernel:
        batch, heads, s_q = point["batch"], point["heads"], point["q_len"]
        cache, table = _fp8_pages(point.lengths)
        q = normal(batch, s_q, heads, LATENT, device="cuda").to(torch.float8_e4m3fn)
        lengths = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
        one = torch.ones(1, device="cuda")
        extension = torch.ops._flashmla_extension_C
        schedule, splits = extension.get_mla_decoding_metadata_dense_fp8(lengths, s_q * heads, 1)
        arguments = (VALUE, lengths, table, LATENT**-0.5, True, schedule, splits, one, one)
        holder: list[torch.Tensor] = [q]

        def run() -> None:
            holder[0] = extension.fwd_kvcache_mla_fp8(q, cache, *arguments)[0]

        def error() -> float:
            worst = 0.0
            for i in some_rows(batch, 3):
                keys = sequence(cache, table, i, point.lengths[i]).float()
                positions = torch.arange(point.lengths[i] - s_q, point.lengths[i], device="cuda")
                expected = reference.attention(q[i].float(), keys, keys[..., :VALUE], positions)
                worst = max(worst, relative_error(holder[0][i], expected))
            return worst

        return Kernel("vllm_flashmla/fwd_kvcache_mla_fp8", run, [], error, _FP8_ATTENTION_TOLERANCE)


def _fp8_pages(lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random e4m3 cache ``[pages, 64, 1, 576]`` and the table of each sequence's pages."""
    pages = [-(-length // PAGE_TOKENS) for length in lengths]
    cache = torch.empty(sum(pages), PAGE_TOKENS, 1, LATENT, device="cuda", dtype=torch.float8_e4m3fn)
    for part in cache.split(4096):
        part.copy_(normal(*part.shape, device="cuda"))
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32, device="cuda")
    filled = torch.arange(max(pages), device="cuda")[None] < torch.tensor(pages, device="cuda")[:, None]
    table[filled] = torch.randperm(sum(pages), device="cuda").to(torch.int32)
    return cache, table


def _sparse_prefill(p: Point) -> Kernel:
    """One request's queries over its latents; the cache is indexed directly, as an engine's bf16 cache is."""
    tokens, kv, heads, topk = p["q_len"], p["kv_len"], p["heads"], p["k"]
    q, latents = normal(tokens, heads, LATENT, device="cuda"), normal(kv, 1, LATENT, device="cuda")
    visible = torch.arange(kv - tokens + 1, kv + 1, device="cuda", dtype=torch.int32)
    indices, counts = _choose(visible, topk)
    operator = torch.ops._flashmla_C.sparse_prefill_fwd
    holder: list[torch.Tensor] = [q]

    def run() -> None:
        holder[0] = operator(q, latents, indices, LATENT**-0.5, VALUE, None, counts, None)[0]

    def error() -> float:
        rows = some_rows(tokens, _CHECKED_QUERIES)
        found, expected = [], []
        for row in rows:
            keys = latents[indices[row, 0, : int(counts[row])].long()]
            found.append(holder[0][row])
            expected.append(_attend(q[row], keys))
        return relative_error(torch.stack(found), torch.stack(expected))

    return Kernel("vllm_flashmla/sparse_prefill_fwd", run, [], error, ATTENTION_TOLERANCE)


def _sparse_decode(p: Point) -> Kernel:
    """``q_len`` queries of each sequence over a cache of 656-byte rows, in which sequences lie one after another."""
    batch, queries, heads, topk, kv = p["batch"], p["q_len"], p["heads"], p["k"], p["kv_len"]
    pages_each = -(-kv // PAGE_TOKENS)
    cache, expand = _sparse_cache(batch * pages_each)
    q = normal(batch, queries, heads, LATENT, device="cuda")
    visible = torch.arange(kv - queries + 1, kv + 1, device="cuda", dtype=torch.int32).repeat(batch)
    chosen, counts = _choose(visible, topk)
    offsets = (
        torch.arange(batch, device="cuda", dtype=torch.int32).repeat_interleave(queries) * pages_each * PAGE_TOKENS
    )
    indices = torch.where(chosen >= 0, chosen + offsets[:, None, None], chosen).view(batch, queries, topk)
    call = _decode_call(q, cache, indices)
    holder: list[torch.Tensor] = [call()]

    def run() -> None:
        holder[0] = call()

    def error() -> float:
        worst = 0.0
        for i in some_rows(batch, 3):
            keys = expand(indices[i, 0, : int(counts[i * queries])].long())
            worst = max(worst, relative_error(holder[0][i, 0], _attend(q[i, 0], keys)))
        return worst

    return Kernel("vllm_flashmla/sparse_decode_fwd", run, [], error, ATTENTION_TOLERANCE)


def _decode_call(q: torch.Tensor, cache: torch.Tensor, indices: torch.Tensor) -> Callable[[], torch.Tensor]:
    operator = torch.ops._flashmla_C.sparse_decode_fwd
    unused = (None, None)  # lengths of the top-k, attention sink
    extra = (None, None, None)  # a second cache
    _, _, schedule, splits = operator(q, cache, indices, *unused, None, None, *extra, VALUE, LATENT**-0.5, None)
    return lambda: operator(q, cache, indices, *unused, schedule, splits, *extra, VALUE, LATENT**-0.5, None)[0]


def _choose(visible: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct random keys below ``visible`` for each query: indices [queries, 1, topk] int32, -1 where the query sees
    fewer keys than slots, and counts [queries] int32.

    A query that sees more takes every s-th key after a random start, s being odd and prime to the number seen, in
    random order of slots.
    """
    slots = torch.arange(topk, device="cuda", dtype=torch.int64)[None]
    seen = visible.long()[:, None]
    start = (torch.rand(len(visible), 1, device="cuda") * seen).long()
    step = torch.clamp(seen // topk, min=1)
    spread = (start + slots[:, torch.randperm(topk, device="cuda")] * step) % seen
    whole = torch.where(slots < seen, slots, -1)
    indices = torch.where(seen > topk, spread, whole).to(torch.int32)
    return indices[:, None].contiguous(), torch.clamp(visible, max=topk).to(torch.int32)


def _attend(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[heads, 512] of one query [heads, 576] over keys [keys, 1, 576], in float32."""
    last = torch.tensor([keys.shape[0] - 1], device="cuda")
    return reference.attention(q[None], keys, keys[..., :VALUE], last)[0]


def _sparse_cache(pages: int) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Random cache ``[pages, 64, 1, 656]`` (uint8) and a function that expands rows of it to [rows, 1, 576] float32.

    A row is 512 e4m3 latents, 4 fp32 scales (powers of two here, 2^-2 to 2^1), 64 bf16 rotary elements.
    """
    rows = pages * PAGE_TOKENS
    cache = torch.empty(rows, SPARSE_FP8_KEY_BYTES, device="cuda", dtype=torch.uint8)
    for part in cache.split(1 << 19):
        part[:, :VALUE] = normal(len(part), VALUE, device="cuda").to(torch.float8_e4m3fn).view(torch.uint8)
        scales = torch.exp2(torch.randint(-2, 2, (len(part), VALUE // SCALE_COLUMNS), device="cuda").float())
        part[:, VALUE : VALUE + 16] = scales.view(torch.uint8)
        part[:, VALUE + 16 :] = normal(len(part), LATENT - VALUE, device="cuda").view(torch.uint8)

    def expand(wanted: torch.Tensor) -> torch.Tensor:
        picked = cache[wanted]
        scales = picked[:, VALUE : VALUE + 16].contiguous().view(torch.float32)
        latent = picked[:, :VALUE].contiguous().view(torch.float8_e4m3fn).float()
        rotary = picked[:, VALUE + 16 :].contiguous().view(torch.bfloat16).float()
        return torch.cat([latent * scales.repeat_interleave(SCALE_COLUMNS, dim=1), rotary], dim=1)[:, None]

    return cache.view(pages, PAGE_TOKENS, 1, SPARSE_FP8_KEY_BYTES), expand
