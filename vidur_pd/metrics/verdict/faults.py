"""Faults behind late requests: those that were in force while most of these waited, and hardly any other did.

Time is all that a verdict has to go by: which requests were under way while something was down or slow. Requests that
were not serve for comparison, so that a fault that lasts for the whole run is mentioned next to the limit and not taken
for it, unless it leaves a pool without any instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config import SloConfig
from vidur_pd.metrics.requests import seconds
from vidur_pd.metrics.summary import FaultEvent, Summary
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.metrics.verdict.limits import NEAR_ROOF, Found, Limit, more_instances, percent

MORE_OFTEN: Final = 2
"""Requests under way during a fault are late so many times as often as others, where it makes them late. Our choice."""
ENOUGH_OTHERS: Final = 0.1
"""Share of the requests that have to be others for that comparison. Our choice."""
WORTH_MENTION: Final = 0.1
"""Share of the late requests that a fault has to affect to be mentioned. Our choice."""
FEW: Final = 0.25
"""Part of the late requests of the fault with most of them, below which another is not named. Our choice."""
NAMED: Final = 3
"""Faults that a sentence names."""
WHILE: Final = "while"
AND_AFTER: Final = "while or shortly after"
IN_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "instance": ("", "down"),
    "gpu": ("", "down"),
    "drain": ("", "drained"),
    "straggler": ("", "slow"),
    "slow_gpu": ("", "slow"),
    "nic": ("NIC", "down"),
    "link": ("link", "down"),
    "link_flap": ("link", "flapping"),
    "slow_link": ("link", "slow"),
    "pfc_storm": ("link", "in a PFC storm"),
}
"""What the target of a fault is, where its name does not say so, and what it was."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Completed requests in the system: to the first token for TTFT, to the last for TPOT and E2E."""

    latency: str
    arrived_s: NDArray[np.float64]
    until_s: NDArray[np.float64]
    is_late: Mask

    def during(self, at_s: float, until_s: float) -> Mask:
        """[completed requests]"""
        return np.asarray((self.arrived_s < until_s) & (self.until_s > at_s))


def under_way(tally: RequestTally, slo: SloConfig, latency: str) -> UnderWay:
    """``latency``: ``ttft``, ``tpot`` or ``e2e``; late is what is beyond the limit of each request."""
    arrived_s = seconds(tally.arrived_ps[tally.is_completed])
    first_s, last_s = arrived_s + seconds(tally.ttft_ps), arrived_s + seconds(tally.e2e_ps)
    found_ps, until_s, limit_s = {
        "ttft": (tally.ttft_ps, first_s, slo.ttft_s),
        "tpot": (tally.tpot_ps, last_s, slo.tpot_s),
        "e2e": (tally.e2e_ps, last_s, slo.e2e_s),
    }[latency]
    return UnderWay(latency, arrived_s, until_s, seconds(found_ps) > (np.inf if limit_s is None else limit_s))


def behind_faults(summary: Summary, requests: UnderWay, others: Sequence[UnderWay] = ()) -> Found | None:
    """The limit, where requests are late for faults.

    ``others``: the same requests by other latencies. A fault that is the limit of one of them is that of this one too,
    if half of what is late by this one comes with it or with the backlog that it leaves, and little was before it.
    """
    if summary.faults is None:
        return None
    if found := _culprits(summary, requests):
        return _found(summary, requests, *found)
    for other in others:
        if found := _culprits(summary, other):
            spans = {event: requests.during(event.at_s, _backlog_end_s(event)) for event in found[0]}
            masks = {event: span for event, span in spans.items() if _begins_with(requests, event, span)}
            if _are_most(requests, masks):
                return _found(summary, requests, masks, AND_AFTER)
    return None


def _culprits(summary: Summary, requests: UnderWay) -> tuple[dict[FaultEvent, Mask], str] | None:
    """Faults that make most of the late requests late, with the requests that each affects, and when that is: while
    they last, or else in the backlog too."""
    assert summary.faults is not None
    for when in (WHILE, AND_AFTER):
        masks = {}
        for event in _distinct(summary.faults.events):
            affected = requests.during(event.at_s, event.end_s if when == WHILE else _backlog_end_s(event))
            if _makes_late(requests, affected) or _is_outage(summary, event):
                masks[event] = affected
        if _are_most(requests, masks):
            return masks, when
    return None


def _backlog_end_s(event: FaultEvent) -> float:
    """The backlog of a fault is taken to be served as long after it as it has lasted."""
    return event.end_s + (event.end_s - event.at_s)


def _are_most(requests: UnderWay, masks: Mapping[FaultEvent, Mask]) -> bool:
    """Half of the late requests are among those that faults affect."""
    return bool(requests.is_late.any()) and _share_of_late(requests, masks) >= NEAR_ROOF


def _share_of_late(requests: UnderWay, masks: Mapping[FaultEvent, Mask]) -> float:
    affected = np.any(list(masks.values()), axis=0) if masks else np.zeros_like(requests.is_late)
    return float(affected[requests.is_late].mean())


