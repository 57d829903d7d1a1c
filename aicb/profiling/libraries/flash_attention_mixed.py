"""FlashAttention-3 over a batch of prompts and decodes in one call, as vLLM's backend ``FLASH_ATTN`` makes it.

The schedule is made once per step, outside the timed call. Up to the largest captured size requests may be divided, as
in graphs of decodes (`MOST_SPLITS`); beyond it the kernel chooses, and divides none. Pages are vLLM's default of 16
tokens.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

from aicb.kernels.mixed_attention import CAPTURED_TOKENS
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.flash_attention_mla import MOST_SPLITS
from aicb.profiling.libraries.flash_mla import paged_cache, sequence
from aicb.profiling.libraries.modules import load_operators

_FORMATS = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_TOLERANCES = {"bf16": ATTENTION_TOLERANCE, "fp8": 2.0**-4}
_CHECKED_SEQUENCES = 5
_CHECKED_QUERIES = 8


class FlashAttentionMixed:
    """``torch.ops._vllm_fa3_C``."""

    def __init__(self, module_path: Path | None = None):
        self._missing = load_operators("_vllm_fa3_C", module_path)

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _vllm_fa3_C, prompts and decodes in one call"

    def refusal(self, point: Point) -> str | None:
        if point.op != "mixed_attention":
            return "not prompts and decodes in one call"
        return None if point.dtype in _FORMATS else f"no {point.dtype} operands"

    def kernel(self, point: Point) -> Kernel:
        dtype, page, heads, kv_heads, dim = (
            _FORMATS[point.dtype],
            *(point[name] for name in ("page_tokens", "heads", "kv_heads", "d_qk")),
        )
        keys, table = paged_cache(point.lengths, page, (kv_heads, dim))
        values = normal(*keys.shape, device="cuda").to(dtype)
        keys, q = keys.to(dtype), normal(sum(point.queries), heads, dim, device="cuda").to(dtype)
        out = torch.empty(*q.shape, dtype=torch.bfloat16, device="cuda")
        used = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, *accumulate(point.queries)], dtype=torch.int32, device="cuda")
        longest, count = (max(point.queries), max(point.lengths)), len(point.lengths)
        splits = MOST_SPLITS if sum(point.queries) <= CAPTURED_TOKENS else 0
        schedule = torch.ops._vllm_fa3_C.get_scheduler_metadata(
            *(count, *longest, heads, kv_heads, dim, dim, dtype, used, starts),
            *(None, None, None, None, page, 0, True, -1, -1, False, splits, None, 0),
        )
        descales = (None,) * 3 if dtype is torch.bfloat16 else (torch.ones(count, kv_heads, device="cuda"),) * 3
        arguments = (
            *(q, keys, values, None, None, None, out, starts, None, None, None, used, *longest, table, *(None,) * 5),
            *descales,
            *(dim**-0.5, True, -1, -1, 0.0, True, schedule, splits, None, 0, None, 1, 0, None),
        )
        operator = torch.ops._vllm_fa3_C.fwd

        error = partial(_error, point, q, (keys, values), table, out)
        return Kernel("vllm_fa3/mixed", lambda: operator(*arguments), [out], error, _TOLERANCES[point.dtype])


def _error(
    point: Point,
    q: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    out: torch.Tensor,
) -> float:
    """Largest relative error of some results ``out`` of queries ``q``, both [tokens, heads, dimension]."""
    worst, starts = 0.0, [0, *accumulate(point.queries)]
    for i in some_rows(len(point.lengths), _CHECKED_SEQUENCES):
        new, length = point.queries[i], point.lengths[i]
        k, v = (sequence(cache, table, i, length) for cache in caches)
        rows = some_rows(new, _CHECKED_QUERIES)
        picked = [starts[i] + row for row in rows]
        positions = torch.tensor(rows, device="cuda") + length - new
        worst = max(worst, relative_error(out[picked], reference.attention(q[picked], k, v, positions)))
    return worst
