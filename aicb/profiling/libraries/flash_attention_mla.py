"""FlashAttention-3's absorbed MLA decode, as vLLM's backend ``FLASH_ATTN_MLA`` calls it (``_vllm_fa3_C``).

The query is split into its rotary part (64, against the cache's rotary columns) and its latent part (512, against the
latents, which are the values too). The schedule depends on the lengths and is made once per step, outside the timed
call; in a graph a request is split at most 32 times (``flash_attn_max_num_splits_for_cuda_graph``). Pages are vLLM's
default of 16 tokens. Not in its times: the schedule's kernel.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from pathlib import Path

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.flash_mla import LATENT, VALUE, paged_cache, sequence
from aicb.profiling.libraries.modules import load_operators

MOST_SPLITS = 32
_CHECKED_SEQUENCES = 3


def latent_decode_error(
    query: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, point: Point, out: torch.Tensor
) -> float:
    """Largest relative error of the results of some sequences; ``query`` [queries, heads, latent], ``cache`` [pages,
    tokens, 1, latent]."""
    worst, starts = 0.0, [0, *accumulate(point.queries)]
    for i in some_rows(point["batch"], _CHECKED_SEQUENCES):
        keys = sequence(cache, table, i, point.lengths[i])
        rows = slice(starts[i], starts[i + 1])
        positions = torch.arange(point.lengths[i] - point.queries[i], point.lengths[i], device="cuda")
        expected = reference.attention(query[rows], keys, keys[..., :VALUE], positions)
        worst = max(worst, relative_error(out[rows], expected))
    return worst


class FlashAttentionMla:
    """``torch.ops._vllm_fa3_C``."""

    def __init__(self, module_path: Path | None = None):
        self._missing = load_operators("_vllm_fa3_C", module_path)

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _vllm_fa3_C, absorbed MLA"

    def refusal(self, point: Point) -> str | None:
        if point.op != "mla_decode_fa3":
            return "not FlashAttention's MLA decode"
        if (point["d_qk"], point["d_v"], point.dtype) != (LATENT, VALUE, "bf16"):
            return "bf16 with latents of 576, values of 512"
        return None

    def kernel(self, point: Point) -> Kernel:
        batch, heads, page = point["batch"], point["heads"], point["page_tokens"]
        cache, table = paged_cache(point.lengths, page, (1, LATENT))
        query = normal(sum(point.queries), heads, LATENT, device="cuda")
        latent, rotary = query[..., :VALUE].contiguous(), query[..., VALUE:].contiguous()
        out = torch.empty(query.shape[0], heads, VALUE, device="cuda", dtype=torch.bfloat16)
        used = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
        starts = torch.tensor([0, *accumulate(point.queries)], dtype=torch.int32, device="cuda")
        longest = (max(point.queries), max(point.lengths))
        schedule = torch.ops._vllm_fa3_C.get_scheduler_metadata(
            *(batch, *longest, heads, 1, LATENT - VALUE, VALUE, torch.bfloat16, used, starts),
            *(None, None, None, None, page, 0, True, -1, -1, False, MOST_SPLITS, None, 0),
        )
        arguments = (
            *(rotary, cache[..., VALUE:], cache[..., :VALUE], None, None, latent, out, starts),
            *(None, None, None, used, *longest, table, *(None,) * 8),
            *(LATENT**-0.5, True, -1, -1, 0.0, True, schedule, MOST_SPLITS, None, 0, None, 1, 0, None),
        )
        operator = torch.ops._vllm_fa3_C.fwd

        error = partial(latent_decode_error, query, cache, table, point, out)
        return Kernel("vllm_fa3/mla_decode", lambda: operator(*arguments), [out], error, ATTENTION_TOLERANCE)
