"""FlashInfer's absorbed MLA decode, as SGLang calls it with ``--attention-backend flashinfer``.

``BatchMLAPagedAttentionWrapper`` with its own choice of the kernel, FlashAttention-3's template on Hopper. The plan of
a step depends on the lengths and is made by the host once for all layers, outside the timed call; that of a graph
(``fast_mla_decode_plan`` of SGLang) is the same but for what it copies. Pages hold one token, and a request's slots
adjoin.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal
from aicb.profiling.libraries.flash_attention_mla import latent_decode_error
from aicb.profiling.libraries.flash_mla import LATENT, VALUE
from aicb.profiling.libraries.modules import import_modules
from aicb.profiling.libraries.sglang_attention import adjoining_slots

WORKSPACE_BYTES = 384 * 2**20
"""SGLang's default (``SGLANG_FLASHINFER_WORKSPACE_SIZE``)."""


@cache
def _workspace() -> torch.Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


class FlashInferMla:
    """``flashinfer.mla.BatchMLAPagedAttentionWrapper``."""

    def __init__(self) -> None:
        found, self._missing = import_modules("flashinfer", ["flashinfer.mla"])
        self._module: Any = found[0] if found else None

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"flashinfer-python {version('flashinfer-python')}, absorbed MLA"

    def refusal(self, point: Point) -> str | None:
        if point.op != "mla_decode_flashinfer":
            return "not FlashInfer's MLA decode"
        if (point["d_qk"], point["d_v"], point.dtype) != (LATENT, VALUE, "bf16"):
            return "bf16 with latents of 576, values of 512"
        return None

    def kernel(self, point: Point) -> Kernel:
        heads, tokens = point["heads"], sum(point.lengths)
        latents = normal(tokens, 1, LATENT, device="cuda")
        query = normal(sum(point.queries), heads, LATENT, device="cuda")
        latent, rotary = query[..., :VALUE].contiguous(), query[..., VALUE:].contiguous()
        out = torch.empty(query.shape[0], heads, VALUE, device="cuda", dtype=torch.bfloat16)
        starts, slots, used = (
            torch.tensor(values, dtype=torch.int32, device="cuda")
            for values in ([0, *accumulate(point.queries)], [0, *accumulate(point.lengths)], point.lengths)
        )
        indices = torch.arange(tokens, dtype=torch.int32, device="cuda")
        wrapper = self._module.BatchMLAPagedAttentionWrapper(
            _workspace(),
            use_cuda_graph=True,
            qo_indptr=starts.clone(),
            kv_indptr=slots.clone(),
            kv_indices=indices,
            kv_len_arr=used.clone(),
            backend="auto",
        )
        is_causal = max(point.queries) > 1
        sizes = (heads, VALUE, LATENT - VALUE, 1, is_causal, LATENT**-0.5, torch.bfloat16, torch.bfloat16)
        wrapper.plan(starts, slots, indices, used, *sizes)
        cache_parts = latents[..., :VALUE], latents[..., VALUE:]
        attend = partial(wrapper.run, latent, rotary, *cache_parts, out=out)
        table = adjoining_slots(point.lengths, max(point.lengths))
        error = partial(latent_decode_error, query, latents[:, None], table, point, out)
        return Kernel("flashinfer/latent_decode", attend, [out], error, ATTENTION_TOLERANCE)
