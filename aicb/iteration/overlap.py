"""Work that overlaps other work: the shared expert on a second stream, and two half batches taking turns.

Both are off unless asked for. Kernels of two streams share SMs and memory bandwidth: side by side they hide latency and
idle SMs, but what they move and compute takes as long as it does alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

import aicb._core as _core
from aicb.iteration.pricing import PS_PER_US
from aicb.measurements.gpu import Gpu
from aicb.operators.batch import Batch
from aicb.operators.operator import Communication, Operator
from boundary.errors import InputError

SHARED_EXPERT_OPERATORS = frozenset(
    {
        "shared_quant",
        "shared_gate_up",
        "shared_silu_mul",
        "shared_down_quant",
        "shared_down",
        "shared_gate",
        "shared_gate_sigmoid",
        "shared_gate_mul",
    }
)
"""What can run on the second stream; the addition to the routed output waits for both."""

INTERFERENCE = 0.25
"""Part of a stream's time beyond its roofline that it adds to the other's. Median of 18 decodes of 1 to 256 requests
inside vLLM on an H200, with the shared expert on a stream of its own and without (Qwen3-Next-80B-A3B with TP 2,
DeepSeek-V3; ``tests/data/engine/vllm-h200-layers.json.gz``, `tests.validation.shared_expert_stream`)."""

LEAST_HALF = 0.48
"""A sequence is cut in two where whole sequences would leave a side with less of the tokens (SGLang, two-batch
overlap, ``tbo_token_distribution_threshold``)."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Choice of the work that overlaps other work.

    Raises:
        InputError: a share outside 0 … 1.
    """

    shared_expert_stream: bool = False
    """The shared expert overlaps the routed experts."""
    shared_expert_sm_share: float = 0.0
    """SMs that the second stream keeps from the routed experts, which take 1 / (1 − share) as long; 0 where the block
    scheduler only fills SMs that idle."""
    shared_expert_tokens: int | None = None
    """Only where a rank has at most so many tokens, padding included; None: always."""

    def __post_init__(self) -> None:
        check_share("Overlap.shared_expert_sm_share", self.shared_expert_sm_share)

    def has_second_stream(self, tokens: int) -> bool:
        """Whether a shared expert, if there is one, overlaps others where a rank has so many tokens."""
        most = self.shared_expert_tokens
        return self.shared_expert_stream and (most is None or tokens <= most)


class StreamWork(NamedTuple):
    """Kernels of one stream."""

    time_ps: int
    """One after another, while the other stream is idle."""
    bound_ps: int
    """Their roofline, see `bound_ps`."""

    @property
    def added_ps(self) -> float:
        """What they add to a stream that lasts longer."""
        return self.bound_ps + INTERFERENCE * max(self.time_ps - self.bound_ps, 0)


def side_by_side_ps(main: StreamWork, second: StreamWork, sm_share: float = 0.0) -> int:
    """Time of two streams: that of the longer one and what the other adds to it; never above one after the other.

    Args:
        main: the stream that gives up ``sm_share`` of the SMs.
        second: the other stream.
        sm_share: 0 … 1, exclusive.
    """
    slowed_ps = main.time_ps / (1.0 - sm_share)
    longer_ps = max(slowed_ps + second.added_ps, second.time_ps + main.added_ps)
    return min(main.time_ps + second.time_ps, round(longer_ps))


def bound_ps(operators: Sequence[Operator], gpu: Gpu) -> int:
    """Roofline of all operators together: ``max(Σ FLOPs / peak, Σ weight and KV bytes / bandwidth)``.

    Activations may stay in L2, so only bytes of operators that have weights or FLOPs count.
    """
    computing = [op for op in operators if not isinstance(op.kernel, Communication) and op.flops > 0]
    compute = sum(op.count * op.flops / gpu.peak_flops[getattr(op.kernel, "dtype", "bf16")] for op in computing)
    memory = sum(op.count * op.moved_bytes for op in computing) / gpu.hbm_bytes_per_s
    return round(max(compute, memory) * 1e6 * PS_PER_US)


def halve(batch: Batch) -> tuple[Batch, Batch]:
    """Two half batches: decodes by requests, prefills by tokens, in order.

    A prefill is cut in two where the border would otherwise leave a side below ``LEAST_HALF`` of the tokens. Rows that
    need logits are the last ones of a batch. A batch of one decode leaves the second half empty.
    """
    if bool(batch.is_decode.all()):
        return _split(batch, len(batch.new_tokens) - len(batch.new_tokens) // 2, 0)
    ends = np.cumsum(batch.new_tokens)
    total = int(ends[-1])
    border = int(np.argmin(np.abs(2 * ends - total))) + 1
    first = int(ends[border - 1])
    if min(first, total - first) >= LEAST_HALF * total:
        return _split(batch, border, 0)
    cut = int(np.searchsorted(ends, total // 2, side="right"))
    before = int(ends[cut - 1]) if cut else 0
    return _split(batch, cut, total // 2 - before)


def cut_batch(batch: Batch, parts: int) -> list[Batch]:
    """Micro-batches in order, without logits: decodes by requests, batches with prefills by tokens, which cuts prompts.

    The first ones have one more where they cannot be equal; the last ones are empty where there are too few.
    """
    if bool(batch.is_decode.all()):
        count = len(batch.new_tokens)
        cuts = pairwise(-(-place * count // parts) for place in range(parts + 1))
        return [Batch(batch.new_tokens[low:high], batch.kv_tokens[low:high], 0) for low, high in cuts]
    ends = np.cumsum(batch.new_tokens)
    begins, past = ends - batch.new_tokens, batch.kv_tokens - batch.new_tokens
    borders = [-(-place * int(ends[-1]) // parts) for place in range(parts + 1)]
    made = []
    for low, high in pairwise(borders):
        first, last = np.maximum(begins, low), np.minimum(ends, high)
        has_any = last > first
        new = (last - first)[has_any]
        made.append(Batch(new, past[has_any] + (last - begins)[has_any], 0))
    return made


def _split(batch: Batch, request: int, tokens: int) -> tuple[Batch, Batch]:
    """The border lies ``tokens`` new tokens into ``request``."""
    new, kv = batch.new_tokens, batch.kv_tokens
    head_new, head_kv = new[:request], kv[:request]
    if tokens:
        head_new = np.append(head_new, tokens)
        head_kv = np.append(head_kv, kv[request] - new[request] + tokens)
    tail_new, tail_kv = new[request:].copy(), kv[request:]
    if tokens:
        tail_new[0] -= tokens
    tail_rows = min(batch.logit_rows, len(tail_new))
    return Batch(head_new, head_kv, batch.logit_rows - tail_rows), Batch(tail_new, tail_kv, tail_rows)


@dataclass(frozen=True, slots=True)
class TwoBatchOverlap:
    """Time of an iteration of two half batches as a function of how long communication takes."""

    not_overlapped_ps: float
    """Time that no communication overlaps: the first piece of compute, and the host."""
    overlapped: list[tuple[float, float, float]]
    """(compute, communication, share) [ps] of each segment: the longer of the two counts, times its share."""

    def lasting_ps(self, slowdown: float = 1.0) -> int:
        """Time where communication takes ``slowdown`` times as long as on an idle fabric."""
        segments = [_core.OverlapSegment(*segment) for segment in self.overlapped]
        return round(_core.overlapped_ps(self.not_overlapped_ps, segments, slowdown))


def check_share(name: str, value: float) -> None:
    """Raises: InputError, for a share of SMs outside 0 … 1."""
    if not 0.0 <= value < 1.0:
        raise InputError(f"{name}: found {value}, expected at least 0 and below 1")
