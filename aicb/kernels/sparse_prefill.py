"""Sparse attention of prefills (DeepSeek Sparse Attention): scores, choice of keys, attention to those chosen.

Requests of a batch run in one kernel, as the queries of one request with as many keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.columns import Columns, chunks
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes
from aicb.kernels.pairs import causal_pairs, chosen_pairs
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.reference.sparse_times import SparseSurfaces
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import LatentAttention
from aicb.model.precision import SCALE_BYTES, Precision, ceil_div
from boundary.errors import InputError

SparseStep = Literal["index_logits", "index_topk", "attention"]
"""Kernels of DeepSeek Sparse Attention in order: scores of all keys a query sees, choice of the best, attention."""
HEAD_MULTIPLE = 64
"""FlashMLA, sparse kernels on SM90."""
SPARSE_FP8_KEY_BYTES = 656
"""A latent in the fp8 cache of sparse FlashMLA: 512 e4m3, 4 fp32 scales, 64 bf16."""
_QUERIES = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_PASTS = (0, 1024, 4096, 16384, 61440)
_SCORE_LIMIT_BYTES = 1 << 30
"""Largest score matrix; engines cut a prefill into chunks below it (vLLM: 512 MiB)."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseMlaPrefill(Kernel):
    """One kernel of absorbed sparse attention of query chunks over past and new latents, one entry per request."""

    operations = ("mla_sparse_prefill", "index_logits_prefill", "index_topk_prefill")

    new_tokens: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    step: SparseStep
    heads: int
    """Padded to what the kernel takes."""
    d_qk: int
    d_v: int
    topk: int
    index_heads: int
    index_dim: int

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        return sparse_cost(self, self.new_tokens, self.heads, is_fp8=False)

    def describe(self) -> str:
        tokens, keys = int(self.new_tokens.sum()), int(self.kv_tokens.sum())
        return f"q {tokens} kv {keys} top {self.topk} {self.step}"

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        step = step_of(operation)
        new, kv = chunks(row)
        heads, latent, index = sparse_shape(row, step)
        return cls(new, kv, step, heads, *latent, row.integer("k", 2048), *index)

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> SparsePrefillTimes | None:
        del variant
        return SparsePrefillTimes(measured) if SparseSurfaces.are_measured(measured) else None

    def tensor_bytes(self, precision: Precision) -> int:
        """Engines cut the scores of long prefills into chunks."""
        return int(self.cost(precision).moved_bytes) if self.step == "attention" else 0

    def check(self) -> None:
        super(SparseMlaPrefill, self).check()
        if (self.new_tokens > self.kv_tokens).any():
            raise InputError("SparseMlaPrefill.kv_tokens: found fewer than new_tokens, expected past and new tokens")

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for attention, kv, tp in swept.attentions(LatentAttention):
            index = attention.indexer
            if index is None or kv == "fp8":  # whose cache is expanded before a prefill
                continue
            latent = {**latent_shape(attention, tp), "k": index.topk}
            scores = {"heads": index.heads, "kv_heads": 1, "d_qk": index.head_dim}
            for new, length in _chunks(swept):
                yield _chunk("mla_sparse_prefill", "bf16", latent, (new, length), latent_tag(latent))
                if 4 * new * length <= _SCORE_LIMIT_BYTES:
                    yield _chunk("index_logits_prefill", "fp8", scores, (new, length), "sparse/index")
                    yield _chunk("index_topk_prefill", "", {"k": index.topk}, (new, length), "sparse/index")


class SparsePrefillTimes(KernelTimes[SparseMlaPrefill]):
    """Requests of one batch as one request with the same queries and keys per query."""

    def __init__(self, measured: MeasuredTimes):
        self.surfaces = SparseSurfaces(measured)

    def price(self, kernel: SparseMlaPrefill) -> Estimate:
        new, kv = kernel.new_tokens, kernel.kv_tokens
        queries = float(new.sum())
        if kernel.step == "attention":
            keys = float(chosen_pairs(new, kv, kernel.topk).sum()) / queries
            return self.surfaces.prefill.price(float(kernel.heads), keys, queries)
        surface = self.surfaces.prefill_scores if kernel.step == "index_logits" else self.surfaces.prefill_choice
        return surface.price(float(causal_pairs(new, kv).sum()) / queries, queries)


