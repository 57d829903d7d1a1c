"""What a workload looks like: rate, burstiness, lengths, and how much of its prompts a perfect cache would hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidur_pd.workload.workload import PS_PER_S, BlockHashes, Workload


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Of a token count over all requests; percentiles are interpolated linearly."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class WorkloadStatistics:
    """A workload in numbers."""

    name: str
    source: str
    requests: int
    span_s: float
    """First to last arrival."""
    rate_qps: float | None
    """Gaps per second of the span; ``None`` if all requests arrive at once."""
    gap_cv: float | None
    """Standard deviation of the gaps between arrivals over their mean: 1 for Poisson; ``None`` as above."""
    prefill_tokens: LengthStatistics
    decode_tokens: LengthStatistics
    hash_block_tokens: int | None
    prompt_blocks: int | None
    distinct_blocks: int | None
    perfect_cache_hit_share: float | None
    """See `perfect_cache_hit_share`; ``None`` without block ids, as are the three before."""
    trimmed_requests: int
    skipped_rows: int


def describe_workload(workload: Workload) -> WorkloadStatistics:
    """Computes everything above."""
    gaps_s = np.diff(workload.arrived_ps) / PS_PER_S
    mean_gap_s = float(gaps_s.mean()) if len(gaps_s) else 0.0
    hashes = workload.block_hashes
    return WorkloadStatistics(
        name=workload.name,
        source=workload.source,
        requests=len(workload),
        span_s=workload.span_ps / PS_PER_S,
        rate_qps=1 / mean_gap_s if mean_gap_s else None,
        gap_cv=float(gaps_s.std()) / mean_gap_s if mean_gap_s else None,
        prefill_tokens=_lengths(workload.prefill_tokens),
        decode_tokens=_lengths(workload.decode_tokens),
        hash_block_tokens=None if hashes is None else hashes.block_tokens,
        prompt_blocks=None if hashes is None else int(prompt_blocks(workload, hashes).sum()),
        distinct_blocks=None if hashes is None else len(np.unique(hashes.ids)),
        perfect_cache_hit_share=None if hashes is None else perfect_cache_hit_share(workload, hashes),
        trimmed_requests=workload.trimmed_requests,
        skipped_rows=workload.skipped_rows,
    )


def perfect_cache_hit_share(workload: Workload, hashes: BlockHashes) -> float:
    """Share of all prompt blocks that an infinite prefix cache, filled when a request arrives, already holds.

    This is the upper bound that real caches (finite, filled when a prefill ends) approach from below.
    """
    return int(perfect_cache_hits(workload, hashes).sum()) / int(prompt_blocks(workload, hashes).sum())


def perfect_cache_hits(workload: Workload, hashes: BlockHashes) -> NDArray[np.int64]:
    """[requests] prompt blocks that an infinite prefix cache, filled when a request arrives, already holds.

    A block hits if an earlier request had it, in its prompt or in its answer, and all blocks before it in the prompt
    hit too. Partial blocks count as blocks.
    """
    seen: set[int] = set()
    hits = []
    ids = hashes.ids.tolist()
    prompts = prompt_blocks(workload, hashes)
    for start, end, blocks in zip(
        hashes.offsets[:-1].tolist(), hashes.offsets[1:].tolist(), prompts.tolist(), strict=True
    ):
        prompt = ids[start : start + blocks]
        hits.append(next((i for i, block in enumerate(prompt) if block not in seen), blocks))
        seen.update(ids[start:end])
    return np.array(hits, dtype=np.int64)


def prompt_blocks(workload: Workload, hashes: BlockHashes) -> NDArray[np.int64]:
    """[requests] blocks of the prompts, the partial ones too."""
    return -(-workload.prefill_tokens // hashes.block_tokens)


def _lengths(tokens: NDArray[np.int64]) -> LengthStatistics:
    p50, p90, p99 = np.percentile(tokens, [50, 90, 99]).tolist()
    return LengthStatistics(float(tokens.mean()), p50, p90, p99, int(tokens.max()))
