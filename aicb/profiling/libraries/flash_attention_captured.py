"""FlashAttention-3's paged decode as vLLM's backend ``FLASH_ATTN`` captures it (``_vllm_fa3_C``).

The schedule depends on the lengths and is made once per step, outside the timed call. In a graph a request may be split
32 times (``flash_attn_max_num_splits_for_cuda_graph``), so that the kernel is the one that can split, whether or not
the schedule does, and the kernel that combines splits always follows. Pages are vLLM's default of 16 tokens; the graph
is captured for the longest sequence that the engine allows (`CAPTURED_TOKENS`).
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal
from aicb.profiling.libraries.flash_attention import paged_decode_error
from aicb.profiling.libraries.flash_attention_mla import MOST_SPLITS
from aicb.profiling.libraries.flash_mla import paged_cache
from aicb.profiling.libraries.modules import load_operators

CAPTURED_TOKENS = 32768
"""Longest sequence that an engine of these measurements allowed."""


class FlashAttentionCaptured:
    """``torch.ops._vllm_fa3_C``."""

    def __init__(self, module_path: Path | None = None):
        self._missing = load_operators("_vllm_fa3_C", module_path)

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _vllm_fa3_C, captured decode"

    def refusal(self, point: Point) -> str | None:
        if point.op != "decode_attention_captured":
            return "not a captured decode"
        return None if point.dtype == "bf16" else f"no {point.dtype} operands"

    def kernel(self, point: Point) -> Kernel:
        batch, page, kv_heads, dim = point["batch"], point["page_tokens"], point["kv_heads"], point["d_qk"]
        keys, table = paged_cache(point.lengths, page, (kv_heads, dim))
        values = normal(*keys.shape, device="cuda")
        q = normal(batch, point["heads"], dim, device="cuda")
        out = torch.empty_like(q)
        used = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, *accumulate(point.queries)], dtype=torch.int32, device="cuda")
        schedule = torch.ops._vllm_fa3_C.get_scheduler_metadata(
            *(batch, 1, max(point.lengths), point["heads"], kv_heads, dim, dim, torch.bfloat16, used, starts),
            *(None, None, None, None, page, 0, True, -1, -1, False, MOST_SPLITS, None, 0),
        )
        longest = (1, max(CAPTURED_TOKENS, *point.lengths))
        arguments = (
            *(q, keys, values, None, None, None, out, starts, None, None, None, used, *longest, table, *(None,) * 8),
            *(dim**-0.5, True, -1, -1, 0.0, True, schedule, MOST_SPLITS, None, 0, None, 1, 0, None),
        )
        operator = torch.ops._vllm_fa3_C.fwd

        error = partial(paged_decode_error, q, (keys, values), table, point.lengths, out)
        return Kernel("vllm_fa3/captured_decode", lambda: operator(*arguments), [out], error, ATTENTION_TOLERANCE)
