"""From a trace to a generator: lengths with their correlation, arrivals with their rate over time, shared prefixes.

- Lengths: percentiles (log-linear between them) or log-normals of prompts and outputs, joined by a Gaussian copula with
  the rank correlation ρ of the trace: the normal variables behind have the correlation 2·sin(π/6·ρ) (Pearson, 1907).
- Arrivals: the rate in windows of at least 200 requests where it varies more than a renewal process of the same CV
  would (a dispersion test at three standard deviations), else one rate; the CV is that of the gaps in the time of that
  rate.
- Prefixes, where a trace has block ids: a request that continues a whole earlier prompt is the next turn of its
  conversation, any other begins one; what such beginnings share with earlier requests is a system prompt.

Ignored: correlation of lengths with time and with the turn, correlation of gaps, documents that are shared
but neither system prompts nor turns, classes. What that costs is in `FitQuality`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vidur_pd.workload.statistics import prompt_blocks
from vidur_pd.workload.workload import PS_PER_S, BlockHashes, Workload

Rows = NDArray[np.int64]
LengthForm = Literal["quantiles", "lognormal"]

WINDOW_REQUESTS = 200
MOST_WINDOWS = 96
SHARES = (*(np.arange(100) / 100).tolist(), 0.995, 0.999, 1.0)
"""Percentiles that are kept."""


def fit_section(workload: Workload, form: LengthForm, *, with_prefixes: bool) -> dict[str, Any]:
    """The ``workload`` section of a generator that resembles a trace."""
    section: dict[str, Any] = {"kind": "synthetic", "requests": len(workload), "arrivals": fit_arrivals(workload)}
    prompts = workload.prefill_tokens
    if with_prefixes and workload.block_hashes is not None:
        talks = _conversations(workload, workload.block_hashes)
        section["prefixes"], prompts = _prefixes(workload, talks), talks.added_tokens
    section["lengths"] = fit_lengths(prompts, workload.decode_tokens, form)
    return section


def fit_lengths(prompts: Rows, outputs: Rows, form: LengthForm) -> dict[str, Any]:
    """A ``lengths`` section."""
    marginal = _quantiles if form == "quantiles" else _lognormal
    found = {"kind": form, "prefill": marginal(prompts), "decode": marginal(outputs)}
    correlation = 2 * math.sin(math.pi / 6 * rank_correlation(prompts, outputs))
    return found | {"correlation": round(max(-1.0, min(1.0, correlation)), 6)}


def rank_correlation(first: Rows, second: Rows) -> float:
    """Spearman's ρ; 0 where one of them is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    size = math.sqrt(float(np.dot(ranks[0], ranks[0]) * np.dot(ranks[1], ranks[1])))
    return float(np.dot(ranks[0], ranks[1])) / size if size else 0.0


def _quantiles(tokens: Rows) -> dict[str, Any]:
    values = np.quantile(tokens, SHARES, method="inverted_cdf").astype(np.int64).tolist()
    return {"quantiles": [[share, value] for share, value in zip(SHARES, values, strict=True)]}


def _lognormal(tokens: Rows) -> dict[str, Any]:
    logarithms = np.log(tokens)
    return {
        "mu": round(float(logarithms.mean()), 6),
        "sigma": round(float(logarithms.std()), 6),
        "max": int(tokens.max()),
    }


# Arrivals ---------------------------------------------------------------------------------------------------


