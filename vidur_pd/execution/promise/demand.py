"""What a workload asks of a cluster, in the few figures that closed forms need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netsim.units import PS_PER_S
from vidur_pd.workload import Workload
from vidur_pd.workload.statistics import perfect_cache_hits

SAMPLE: Final = 48
"""Prompts that stand for all: those at evenly spaced ranks of the tokens to compute."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Tokens per request, and how many requests come."""

    rate_per_s: float | None
    """``None`` where clients send after they have been answered, or all comes at once."""
    prompts: NDArray[np.int64]
    """[sample] prompt tokens, rising by what is to be computed of them."""
    cached: NDArray[np.int64]
    """[sample] tokens of them that a cache of any size would hold."""
    output_tokens: float
    """Mean."""
    context_tokens: float
    """KV that a token of the output attends to, in the mean over all of them."""


def demand_of(workload: Workload) -> Demand:
    """The demand of a whole workload."""
    prompts, outputs = workload.prefill_tokens, workload.decode_tokens
    cached = np.zeros_like(prompts)
    if workload.block_hashes is not None:
        hits = perfect_cache_hits(workload, workload.block_hashes) * workload.block_hashes.block_tokens
        cached = np.minimum(hits, prompts - 1)
    order = np.argsort(prompts - cached, kind="stable")
    places = order[np.unique(((np.arange(SAMPLE) + 0.5) / SAMPLE * len(order)).astype(np.int64))]
    weights = outputs / outputs.sum()
    span_ps = workload.span_ps
    is_timed = workload.pacing is None and span_ps > 0
    return Demand(
        rate_per_s=(len(workload) - 1) * PS_PER_S / span_ps if is_timed else None,
        prompts=prompts[places],
        cached=cached[places],
        output_tokens=float(outputs.mean()),
        context_tokens=float(np.dot(weights, prompts + outputs / 2)),
    )
