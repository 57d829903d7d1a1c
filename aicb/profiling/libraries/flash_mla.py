"""FlashMLA: absorbed MLA decode over a paged latent cache, through the ``flash_mla`` package or vLLM's module.

The split schedule depends on the KV lengths and is made once per step, so it is made outside the timed call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import ATTENTION_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries import reference
from aicb.profiling.libraries.modules import load_operators

PAGE_TOKENS = 64
LATENT = 576
VALUE = 512
_CHECKED_SEQUENCES = 3


class FlashMla:
    """``flash_mla`` if it can be imported, else ``torch.ops._flashmla_C``."""

    def __init__(self, module_path: Path | None = None):
        self._package: ModuleType | None = None
        self._missing: str | None = None
        try:
            self._package = importlib.import_module("flash_mla")
        except (ImportError, OSError) as error:
            self._missing = load_operators("_flashmla_C", module_path)
            if self._missing:
                self._missing += f"; flash_mla: {error}".splitlines()[0]

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        if self._package is not None:
            return f"flash_mla {getattr(self._package, '__version__', 'unknown')}"
        return "vLLM extension module _flashmla_C"

    def refusal(self, point: Point) -> str | None:
        if point.op != "mla_decode":
            return "not an operation of FlashMLA"
        if (point["d_qk"], point["d_v"], point.dtype) != (LATENT, VALUE, "bf16"):
            return "dense decode is bf16 with latents of 576, values of 512"
        return None

    def kernel(self, point: Point) -> Kernel:
        batch, heads, s_q = point["batch"], point["heads"], point["q_len"]
        cache, table = paged_cache(point.lengths, PAGE_TOKENS, (1, LATENT))
        q = normal(batch, s_q, heads, LATENT, device="cuda")
        lengths = torch.tensor(point.lengths, dtype=torch.int32, device="cuda")
        call = self._call(q, cache, lengths, table)
        holder: list[torch.Tensor] = [call()]

        def run() -> None:
            holder[0] = call()

        def error() -> float:
            worst = 0.0
            for i in some_rows(batch, _CHECKED_SEQUENCES):
                keys = sequence(cache, table, i, point.lengths[i])
                positions = torch.arange(point.lengths[i] - s_q, point.lengths[i], device="cuda")
                expected = reference.attention(q[i], keys, keys[..., :VALUE], positions)
                worst = max(worst, relative_error(holder[0][i], expected))
            return worst

        label = "flash_mla/flash_mla_with_kvcache" if self._package else "vllm_flashmla/dense_decode_fwd"
        return Kernel(label, run, [], error, ATTENTION_TOLERANCE)

    def _call(
        self, q: torch.Tensor, cache: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        scale, causal = LATENT**-0.5, q.shape[1] > 1
        if self._package is not None:
            package = self._package
            schedule, splits = package.get_mla_metadata()
            return lambda: package.flash_mla_with_kvcache(
                q, cache, table, lengths, VALUE, schedule, splits, softmax_scale=scale, causal=causal
            )[0]
        operator = torch.ops._flashmla_C.dense_decode_fwd
        _, _, schedule, splits = operator(q, cache, VALUE, lengths, table, scale, causal, None, None, None)[:4]
        return lambda: operator(q, cache, VALUE, lengths, table, scale, causal, schedule, splits, None)[0]


def paged_cache(lengths: tuple[int, ...], page_tokens: int, row: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random bf16 cache ``[pages, page_tokens, *row]`` and the table of each sequence's pages, in random order."""
    pages = [-(-length // page_tokens) for length in lengths]
    cache = normal(sum(pages), page_tokens, *row, device="cuda")
    order = torch.randperm(sum(pages), device="cuda").to(torch.int32)
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32, device="cuda")
    filled = torch.arange(max(pages), device="cuda")[None] < torch.tensor(pages, device="cuda")[:, None]
    table[filled] = order
    return cache, table


def sequence(cache: torch.Tensor, table: torch.Tensor, index: int, length: int) -> torch.Tensor:
    """[length, *row] of one sequence, gathered from its pages."""
    pages = table[index, : -(-length // cache.shape[1])].long()
    return cache[pages].flatten(0, 1)[:length]