def fit_arrivals(workload: Workload) -> dict[str, Any]:
    """An ``arrivals`` section."""
    times_s = (workload.arrived_ps - workload.arrived_ps[0]) / PS_PER_S
    span_s = float(times_s[-1])
    if span_s == 0:
        return {"kind": "static"}
    rate, cv = (len(times_s) - 1) / span_s, _cv(np.diff(times_s))
    windows = min(len(times_s) // WINDOW_REQUESTS, MOST_WINDOWS)
    counts, edges = np.histogram(times_s, bins=max(windows, 1))
    if not _varies(counts, cv):
        return {"kind": "gamma", "qps": _limited(rate, 1e-6, 1e9), "cv": _limited(cv, 1e-3, 1e3)}
    width_s = span_s / windows
    passed = np.interp(times_s, edges, np.concatenate(([0], np.cumsum(counts))))
    steps = [[_limited(width_s, 1e-9, 9e6), _limited(count / width_s, 0, 1e9)] for count in counts.tolist()]
    varying = {"kind": "steps", "steps": steps}
    return {"kind": "varying", "rate": varying, "cv": _limited(_cv(np.diff(passed)), 1e-3, 1e3)}


def _varies(counts: Rows, cv: float) -> bool:
    """Whether counts in windows disperse more than those of a renewal process with this CV at a constant rate."""
    freedom = len(counts) - 1
    if freedom < 1:
        return False
    dispersion = float(np.sum((counts - counts.mean()) ** 2) / counts.mean())
    return dispersion > max(cv, 0.1) ** 2 * (freedom + 3 * math.sqrt(2 * freedom))


def _cv(gaps: NDArray[np.float64]) -> float:
    return float(gaps.std() / gaps.mean())


def _limited(value: float, least: float, most: float) -> float:
    """As a configuration may have it."""
    return min(max(_digits(value), least), most)


def _digits(value: float) -> float:
    """Six of them."""
    return float(f"{value:.6g}")


# Prefixes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Conversations:
    """What a trace with block ids says of conversations. Arrays are [requests]."""

    before: Rows
    """Row that each continues; −1: it begins a conversation."""
    shared_tokens: Rows
    """Leading tokens, in whole blocks, that an earlier request had."""
    added_tokens: Rows
    """What a turn adds to what was said, or to the system prompt."""


def _conversations(workload: Workload, hashes: BlockHashes) -> _Conversations:
    size, blocks = hashes.block_tokens, prompt_blocks(workload, hashes).tolist()
    prompts, outputs = workload.prefill_tokens.tolist(), workload.decode_tokens.tolist()
    latest: dict[int, int] = {}
    before, shared, added = [], [], []
    for row, prompt in enumerate(prompts):
        ids = hashes.of(row)[: blocks[row]].tolist()
        hits = next((place for place, block in enumerate(ids) if block not in latest), len(ids))
        parent = latest[ids[hits - 1]] if hits else -1
        continues = parent >= 0 and hits >= prompts[parent] // size > 0 and prompt > prompts[parent]
        said = prompts[parent] + outputs[parent] if continues else hits * size
        known = said if said < prompt else min(hits * size, prompt - 1)
        before.append(parent if continues else -1)
        shared.append(hits * size)
        added.append(prompt - known)
        latest |= dict.fromkeys(ids, row)
    return _Conversations(*(np.array(column, dtype=np.int64) for column in (before, shared, added)))


def _prefixes(workload: Workload, talks: _Conversations) -> dict[str, Any]:
    """A ``prefixes`` section."""
    hashes = workload.block_hashes
    assert hashes is not None, "only what has ids has conversations"
    begins = talks.before < 0
    follows = np.flatnonzero(~begins)
    waits_s = (workload.arrived_ps[follows] - workload.arrived_ps[talks.before[follows]]) / PS_PER_S
    _, uses = np.unique(hashes.ids[hashes.offsets[:-1][begins]], return_counts=True)
    of_many = uses[uses > 1].astype(np.float64)  # [system prompts] with this many equally popular ones (Simpson)
    prompts = float(of_many.sum() ** 2 / (of_many**2).sum()) if len(of_many) else 1.0
    longest = int(workload.prefill_tokens.max())
    system_tokens = min(round(float(talks.shared_tokens[begins].mean())), longest - 1)
    return {
        "system_prompts": round(_limited(prompts, 1, 1_000_000)),
        "system_tokens": max(1, system_tokens),
        "turns": _digits(len(workload) / int(begins.sum())),
        "think_time_s": _digits(float(waits_s.mean())) if len(follows) else 0.0,
        "max_prompt_tokens": max(2, longest),
        "hash_block_tokens": hashes.block_tokens,
    }
