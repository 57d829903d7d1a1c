"""FlashAttention-3's paged decode as SGLang captures it (module ``sgl_kernel``).

The schedule depends on the lengths and is made once per step, outside the timed call
(``flashattention_backend.py``, ``_compute_scheduler_metadata``); the kernel chooses the splits itself. Pages hold one
token, and the table of a captured step is as wide as the longest sequence that the engine allows. A request's slots
adjoin, as those of its prompt do.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal
from aicb.profiling.libraries.flash_attention import paged_decode_error
from aicb.profiling.libraries.flash_attention_captured import CAPTURED_TOKENS


class SglangAttention:
    """``flash_attn_with_kvcache`` of an installed sgl_kernel."""

    def __init__(self) -> None:
        self._missing: str | None = None
        if importlib.util.find_spec("sgl_kernel") is None:
            self._missing = "sgl_kernel: not installed"
            return
        try:
            self._module: Any = importlib.import_module("sgl_kernel.flash_attn")
        except (ImportError, OSError, RuntimeError) as error:
            self._missing = f"sgl_kernel: {type(error).__name__}: {error}".splitlines()[0]

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"sglang-kernel {version('sglang-kernel')}, captured decode"

    def refusal(self, point: Point) -> str | None:
        if point.op != "decode_attention_sglang":
            return "not a decode of SGLang"
        return None if point.dtype == "bf16" else f"no {point.dtype} operands"

    def kernel(self, point: Point) -> Kernel:
        batch, heads, kv_heads, dim = point["batch"], point["heads"], point["kv_heads"], point["d_qk"]
        lengths, longest = point.lengths, max(CAPTURED_TOKENS, *point.lengths)
        keys, values = (normal(sum(lengths), 1, kv_heads, dim, device="cuda") for _ in range(2))
        q = normal(batch, heads, dim, device="cuda")
        out = torch.empty_like(q)
        used = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, *accumulate(point.queries)], dtype=torch.int32, device="cuda")
        table = torch.zeros(batch, longest, dtype=torch.int32, device="cuda")
        for index, first in enumerate(accumulate((0, *lengths[:-1]))):
            table[index, : lengths[index]] = torch.arange(first, first + lengths[index], dtype=torch.int32)
        schedule = self._module.get_scheduler_metadata(
            batch_size=batch,
            max_seqlen_q=1,
            max_seqlen_k=max(lengths),
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
        error = partial(paged_decode_error, q, (keys, values), table, lengths, out)
        return Kernel("sgl_kernel/captured_decode", attend, [out], error, ATTENTION_TOLERANCE)
