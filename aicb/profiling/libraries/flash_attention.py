"""FlashAttention-3: causal varlen prefill over pages or over keys in a row, and paged decode; bf16 or e4m3 operands.

Through ``flash_attn_interface`` or vLLM's module ``_vllm_fa3_C`` (one operator, ``fwd``). A chunk of a prompt attends
to its past as longer keys than queries; the causal mask is aligned at the end. Grouped queries read keys from the pages
they have just been written to, which takes longer than keys in a row; latents are expanded into these.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.flash_mla import paged_cache, sequence
from aicb.profiling.libraries.modules import load_operators

_CHECKED_SEQUENCES = 3
_CHECKED_QUERIES = 16
_FORMATS = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_TOLERANCES = {"bf16": ATTENTION_TOLERANCE, "fp8": 2.0**-4}
"""fp8: probabilities are rounded to e4m3 (3 bits, about 0.027 in norm) before the second product."""


def paged_decode_error(
    q: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    lengths: tuple[int, ...],
    out: torch.Tensor,
) -> float:
    """Largest relative error of some results ``out`` of queries ``q``, both [sequences, heads, dimension], over the
    pages of keys and values that ``table`` names."""
    worst = 0.0
    for i in some_rows(len(lengths), _CHECKED_SEQUENCES):
        k, v = (sequence(cache, table, i, lengths[i]) for cache in caches)
        position = torch.tensor([lengths[i] - 1], device="cuda")
        worst = max(worst, relative_error(out[i : i + 1], reference.attention(q[i : i + 1], k, v, position)))
    return worst


class FlashAttention3:
    """``flash_attn_interface`` if it can be imported, else ``torch.ops._vllm_fa3_C``."""

    def __init__(self, module_path: Path | None = None):
        self._package: ModuleType | None = None
        self._missing: str | None = None
        try:
            self._package = importlib.import_module("flash_attn_interface")
        except (ImportError, OSError) as error:
            self._missing = load_operators("_vllm_fa3_C", module_path)
            if self._missing:
                self._missing += f"; flash_attn_interface: {error}".splitlines()[0]

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        if self._package is not None:
            return f"flash_attn_3 {getattr(self._package, '__version__', 'unknown')}"
        return "vLLM extension module _vllm_fa3_C"

    def refusal(self, point: Point) -> str | None:
        if point.op not in ("prefill_attention", "decode_attention"):
            return "not an operation of FlashAttention"
        if point.dtype not in ("bf16", "fp8"):
            return f"no {point.dtype} operands"
        if point.dtype == "fp8" and (self._package is not None or point["d_qk"] != point["d_v"]):
            return "fp8 through vLLM's module, with equal head dimensions"
        return None

    def kernel(self, point: Point) -> Kernel:
        return self._prefill(point) if point.op == "prefill_attention" else self._decode(point)

    def _prefill(self, point: Point) -> Kernel:
        dtype, page = _FORMATS[point.dtype], point.get("page_tokens", 0)
        q = normal(sum(point.queries), point["heads"], point["d_qk"], device="cuda").to(dtype)
        out = torch.empty(q.shape[0], q.shape[1], point["d_v"], device="cuda", dtype=torch.bfloat16)
        starts_q, starts_k = _starts(point.queries), _starts(point.lengths)
        longest = (max(point.queries), max(point.lengths))
        if page:
            k, table = paged_cache(point.lengths, page, (point["kv_heads"], point["d_qk"]))
            v = normal(*k.shape[:-1], point["d_v"], device="cuda").to(dtype)
            k = k.to(dtype)
            used = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
            call = self._call(q, k, v, out, longest, starts_q, used_k=used, table=table)
        else:
            k = normal(sum(point.lengths), point["kv_heads"], point["d_qk"], device="cuda").to(dtype)
            v = normal(sum(point.lengths), point["kv_heads"], point["d_v"], device="cuda").to(dtype)
            call = self._call(q, k, v, out, longest, starts_q, starts_k=starts_k)
        from_q, from_k = starts_q.tolist(), starts_k.tolist()

        def keys_of(cache: torch.Tensor, i: int) -> torch.Tensor:
            return sequence(cache, table, i, point.lengths[i]) if page else cache[from_k[i] : from_k[i + 1]]

        def error() -> float:
            worst = 0.0
            for i in some_rows(len(point.queries), _CHECKED_SEQUENCES):
                rows = some_rows(point.queries[i], _CHECKED_QUERIES)
                positions = torch.tensor(rows, device="cuda") + point.lengths[i] - point.queries[i]
                picked = [from_q[i] + row for row in rows]
                expected = reference.attention(q[picked], keys_of(k, i), keys_of(v, i), positions)
                worst = max(worst, relative_error(out[picked], expected))
            return worst

        return Kernel(
            self._label("paged_prefill" if page else "varlen_prefill"), call, [out], error, _TOLERANCES[point.dtype]
        )

    def _decode(self, point: Point) -> Kernel:
        batch, page, kv_heads = point["batch"], point["page_tokens"], point["kv_heads"]
        dtype = _FORMATS[point.dtype]
        keys, table = paged_cache(point.lengths, page, (kv_heads, point["d_qk"]))
        values = normal(*keys.shape[:-1], point["d_v"], device="cuda").to(dtype)
        keys, q = keys.to(dtype), normal(batch, point["heads"], point["d_qk"], device="cuda").to(dtype)
        out = torch.empty(batch, point["heads"], point["d_v"], device="cuda", dtype=torch.bfloat16)
        used = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
        starts = _starts(point.queries)
        call = self._call(q, keys, values, out, (1, max(point.lengths)), starts, used_k=used, table=table)

        error = partial(paged_decode_error, q, (keys, values), table, point.lengths, out)
        return Kernel(self._label("paged_decode"), call, [out], error, _TOLERANCES[point.dtype])

    def _label(self, function: str) -> str:
        return f"{'flash_attn_3' if self._package else 'vllm_fa3'}/{function}"

    def _call(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        longest: tuple[int, int],
        starts_q: torch.Tensor,
        *,
        starts_k: torch.Tensor | None = None,
        used_k: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
    ) -> Callable[[], object]:
        scale = q.shape[-1] ** -0.5
        if self._package is not None:
            package = self._package
            if table is None:
                return lambda: out.copy_(
                    package.flash_attn_varlen_func(
                        q, k, v, starts_q, starts_k, *longest, softmax_scale=scale, causal=True
                    )
                )
            return lambda: out.copy_(
                package.flash_attn_with_kvcache(
                    *(q, k, v),
                    cache_seqlens=used_k,
                    page_table=table,
                    cu_seqlens_q=starts_q,
                    max_seqlen_q=longest[0],
                    softmax_scale=scale,
                    causal=True,
                )
            )
        descales: tuple[torch.Tensor | None, ...] = (None, None, None)
        if q.dtype is torch.float8_e4m3fn:
            descales = (torch.ones(len(starts_q) - 1, k.shape[-2], device="cuda"),) * 3
        arguments = (
            *(q, k, v, None, None, None, out, starts_q, starts_k, None, None, used_k, *longest, table),
            *(None, None, None, None, None, *descales),  # batch index, left padding, rotary
            *(scale, True, -1, -1, 0.0, True, None, 0, None, 0, None, 1, 0, None),
        )
        operator = torch.ops._vllm_fa3_C.fwd
        return lambda: operator(*arguments)


def _starts(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")