class SparseShape(Protocol):
    """Fields that the costs of prefills and of decodes share."""

    @property
    def kv_tokens(self) -> NDArray[np.int64]: ...
    @property
    def step(self) -> SparseStep: ...
    @property
    def d_qk(self) -> int: ...
    @property
    def d_v(self) -> int: ...
    @property
    def topk(self) -> int: ...
    @property
    def index_heads(self) -> int: ...
    @property
    def index_dim(self) -> int: ...


def sparse_cost(kernel: SparseShape, new: NDArray[np.int64], heads: int, *, is_fp8: bool) -> KernelCost:
    """Cost of one kernel for ``new`` query tokens of each request. Scores stay in L2 where they fit, so only their
    keys count as cold."""
    queries, keys = float(new.sum()), float(kernel.kv_tokens.sum())
    seen = np.maximum(kernel.kv_tokens, new)
    pairs = float(causal_pairs(new, seen).sum())
    match kernel.step:
        case "index_logits":
            key_bytes = keys * (kernel.index_dim + SCALE_BYTES)
            moved = key_bytes + queries * kernel.index_heads * (kernel.index_dim + 4.0) + 4.0 * pairs
            return KernelCost(2.0 * kernel.index_heads * kernel.index_dim * pairs, moved, key_bytes, "fp8")
        case "index_topk":
            return KernelCost(0.0, 4.0 * (pairs + kernel.topk * queries), 0.0, "bf16")
        case "attention":
            chosen = float(chosen_pairs(new, seen, kernel.topk).sum())
            key_bytes = min(chosen, keys) * (SPARSE_FP8_KEY_BYTES if is_fp8 else 2.0 * kernel.d_qk)
            width = kernel.d_qk + kernel.d_v
            return KernelCost(
                2.0 * heads * width * chosen, key_bytes + 2.0 * queries * heads * width, key_bytes, "bf16"
            )


def step_of(operation: str) -> SparseStep:
    """The kernel that an operation of a table names."""
    if operation.startswith("index_logits"):
        return "index_logits"
    return "index_topk" if operation.startswith("index_topk") else "attention"


def sparse_shape(row: Columns, step: SparseStep) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Query heads, latent (key and value) and indexer (heads, dimension); the columns name those of ``step``."""
    if step == "attention":
        return row.integer("heads"), (row.integer("d_qk", 576), row.integer("d_v", 512)), (64, 128)
    return 128, (576, 512), (row.integer("heads", 64), row.integer("d_qk", 128))


def latent_shape(attention: LatentAttention, tp: int) -> dict[str, int]:
    """Columns of attention on one rank; heads are padded as kernels need."""
    heads = HEAD_MULTIPLE * ceil_div(attention.heads // tp, HEAD_MULTIPLE)
    return {"heads": heads, "kv_heads": 1, "d_qk": attention.kv_elements, "d_v": attention.kv_lora_rank}


def latent_tag(shape: dict[str, int]) -> str:
    """Models and ranks share points."""
    return f"sparse/{shape['heads']}heads"


def _chunks(swept: SweptModel) -> Iterator[tuple[int, int]]:
    """(new tokens, KV length) of one request: whole prompts, chunks with a past, single tokens with a past."""
    for new in _QUERIES:
        for past in _PASTS:
            if new <= swept.max_tokens and new + past <= swept.max_kv_tokens and (past or new >= 64):
                yield new, new + past


def _chunk(op: str, dtype: str, shape: dict[str, int], size: tuple[int, int], tag: str) -> Point:
    new, length = size
    columns = {**shape, "batch": 1, "q_len": new, "kv_len": length}
    return point(op, dtype, columns, queries=(new,), lengths=(length,), tag=tag)
