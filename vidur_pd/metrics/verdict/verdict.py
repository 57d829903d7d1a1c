"""The verdict on a run: its outcome, what limits it, and the sentence that says both.

A run whose waiting grows to the last arrival is overloaded, whatever its percentiles are: they would be worse with more
requests. Requests that were refused or failed come first, as no figure of the others makes up for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from vidur_pd.config import SloConfig
from vidur_pd.metrics.attribution import PARTS
from vidur_pd.metrics.overload import WaitingTrend, waiting_trend
from vidur_pd.metrics.quantities import share_text
from vidur_pd.metrics.requests import seconds
from vidur_pd.metrics.summary import LimitSummary, PoolSummary, Summary, TargetSummary, VerdictSummary, WaitingSummary
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.metrics.verdict.causes import limit_of
from vidur_pd.metrics.verdict.faults import behind_faults, faults_meanwhile, under_way
from vidur_pd.metrics.verdict.limits import NEAR_ROOF, Found, Limit, percent, time_text

IDLE: Final = 0.1
"""Share of its batch slots, KV blocks and FLOPs below which a pool has little to do. Our choice."""
OUTCOMES: Final = ("nothing served", "not served", "overloaded", "misses", "meets")
"""From the worst to the best."""


def verdict_of(summary: Summary, tally: RequestTally, slo: SloConfig) -> VerdictSummary | None:
    """The verdict on a run that has ended; ``None`` where it had no requests."""
    if not summary.requests:
        return None
    trend = waiting_trend(tally)
    before, after = (_late_parts(tally, slo, of_ttft=of_ttft) for of_ttft in (True, False))
    outcome = _outcome(summary, trend)
    causes = _Causes(summary, tally, slo)
    latency, found = _limit(causes, outcome, before, after)
    limits = _of_both(causes, found, before, after) or ({} if found is None else {"": found})
    meanwhile = causes.other_faults(latency, limits) if outcome != "meets" else ""
    also = next((each for each in limits.values() if each != found), None)
    return VerdictSummary(
        outcome=outcome,
        sentence=_sentence(causes, outcome, limits, trend, meanwhile),
        limit="" if found is None else found.limit.value,
        where="" if found is None else found.where,
        reason="" if found is None else found.reason,
        advice="" if found is None else found.advice,
        also=None
        if also is None
        else LimitSummary(limit=also.limit.value, where=also.where, reason=also.reason, advice=also.advice),
        waiting=None
        if trend is None
        else WaitingSummary(growth=trend.growth, p_value=trend.p_value, is_overload=trend.is_overload),
        late_before_first_token=before,
        late_after_first_token=after,
    )


@dataclass(frozen=True, slots=True)
class _Causes:
    """What makes requests late: faults, or else what the part stands for that most of them spend their time in."""

    summary: Summary
    tally: RequestTally
    slo: SloConfig

    def limit(self, latency: str, shares: Mapping[str, float]) -> Found | None:
        if not shares:
            return None
        others = [under_way(self.tally, self.slo, name) for name in ("ttft", "tpot") if name != latency]
        faults = behind_faults(self.summary, under_way(self.tally, self.slo, latency), others)
        return faults or limit_of(next(iter(shares)), self.summary)

    def other_faults(self, latency: str, limits: Mapping[str, Found]) -> str:
        """Faults while requests were late, in words, unless they are a limit."""
        if not latency or any(found.limit is Limit.FAULTS for found in limits.values()):
            return ""
        return faults_meanwhile(self.summary, under_way(self.tally, self.slo, latency))


def limit_in_words(summary: Summary) -> str:
    """What limits the run, or would be next to, in one phrase; empty where nothing is known."""
    verdict = summary.verdict
    if verdict is None or not verdict.limit:
        return ""
    where = f" ({verdict.where})" if verdict.where and verdict.limit != Limit.LINK else ""
    return f"{verdict.limit}{where}: {verdict.reason}"


def _outcome(summary: Summary, trend: WaitingTrend | None) -> str:
    if not summary.completed:
        return "nothing served"
    if summary.completed < summary.requests:
        return "not served"
    if trend is not None and trend.is_overload:
        return "overloaded"
    return "meets" if summary.slo.is_met else "misses"


def _late_parts(tally: RequestTally, slo: SloConfig, *, of_ttft: bool) -> dict[str, float]:
    """Shares of the requests beyond the limit of TTFT, or TPOT, by the largest part of theirs; the largest first."""
    values_ps, limit_s = (tally.ttft_ps, slo.ttft_s) if of_ttft else (tally.tpot_ps, slo.tpot_s)
    is_late = seconds(values_ps) > limit_s
    return _shares(tally.largest_parts(of_ttft=of_ttft)[is_late])


def _shares(places: np.ndarray[tuple[int], np.dtype[np.int8]]) -> dict[str, float]:
    counts = Counter(PARTS[place] for place in places.tolist())
    return {part: count / len(places) for part, count in counts.most_common()}


def _tightest(summary: Summary) -> TargetSummary | None:
    """The target with the least margin; one without a finite value is beyond all."""
    known = [target for target in summary.slo.targets if target.limit is not None]
    return min(known, key=lambda target: -np.inf if target.margin is None else target.margin, default=None)


def _limit(
    causes: _Causes, outcome: str, before: dict[str, float], after: dict[str, float]
) -> tuple[str, Found | None]:
    """The latency that is limited, empty where it is none of them, and the limit."""
    summary, tally = causes.summary, causes.tally
    if outcome == "nothing served" or (outcome == "not served" and not before and not after):
        return "", _refusals(summary)
    if outcome == "overloaded":
        latency = "tpot" if after and not before else "ttft"
        shares = before or after or _shares(tally.largest_parts(of_ttft=True))
    else:
        latency, shares = _shares_of_tightest(summary, tally, before, after)
    return latency, causes.limit(latency, shares)


def _shares_of_tightest(
    summary: Summary, tally: RequestTally, before: dict[str, float], after: dict[str, float]
) -> tuple[str, dict[str, float]]:
    """The latency that is nearest to its limit, or beyond it, and its parts; of all requests where none is late."""
    tightest = _tightest(summary)
    latency = "" if tightest is None else tightest.latency
    if not latency:  # a share of requests: the objective of each that more of them miss
        late_ttft, late_tpot = _late_counts(summary, tally)
        latency = "ttft" if late_ttft > late_tpot or (late_ttft == late_tpot and _ttft_is_nearer(summary)) else "tpot"
    if latency == "e2e":
        return latency, _shares_of_whole(summary)
    if latency == "tpot":
        return latency, after or _shares(tally.largest_parts(of_ttft=False))
    return latency, before or _shares(tally.largest_parts(of_ttft=True))


def _shares_of_whole(summary: Summary) -> dict[str, float]:
    """Parts of the mean end-to-end latency, the largest first."""
    parts = summary.attribution_s
    total = sum(parts.values())
    return {part: parts[part] / total for part in sorted(parts, key=lambda part: -parts[part])} if total else {}


def _late_counts(summary: Summary, tally: RequestTally) -> tuple[int, int]:
    pairs = ((tally.ttft_ps, summary.slo.ttft_s), (tally.tpot_ps, summary.slo.tpot_s))
    first, second = (int(np.count_nonzero(seconds(values) > limit)) if limit else 0 for values, limit in pairs)
    return first, second


def _ttft_is_nearer(summary: Summary) -> bool:
    of = summary.slo
    ttft, tpot = (
        (summary.ttft_s.p99 or 0.0) / (of.ttft_s or np.inf),
        (summary.tpot_s.p99 or 0.0) / (of.tpot_s or np.inf),
    )
    return ttft >= tpot


def _of_both(
    causes: _Causes, found: Found | None, before: dict[str, float], after: dict[str, float]
) -> dict[str, Found]:
    """Limits of TTFT and of TPOT, that of the run first, where both are missed for different reasons; else nothing."""
    if not (before and after and {"ttft", "tpot"} <= _missed(causes.summary, causes.tally)):
        return {}
    each_limit = {name: causes.limit(name.lower(), shares) for name, shares in (("TTFT", before), ("TPOT", after))}
    limits = {name: limit for name, limit in each_limit.items() if limit is not None}
    if found not in limits.values() or len({(each.limit, each.where) for each in limits.values()}) == 1:
        return {}
    return dict(sorted(limits.items(), key=lambda item: item[1] != found))


def _missed(summary: Summary, tally: RequestTally) -> set[str]:
    """Latencies with a target that is missed, or that more requests miss than a share of all may."""
    missed = {target.latency for target in summary.slo.targets if not target.is_met}
    share = next((target for target in summary.slo.targets if not (target.latency or target.is_met)), None)
    if share is not None:
        allowed = (1 - (share.limit or 0.0)) * len(tally)
        missed |= {
            name for name, late in zip(("ttft", "tpot"), _late_counts(summary, tally), strict=True) if late > allowed
        }
    return missed - {""}


def _refusals(summary: Summary) -> Found:
    first = summary.not_served[0]
    advice = "longer contexts or more KV blocks (engine.max_model_len, engine.num_kv_blocks)"
    if first.status == "failed":
        advice = "recovery (recovery.requests: recompute), or spare instances"
    return Found(Limit.REFUSALS, "", f"{first.reason} ({first.requests} {first.status})", advice)


def _sentence(
    causes: _Causes, outcome: str, limits: Mapping[str, Found], trend: WaitingTrend | None, meanwhile: str
) -> str:
    """The verdict in words; ``limits`` by the latency that they limit, without a name where there is one."""
    summary, tally = causes.summary, causes.tally
    nexts = [f"Next{f' for {latency}' if latency else ''}: {found.advice}." for latency, found in limits.items()]
    lost = summary.requests - summary.completed
    parts = []
    if lost:
        first = summary.not_served[0]
        parts.append(f"{lost} of {summary.requests} requests were not served ({first.status}: {first.reason})")
    if outcome == "nothing served":
        return " ".join([f"Nothing was served: {parts[0]}.", *nexts])
    if trend is not None and trend.is_overload:
        parts.append(
            f"overloaded: waiting grows by {trend.growth:.2f} s per second to the last arrival, by when "
            f"{percent(tally.share_begun)} of the requests have their first token"
        )
    parts.append(_targets(causes))
    if outcome == "meets" and (idle := _idle(summary)):
        parts.append(idle)
    else:
        verb = "would be limited next by" if outcome == "meets" else "limited by"
        for latency, found in limits.items():
            where = f" ({found.where})" if found.where and found.limit is not Limit.LINK else ""
            parts.append(f"{f'{latency} ' if latency else ''}{verb} {found.limit}{where}: {found.reason}")
    parts.append(meanwhile)
    text = "; ".join(part for part in parts if part)
    return " ".join([f"{text[0].upper()}{text[1:]}.", *(nexts if outcome != "meets" else ())])


def _targets(causes: _Causes) -> str:
    """Whether the objectives are met and by how much: those that are missed, or else the tightest."""
    targets, unjudged = causes.summary.slo.targets, _not_judged(causes)
    missed = [target for target in targets if not target.is_met]
    if missed:
        text = f"misses the SLO: {', '.join(_target(target) for target in missed)}"
    else:
        of = "SLO's percentile targets" if unjudged else "SLO"
        text = f"meets the {of}: {', '.join(_target(target) for target in targets)}"
    return f"{text}; {unjudged}" if unjudged else text


def _not_judged(causes: _Causes) -> str:
    """Limits of each request that percentiles stand in for without having them, and that fewer meet than are wanted.

    Where classes have limits of their own, nothing is said.
    """
    slo = causes.slo
    if not slo.targets or slo.classes:
        return ""
    texts = []
    for name, limit_s in (("ttft", slo.ttft_s), ("tpot", slo.tpot_s), ("e2e", slo.e2e_s)):
        if limit_s is None or limit_s in (getattr(slo, name) or {}).values():
            continue
        share = 1 - float(np.mean(causes.tally.latency_s(name) > limit_s))
        if share < slo.attainment:
            texts.append(f"{share_text(share, slo.attainment)} of the requests meet {name}_s ({time_text(limit_s)})")
    why = "which is not judged because slo has percentile targets"
    return f"only {' and '.join(texts)}, {why}" if texts else ""


def _target(target: TargetSummary) -> str:
    if not target.latency:
        limit = target.limit or 0.0
        return f"{share_text(target.found, limit)} of the requests within their limits, wanted {share_text(limit)}"
    if not target.requests:
        return f"{target.name} of no request, limit {time_text(target.limit)}"
    if target.found is None:
        return f"{target.name} without end, limit {time_text(target.limit)}"
    margin = target.margin or 0.0
    gap = f"{_small(margin)} to spare" if margin >= 0 else _excess(-margin)
    return f"{target.name} {time_text(target.found)}, limit {time_text(target.limit)} ({gap})"


def _excess(share: float) -> str:
    """How far beyond its limit a latency is."""
    return f"{1 + share:.1f} times" if share >= 0.5 else f"{_small(share)} over"


def _small(share: float) -> str:
    """A part of a limit, which is none only where it is."""
    if share == 0 or share >= 5e-4:
        return percent(share)
    return f"{100 * share:.2f} %" if share >= 5e-5 else "less than 0.01 %"


def _idle(summary: Summary) -> str:
    """Names pools whose iterations have little in them; empty where those of some pool are full.

    They are idle where they are without an iteration most of the time as well. Otherwise time is short, and work is
    not: more of it would come into the same iterations.
    """
    if any(_taken(pool) >= IDLE for pool in summary.pools):
        return ""
    is_idle = all(_busy(pool) < NEAR_ROOF for pool in summary.pools)
    shares = ", ".join(
        f"{pool.name} {'' if is_idle else f'is busy {percent(_busy(pool))} of the time under load, '}"
        f"holds {percent(pool.batch_use)} of its batch slots and computes {percent(_computing(pool))} of its FLOPs"
        for pool in summary.pools
    )
    return f"{'nearly idle' if is_idle else 'iterations are far from full'}: {shares}"


def _busy(pool: PoolSummary) -> float:
    """Share of the time under load in which iterations run, of the whole run where all requests came at once."""
    return (pool.busy_share if pool.busy_under_load is None else pool.busy_under_load) or 0.0


def _computing(pool: PoolSummary) -> float:
    """FLOPs over what the peak rate does in the whole run."""
    return (pool.mfu or 0.0) * (pool.busy_share or 0.0)


def _taken(pool: PoolSummary) -> float:
    """The largest share of what a pool has that its work takes; to be busy is none."""
    return max(pool.batch_use or 0.0, pool.kv_use_mean or 0.0, _computing(pool))
