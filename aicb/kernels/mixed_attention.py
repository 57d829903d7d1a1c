"""Attention of prompts and decodes in one call (FlashAttention-3), as vLLM makes it of a batch that has both.

Priced as the prompts alone and the decodes alone, but for what one call changes. Its tiles are those of prompts, so
that a decode takes a tile of 128 query rows for each KV head, of which as many are used as query heads share it: an SM
takes ``key_us`` for each key of it, where a kernel of decodes has tiles of 64 rows. And beyond the sizes that are
captured FA3 divides no request where the longest prompt alone fills the SMs: one long decode then takes as long as one
SM needs for all its keys, however few tokens the batch has. Prompts that do not fill the SMs leave the others to
decodes.

Up to the largest captured size any request may be divided 32 times, whatever its batch: the kernel that can combine
parts is a little slower, also of prompts alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from aicb.kernels.columns import Columns, chunks, kv_dtype
from aicb.kernels.decode_attention import PAGE_TOKENS, CapturedDecodeAttention, DecodeAttention
from aicb.kernels.fitting.estimate import Estimate
from aicb.kernels.kernel import Kernel, KernelCost, KernelTimes
from aicb.kernels.pairs import causal_pairs
from aicb.kernels.point import Point, SweptModel, point
from aicb.kernels.prefill_attention import PrefillAttention, tile_of
from aicb.measurements.clock import DECODE_ATTENTION, PROMPT_ATTENTION, PowerLoad
from aicb.measurements.gpu import Gpu
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import GroupedQueryAttention
from aicb.model.partition import kv_heads_per_rank
from aicb.model.precision import ELEMENT_BYTES, GemmDtype, Precision
from boundary.errors import InputError

CAPTURED_TOKENS = 512
"""vLLM's largest captured size by default, ``max_cudagraph_capture_size``."""


class CallTimes(NamedTuple):
    """What a call takes whatever its tiles, µs."""

    floor_us: float
    """Launch of prompts."""
    decode_floor_us: float
    """Launch of decodes, which one call has not."""
    split_us: float
    """Of prompts and decodes that may be divided."""
    prompt_split_us: float
    """Of each token of prompts alone that may be."""


CALL_TIMES = CallTimes(5.6, 7.8, 4.1, 0.0075)


class DecodeTile(NamedTuple):
    """An SM's time for one KV head of a decode in a tile of prompts."""

    start_us: float
    key_us: float


DECODE_TILES: Mapping[tuple[GemmDtype, int], DecodeTile] = {
    ("bf16", 64): DecodeTile(4.9, 0.0147),
    ("bf16", 128): DecodeTile(4.5, 0.0155),
    ("bf16", 256): DecodeTile(9.4, 0.0233),
    ("fp8", 128): DecodeTile(7.6, 0.0152),
}
"""By format and head dimension; of others the nearest, flagged. These and `CALL_TIMES`: least absolute deviations
over the 2,774 calls and, of prompts alone, 252 prompts of ``tests/data/kernels/vllm-h200-mixed-attention.json.gz``
from an H200 (``scripts/fit_mixed_attention.py``, which prints them): 5.7 % off in the mean and 13 % at p90, where
prompts and decodes one after another are 19 and 50 %; a geometry left out 4 to 7 %, of those of 64 and of e4m3, of
which two were measured each, 10 to 16 %."""
_PROMPTS = (((256, 0),), ((1024, 0),), ((2048, 6144),), ((7000, 0),), ((512, 0),) * 3)
"""(new, past) tokens of the prompts of measured batches."""
_DECODES = tuple(product((1, 4, 16, 64, 256), (512, 2048, 8192, 32768)))
"""(requests, KV tokens of each) of their decodes."""


def mixed_call(
    kernel: PrefillAttention,
    gpu: Gpu,
    split_tokens: int,
    times: CallTimes = CALL_TIMES,
    tiles: Mapping[tuple[GemmDtype, int], DecodeTile] = DECODE_TILES,
) -> _core.MixedCall:
    """One call of the prompts of ``kernel`` and decodes of its geometry; its lengths do not matter.

    Args:
        kernel: prompts.
        gpu: what it runs on.
        split_tokens: up to so many tokens of a batch any request may be divided.
        times: what a call takes whatever its tiles.
        tiles: of decodes, by format and head dimension.
    """
    head_dim, tile = kernel.d_qk, tile_of(kernel.dtype, kernel.d_qk + kernel.d_v)
    key = (kernel.dtype, head_dim)
    nearest = min(tiles, key=lambda each: (each[0] != kernel.dtype, abs(each[1] - head_dim)))
    decode = tiles.get(key, tiles[nearest])
    return _core.MixedCall(
        **times._asdict(),
        **decode._asdict(),
        rows=tile.rows,
        block_tokens=tile.block_tokens,
        sharing=kernel.heads / kernel.kv_heads,
        kv_heads=kernel.kv_heads,
        sms=gpu.sms,
        split_tokens=split_tokens,
        is_estimate=key not in tiles,
    )


