"""How well a generator resembles the trace that it was fitted to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidur_pd.workload.fitting import rank_correlation
from vidur_pd.workload.statistics import describe_workload
from vidur_pd.workload.workload import Workload

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of the trace and of a sample of the generator; ``None`` where one has none."""

    trace: float | None
    generated: float | None


@dataclass(frozen=True, slots=True)
class FitQuality:
    """Trace against a sample of as many requests."""

    prefill_ks: float
    """Largest distance of the distribution functions of prompt lengths (Kolmogorov-Smirnov), and of output lengths."""
    decode_ks: float
    prefill_mean: Compared
    decode_mean: Compared
    rank_correlation: Compared
    """Of prompt and output length (Spearman)."""
    rate_qps: Compared
    gap_cv: Compared
    cacheable_share: Compared
    """Prompt blocks that a perfect cache would have."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Name and text of each figure."""
        yield "KS distance of prompt lengths", f"{self.prefill_ks:.4f}"
        yield "KS distance of output lengths", f"{self.decode_ks:.4f}"
        for name, figure in (
            ("mean prompt tokens", self.prefill_mean),
            ("mean output tokens", self.decode_mean),
            ("rank correlation of lengths", self.rank_correlation),
            ("requests/s", self.rate_qps),
            ("CV of gaps", self.gap_cv),
            ("cacheable share of prompt blocks", self.cacheable_share),
        ):
            if figure.trace is not None:
                generated = "none" if figure.generated is None else f"{figure.generated:.4g}"
                yield name, f"{figure.trace:.4g} in the trace, {generated} generated"


def measure_fit(trace: Workload, sample: Workload) -> FitQuality:
    """Compares a trace with a sample of its generator."""
    ours, theirs = describe_workload(sample), describe_workload(trace)
    return FitQuality(
        prefill_ks=ks_distance(trace.prefill_tokens, sample.prefill_tokens),
        decode_ks=ks_distance(trace.decode_tokens, sample.decode_tokens),
        prefill_mean=Compared(theirs.prefill_tokens.mean, ours.prefill_tokens.mean),
        decode_mean=Compared(theirs.decode_tokens.mean, ours.decode_tokens.mean),
        rank_correlation=Compared(
            rank_correlation(trace.prefill_tokens, trace.decode_tokens),
            rank_correlation(sample.prefill_tokens, sample.decode_tokens),
        ),
        rate_qps=Compared(theirs.rate_qps, ours.rate_qps),
        gap_cv=Compared(theirs.gap_cv, ours.gap_cv),
        cacheable_share=Compared(theirs.perfect_cache_hit_share, ours.perfect_cache_hit_share),
    )


def ks_distance(first: Rows, second: Rows) -> float:
    """Largest difference of the shares of both that are at most a value."""
    values = np.unique(np.concatenate((first, second)))
    shares = [np.searchsorted(np.sort(of), values, side="right") / len(of) for of in (first, second)]
    return float(np.max(np.abs(shares[0] - shares[1])))