def faults_meanwhile(summary: Summary, requests: UnderWay) -> str:
    """Faults while late requests were in the system, in words, where they are not the limit; empty without."""
    if summary.faults is None or not requests.is_late.any():
        return ""
    masks = {event: requests.during(event.at_s, event.end_s) for event in _distinct(summary.faults.events)}
    if _share_of_late(requests, masks) < WORTH_MENTION:
        return ""
    events = _in_words(_most_affected(requests, masks))
    return f"faults meanwhile: {events} ({_of_late(requests, masks)} were in the system then)"


def _makes_late(requests: UnderWay, affected: Mask) -> bool:
    """Requests that it affects are late much more often than all others, and there are others."""
    others = ~affected
    if not affected.any() or np.count_nonzero(others) < ENOUGH_OTHERS * len(others):
        return False
    return float(requests.is_late[affected].mean()) >= MORE_OFTEN * float(requests.is_late[others].mean())


def _begins_with(requests: UnderWay, event: FaultEvent, affected: Mask) -> bool:
    """Requests that it affects are late much more often than those that were served before it."""
    before = requests.until_s <= event.at_s
    if not affected.any() or not before.any():
        return False
    return float(requests.is_late[affected].mean()) >= MORE_OFTEN * float(requests.is_late[before].mean())


def _is_outage(summary: Summary, event: FaultEvent) -> bool:
    """It is one of those that together take all instances of a pool."""
    assert summary.faults is not None
    name = _pool_name(event)
    count = next((pool.instances for pool in summary.pools if pool.name == name), 0)
    down = [each for each in summary.faults.events if each.kind == "instance" and _pool_name(each) == name]
    instants = [each.at_s for each in down if event.at_s <= each.at_s < event.end_s] + [event.at_s]
    return event.kind == "instance" and any(
        len({each.target for each in down if each.at_s <= instant < each.end_s}) == count for instant in instants
    )


def _pool_name(event: FaultEvent) -> str:
    """The pool of an instance; empty for GPUs and cables."""
    return event.target.rpartition("-")[0] if event.kind in ("instance", "drain", "straggler") else ""


def _distinct(events: Iterable[FaultEvent]) -> list[FaultEvent]:
    """Events by their beginning; the times that a cable flaps are one."""
    flaps: dict[str, FaultEvent] = {}
    others = []
    for event in events:
        if event.kind != "link_flap":
            others.append(event)
        elif event.target not in flaps:
            flaps[event.target] = event
        else:
            first = flaps[event.target]
            flaps[event.target] = FaultEvent(
                kind=first.kind, target=first.target, at_s=first.at_s, until_s=event.until_s
            )
    return sorted([*others, *flaps.values()], key=lambda event: event.at_s)


def _found(summary: Summary, requests: UnderWay, masks: Mapping[FaultEvent, Mask], when: str) -> Found:
    events = _most_affected(requests, masks)
    names = {_pool_name(event) for event in events}
    pool = next((pool for pool in summary.pools if names == {pool.name}), None)
    reason = f"{_of_late(requests, masks)} were in the system {when} {_in_words(events)}"
    spare = "spare capacity" if pool is None else f"spare capacity: {more_instances(summary, pool)}"
    advice = f"{spare}; a run with faults: [] shows what limits without them"
    return Found(Limit.FAULTS, "" if pool is None else pool.name, reason, advice)


def _most_affected(requests: UnderWay, masks: Mapping[FaultEvent, Mask]) -> list[FaultEvent]:
    """Faults that affect most late requests, without those that affect few of them."""
    counts = {event: int(np.count_nonzero(mask & requests.is_late)) for event, mask in masks.items()}
    least = FEW * max(counts.values())
    return [event for event in sorted(counts, key=lambda event: -counts[event]) if counts[event] >= least]


def _of_late(requests: UnderWay, masks: Mapping[FaultEvent, Mask]) -> str:
    share = percent(_share_of_late(requests, masks))
    return f"{share} of the requests beyond the {requests.latency.upper()} limit"


def _in_words(events: Sequence[FaultEvent]) -> str:
    """Faults, those of one kind and time together: ``the NICs of gpu2 and gpu3 were down from 2 s to 12 s``."""
    groups = [
        _group(list(each)) for _, each in groupby(events, key=lambda event: (event.kind, event.at_s, event.until_s))
    ]
    more = [f"{len(groups) - NAMED} more"] if len(groups) > NAMED else []
    return _listed([*groups[:NAMED], *more])


def _group(events: Sequence[FaultEvent]) -> str:
    what, state = IN_WORDS.get(events[0].kind, ("", events[0].kind))
    more = [f"{len(events) - NAMED} more"] if len(events) > NAMED else []
    who = _listed([*(event.target for event in events[:NAMED]), *more])
    is_one = len(events) == 1
    if what:
        who = f"the {what}{'' if is_one else 's'} {'of ' if what == 'NIC' else ''}{who}"
    until = "to the end" if events[0].until_s is None else f"to {events[0].until_s:.4g} s"
    return f"{who} {'was' if is_one else 'were'} {state} from {events[0].at_s:.4g} s {until}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
