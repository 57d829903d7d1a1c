"""Absorbed attention of short chunks of prompts to a latent cache, by FlashAttention-3.

vLLM 0.24.0 takes chunks of up to 512 tokens for decodes of several queries (``mla/flashattn_mla.py``,
``reorder_batch_threshold``): nothing is expanded, every head attends to latents of 576, and a second kernel joins the
splits of the keys. Longer chunks are expanded (`PrefillAttention`).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.columns import Columns, chunks
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes
from aicb.kernels.pairs import causal_pairs
from aicb.measurements.gpu import MEASURED_GPU
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import ELEMENT_BYTES, Precision
from boundary.errors import InputError

MOST_TOKENS = 512
"""Of a chunk that is absorbed."""
START_US, PAIR_US, ROW_US = 16.9, 5.69e-6, 8.0e-4
"""Both kernels together: of a call, of a query and key of a head, of a query of a head (whose result is written per
split and joined). Least squares of the relative error over six prompts of DeepSeek-V3 inside vLLM, of 64, 256 and 512
tokens with TP 1 and 8 (``tests/data/engine/vllm-h200-layers.json.gz``): +11, -7, +3 and +6, -34, +8 %."""
ERROR = 0.15
"""Root mean square of these."""
REACH_TOKENS = 1024
"""Keys of a chunk up to which this counts as measured: twice the most that were."""
JOINED_BYTES = 3 * ELEMENT_BYTES["fp32"]
"""Written, read again and written as a result, of each number of a split."""


@dataclass(frozen=True, slots=True, eq=False)
class Fa3MlaChunks(Kernel):
    """Causal attention of short query chunks over past and new latents, one entry per request."""

    core_role = "chunk"

    new_tokens: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    heads: int
    d_qk: int
    d_v: int

    def cost(self, precision: Precision) -> KernelCost:
        """Over a bf16 cache."""
        del precision
        pairs, rows = float(self.pairs), float(self.new_tokens.sum()) * self.heads
        kv_bytes = float(self.kv_tokens.sum()) * self.d_qk * ELEMENT_BYTES["bf16"]
        own_bytes = rows * (self.d_qk * ELEMENT_BYTES["bf16"] + self.d_v * JOINED_BYTES)
        return KernelCost(2.0 * self.heads * (self.d_qk + self.d_v) * pairs, kv_bytes + own_bytes, kv_bytes, "bf16")

    @property
    def pairs(self) -> float:
        """Of query and key tokens."""
        return float(causal_pairs(self.new_tokens, self.kv_tokens).sum())

    def over(self, new_tokens: int, kv_tokens: int) -> Self:
        """The kernel of this geometry over one other chunk."""
        return replace(self, new_tokens=np.array([new_tokens]), kv_tokens=np.array([kv_tokens]))

    def describe(self) -> str:
        return f"q {int(self.new_tokens.sum())} kv {int(self.kv_tokens.sum())} heads {self.heads}/1"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        new, kv = chunks(row)
        return cls(new, kv, row.integer("heads"), row.integer("d_qk", 576), row.integer("d_v", 512))

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> ChunkTimes | None:
        """Inside an engine, on one GPU."""
        del variant
        return ChunkTimes() if measured.gpu.name == MEASURED_GPU else None

    def tensor_bytes(self, precision: Precision) -> int:
        return int(self.cost(precision).moved_bytes)

    def check(self) -> None:
        super(Fa3MlaChunks, self).check()
        if (self.new_tokens > self.kv_tokens).any():
            raise InputError("Fa3MlaChunks.kv_tokens: found fewer than new_tokens, expected past and new tokens")


class ChunkTimes(KernelTimes[Fa3MlaChunks]):
    """A call, its pairs and its rows."""

    def price(self, kernel: Fa3MlaChunks) -> Estimate:
        rows = float(kernel.new_tokens.sum()) * kernel.heads
        time_us = START_US + PAIR_US * kernel.heads * kernel.pairs + ROW_US * rows
        is_far = bool((kernel.kv_tokens > REACH_TOKENS).any())
        return Estimate(time_us, is_far, "interpolated: law of six prompts inside vLLM", ERROR)
