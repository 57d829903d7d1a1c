"""FlashAttention-3's paged decodes as SGLang captures them (module ``sgl_kernel``).

Of grouped queries the schedule depends on the lengths and is made once per step, outside the timed call, of latents in
each call (``flashattention_backend.py``, ``_compute_scheduler_metadata``); the kernel chooses the splits itself. Pages
hold one token, and the table of a captured step is as wide as the longest sequence that the engine allows. A request's
slots adjoin, as those of its prompt do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal
from aicb.profiling.libraries.flash_attention import paged_decode_error
from aicb.profiling.libraries.flash_attention_captured import CAPTURED_TOKENS
from aicb.profiling.libraries.flash_attention_mla import latent_decode_error
from aicb.profiling.libraries.flash_mla import LATENT, VALUE
from aicb.profiling.libraries.modules import import_modules


class SglangAttention:
    """``flash_attn_with_kvcache`` of an installed sgl_kernel."""

    def __init__(self) -> None:
        found, self._missing = import_modules("sgl_kernel", ["sgl_kernel.flash_attn"])
        self._module: Any = found[0] if found else None

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"sglang-kernel {version('sglang-kernel')}, captured decode"

    def refusal(self, point: Point) -> str | None:
        if point.op not in ("decode_attention_sglang", "mla_decode_sglang"):
            return "not a decode of SGLang"
        if point.op == "mla_decode_sglang" and (point["d_qk"], point["d_v"]) != (LATENT, VALUE):
            return "latents of 576, values of 512"
        return None if point.dtype == "bf16" else f"no {point.dtype} operands"

    def kernel(self, point: Point) -> Kernel:
        return self._latents(point) if point.op == "mla_decode_sglang" else self._grouped(point)

    def _grouped(self, point: Point) -> Kernel:
        batch, heads, kv_heads, dim = point["batch"], point["heads"], point["kv_heads"], point["d_qk"]
        keys, values = (normal(sum(point.lengths), 1, kv_heads, dim, device="cuda") for _ in range(2))
        q = normal(batch, heads, dim, device="cuda")
        out = torch.empty_like(q)
        used, starts, table = _lengths(point)
        schedule = self._module.get_scheduler_metadata(
            batch_size=batch,
            max_seqlen_q=1,
            max_seqlen_k=max(point.lengths),
            num_heads=heads,
            num_heads_k=kv_heads,
            headdim=dim,
            cache_seqlens=used,
            qkv_dtype=torch.bfloat16,
            cu_seqlens_q=starts,
            page_size=1,
            causal=True,
            num_splits=0,
        )
        attend = partial(
            self._module.flash_attn_with_kvcache,
            q=q,
            k_cache=keys,
            v_cache=values,
            page_table=table,
            cache_seqlens=used,
            cu_seqlens_q=starts,
            max_seqlen_q=1,
            softmax_scale=dim**-0.5,
            causal=True,
            num_splits=0,
            ver=3,
            scheduler_metadata=schedule,
            out=out,
        )
        error = partial(paged_decode_error, q, (keys, values), table, point.lengths, out)
        return Kernel("sgl_kernel/captured_decode", attend, [out], error, ATTENTION_TOLERANCE)

    def _latents(self, point: Point) -> Kernel:
        """With more query tokens than one they verify drafts, each behind those before it."""
        cache = normal(sum(point.lengths), 1, 1, LATENT, device="cuda")
        query = normal(sum(point.queries), point["heads"], LATENT, device="cuda")
        latent, rotary = query[..., :VALUE].contiguous(), query[..., VALUE:].contiguous()
        out = torch.empty(query.shape[0], point["heads"], VALUE, device="cuda", dtype=torch.bfloat16)
        used, starts, table = _lengths(point)
        attend = partial(
            self._module.flash_attn_with_kvcache,
            q=rotary,
            k_cache=cache[..., VALUE:],
            v_cache=cache[..., :VALUE],
            qv=latent,
            page_table=table,
            cache_seqlens=used,
            cu_seqlens_q=starts,
            max_seqlen_q=max(point.queries),
            softmax_scale=LATENT**-0.5,
            causal=True,
            num_splits=0,
            ver=3,
            out=out,
        )
        error = partial(latent_decode_error, query, cache, table, point, out)
        return Kernel("sgl_kernel/latent_decode", attend, [out], error, ATTENTION_TOLERANCE)


def _lengths(point: Point) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lengths of the sequences, where the queries of each start, and the slots of each."""
    lengths = point.lengths
    used = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, *accumulate(point.queries)], dtype=torch.int32, device="cuda")
    return used, starts, adjoining_slots(lengths, max(CAPTURED_TOKENS, *lengths))


def adjoining_slots(lengths: Sequence[int], width: int) -> torch.Tensor:
    """[sequences, width] slots of the tokens of each sequence, one after another."""
    table = torch.zeros(len(lengths), width, dtype=torch.int32, device="cuda")
    for index, first in enumerate(accumulate((0, *lengths[:-1]))):
        table[index, : lengths[index]] = torch.arange(first, first + lengths[index], dtype=torch.int32)
    return table