@dataclass(frozen=True, slots=True, eq=False)
class MixedAttention(Kernel):
    """Causal attention of chunks of prompts and of decodes over a paged cache, one entry per request."""

    operations = ("mixed_attention",)
    cold_operations = frozenset({"mixed_attention"})

    new_tokens: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    heads: int
    kv_heads: int
    head_dim: int
    dtype: GemmDtype = "bf16"
    """Format of queries, keys and values."""
    split_tokens: int = field(default=CAPTURED_TOKENS, kw_only=True)
    """Up to so many tokens of the batch any request may be divided."""

    @property
    def is_decode(self) -> NDArray[np.bool_]:
        """[requests] whether each decodes."""
        decodes: NDArray[np.bool_] = (self.new_tokens == 1) & (self.kv_tokens > 1)
        return decodes

    @property
    def prompts(self) -> PrefillAttention:
        """Its prompts alone."""
        chosen, dim = ~self.is_decode, self.head_dim
        new, kv = self.new_tokens[chosen], self.kv_tokens[chosen]
        return PrefillAttention(new, kv, self.heads, self.kv_heads, dim, dim, self.dtype)

    @property
    def decodes(self) -> DecodeAttention:
        """Its decodes alone."""
        kind = CapturedDecodeAttention if self.dtype == "bf16" else DecodeAttention
        kv = self.kv_tokens[self.is_decode]
        return kind(kv, self.heads, self.kv_heads, self.head_dim, kv_dtype=self.dtype)

    def cost(self, precision: Precision) -> KernelCost:
        del precision
        element = ELEMENT_BYTES[self.dtype]
        flops = 4.0 * self.heads * self.head_dim * float(causal_pairs(self.new_tokens, self.kv_tokens).sum())
        kv_bytes = float(self.kv_tokens.sum()) * 2.0 * self.kv_heads * self.head_dim * element
        own_bytes = float(self.new_tokens.sum()) * self.heads * self.head_dim * (element + ELEMENT_BYTES["bf16"])
        return KernelCost(flops, kv_bytes + own_bytes, kv_bytes, self.dtype)

    @property
    def power_load(self) -> PowerLoad:
        """By its FLOPs that of prompts, by its bytes that of decodes."""
        return PowerLoad(slope=PROMPT_ATTENTION.slope, memory=DECODE_ATTENTION.memory)

    def describe(self) -> str:
        tokens, keys = int(self.new_tokens.sum()), int(self.kv_tokens.sum())
        return f"q {tokens} kv {keys} decodes {int(self.is_decode.sum())} heads {self.heads}/{self.kv_heads}"

    def check(self) -> None:
        super(MixedAttention, self).check()
        if (self.new_tokens > self.kv_tokens).any():
            raise InputError("MixedAttention.kv_tokens: found fewer than new_tokens, expected past and new tokens")

    @classmethod
    def read(cls, operation: str, row: Columns) -> Self:
        del operation
        new, kv = chunks(row)
        return cls(new, kv, row.integer("heads"), row.integer("kv_heads"), row.integer("d_qk"), kv_dtype(row) or "bf16")

    @classmethod
    def fit(cls, variant: Hashable, measured: MeasuredTimes) -> MixedTimes:
        assert isinstance(variant, tuple)
        return MixedTimes(measured, *variant)

    def variant(self, precision: Precision) -> tuple[Hashable, Hashable]:
        """Those of prompts and of decodes alone."""
        return self.prompts.variant(precision), self.decodes.variant(precision)

    @property
    def measured_as(self) -> tuple[str, str | None]:
        return self.prompts.measured_as

    @classmethod
    def swept_points(cls, swept: SweptModel) -> Iterator[Point]:
        for gqa, kv, tp in swept.attentions(GroupedQueryAttention):
            heads, kv_heads = gqa.heads // tp, kv_heads_per_rank(gqa.kv_heads, tp)
            shape = {"heads": heads, "kv_heads": kv_heads, "d_qk": gqa.head_dim, "d_v": gqa.head_dim}
            for prompts, (requests, context) in product(_PROMPTS, _DECODES):
                queries = (1,) * requests + tuple(new for new, _ in prompts)
                lengths = (context,) * requests + tuple(new + past for new, past in prompts)
                if sum(queries) > swept.max_tokens or requests * context > swept.max_kv_tokens:
                    continue
                size = {"batch": len(queries), "q_len": sum(queries) // len(queries), "page_tokens": PAGE_TOKENS}
                yield point(
                    cls.operations[0],
                    kv,
                    {**shape, **size, "kv_len": sum(lengths) // len(lengths)},
                    lengths=lengths,
                    queries=queries,
                    distribution="equal",
                    tag=swept.tag(tp),
                )


class MixedTimes(KernelTimes[MixedAttention]):
    """Times of one call from those of its prompts and of its decodes alone."""

    def __init__(self, measured: MeasuredTimes, prompts: Hashable, decodes: Hashable):
        """``prompts``, ``decodes``: their variants."""
        self._gpu = measured.gpu
        self._prompts = PrefillAttention.fit(prompts, measured)
        kind = CapturedDecodeAttention if decodes == "bf16" else DecodeAttention
        self._decodes = kind.fit(decodes, measured)

    def price(self, kernel: MixedAttention) -> Estimate:
        if kernel.is_decode.all():
            return self._decodes.price(kernel.decodes)
        prompts, call = kernel.prompts, mixed_call(kernel.prompts, self._gpu, kernel.split_tokens)
        alone = self._prompts.price(prompts)
        decodes, none = kernel.decodes, Estimate(0.0, False, "", lambda: 0.0)
        added = self._decodes.price(decodes) if len(decodes.kv_tokens) else none
        lengths = (prompts.new_tokens, prompts.kv_tokens)
        time_us = call.time_us(alone.time_us, *lengths, added.time_us, decodes.kv_tokens)
        is_estimate = alone.is_estimate or added.is_estimate or (kernel.dtype, kernel.head_dim) not in DECODE_TILES
        source = f"{'estimate:' if is_estimate else 'interpolated'} FA3 of prompts and decodes in one call"
        return Estimate(time_us, is_estimate, source, lambda: max(alone.error, added.error, CALL_ERROR))


CALL_ERROR = 0.06
"""Mean error of measured calls (`DECODE_TILES`), which a sum of exact times would have, too."""
