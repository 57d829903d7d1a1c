"""FlashAttention-3's paged decode as vLLM captures it in models whose layers differ in their windows (``_vllm_fa3_C``).

No schedule is made ahead then (``_get_sliding_window_configs`` in v1/attention/backends/flash_attn.py), so that each
call makes its own in a kernel before; a request may be split 32 times all the same. A sliding layer passes its window
and the whole context. Both have gpt-oss's sinks, here so small that results are those without. Pages are vLLM's default
of 16 tokens; the graph is captured for the longest sequence that the engine allows (`CAPTURED_TOKENS`).
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

from aicb.kernels.decode_attention import SLIDING_CONTEXT, SLIDING_DECODES, UNSCHEDULED_DECODES
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.flash_attention_captured import CAPTURED_TOKENS
from aicb.profiling.libraries.flash_attention_mla import MOST_SPLITS
from aicb.profiling.libraries.flash_mla import paged_cache, sequence
from aicb.profiling.libraries.modules import load_operators

_NO_SINK = -100.0
_CHECKED_SEQUENCES = 3


class FlashAttentionUnscheduled:
    """``torch.ops._vllm_fa3_C``."""

    def __init__(self, module_path: Path | None = None):
        self._missing = load_operators("_vllm_fa3_C", module_path)

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _vllm_fa3_C, captured decode without a schedule"

    def refusal(self, point: Point) -> str | None:
        if point.op not in (UNSCHEDULED_DECODES, SLIDING_DECODES):
            return "not a captured decode without a schedule"
        return None if point.dtype == "bf16" else f"no {point.dtype} operands"

    def kernel(self, point: Point) -> Kernel:
        """Of a sliding layer the KV length of a point is its window, and the context `SLIDING_CONTEXT` times it."""
        is_sliding = point.op == SLIDING_DECODES
        kv_heads, dim, seen = point["kv_heads"], point["d_qk"], point.lengths
        contexts = tuple(SLIDING_CONTEXT * window for window in seen) if is_sliding else seen
        keys, table = paged_cache(contexts, point["page_tokens"], (kv_heads, dim))
        values = normal(*keys.shape, device="cuda")
        q = normal(point["batch"], point["heads"], dim, device="cuda")
        out = torch.empty_like(q)
        used = torch.tensor(contexts, dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, *accumulate(point.queries)], dtype=torch.int32, device="cuda")
        sinks = torch.full((point["heads"],), _NO_SINK, dtype=torch.bfloat16, device="cuda")
        window = (seen[0] - 1, 0) if is_sliding else (-1, -1)
        longest = (1, max(CAPTURED_TOKENS, *contexts))
        arguments = (
            *(q, keys, values, None, None, None, out, starts, None, None, None, used, *longest, table, *(None,) * 8),
            *(dim**-0.5, True, *window, 0.0, True, None, MOST_SPLITS, None, 0, sinks, 1, 0, None),
        )
        operator = torch.ops._vllm_fa3_C.fwd

        error = partial(_error, q, (keys, values), table, contexts, seen, out)
        function = "sliding_decode" if is_sliding else "unscheduled_decode"
        return Kernel(f"vllm_fa3/{function}", lambda: operator(*arguments), [out], error, ATTENTION_TOLERANCE)


def _error(
    q: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    contexts: tuple[int, ...],
    seen: tuple[int, ...],
    out: torch.Tensor,
) -> float:
    """Largest relative error of some results ``out`` of queries ``q``, both [sequences, heads, dimension], over the
    last ``seen`` tokens of each context."""
    worst = 0.0
    for i in some_rows(len(contexts), _CHECKED_SEQUENCES):
        k, v = (sequence(cache, table, i, contexts[i])[-seen[i] :] for cache in caches)
        position = torch.tensor([seen[i] - 1], device="cuda")
        worst = max(worst, relative_error(out[i : i + 1], reference.attention(q[i : i + 1], k, v, position)))
    return worst
