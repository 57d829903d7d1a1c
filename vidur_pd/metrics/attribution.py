"""Where the time of each request goes: parts that add up to its end-to-end latency, to the picosecond.

A request is in every iteration of its prefill instance from the one that first schedules it to the one that ends its
prompt (vLLM schedules running requests first), and in the last iterations of its decode instance up to its end, one for
each token that it gets there. Ignored: a request that is preempted is in iterations further back as well, and one whose
drafts are accepted in fewer; the time between is then ``stall_ps``, or counted as decode. Where iterations of an
instance overlap (pipeline stages), all of them in the span of a request count, cut to its length, compute first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.metrics.request_rows import Journey
from vidur_pd.request import RequestStatus


@dataclass(frozen=True, slots=True)
class Attribution:
    """Parts of the end-to-end latency of one completed request, in their order."""

    queue_ps: int
    """Arrival to the start of the first iteration."""
    prefill_compute_ps: int
    prefill_communication_ps: int
    """Collectives that compute does not hide."""
    kv_wait_ps: int
    """End of prefill to the first KV byte: room on the decode side, set-up."""
    kv_transfer_ps: int
    """KV on its way after the end of prefill: what prefill did not hide."""
    decode_compute_ps: int
    decode_communication_ps: int
    stall_ps: int
    """The rest: waiting for the step in progress or a place in the batch, pipeline bubbles, preemption."""

    @property
    def total_ps(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


class _Timeline:
    """Iterations of one instance in the order of their ends, with running sums."""

    def __init__(self, starts: list[NDArray[np.int64]], columns: list[tuple[NDArray[np.int64], ...]]) -> None:
        ends, compute, communication = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(ends, kind="stable")
        self.starts_ps = np.concatenate(starts)[order]
        self.ends_ps = ends[order]
        self._compute_ps = np.concatenate(([0], np.cumsum(compute[order])))
        self._communication_ps = np.concatenate(([0], np.cumsum(communication[order])))
        self._overlap = bool((self.starts_ps[1:] < self.ends_ps[:-1]).any())

    def between(self, start_ps: int, end_ps: int) -> tuple[int, int]:
        """(compute, communication) of iterations that lie in a span; at most its length."""
        first = int(np.searchsorted(self.ends_ps, start_ps, side="right"))
        while first < len(self.ends_ps) and self.starts_ps[first] < start_ps:
            first += 1
        last = max(first, int(np.searchsorted(self.ends_ps, end_ps, side="right")))
        length_ps = end_ps - start_ps
        compute_ps = min(int(self._compute_ps[last] - self._compute_ps[first]), length_ps)
        communication_ps = int(self._communication_ps[last] - self._communication_ps[first])
        return compute_ps, min(communication_ps, length_ps - compute_ps)

    def start_of_last(self, iterations: int, end_ps: int) -> int:
        """Start of the first of so many iterations up to the one that ends at ``end_ps``; 0 where they overlap."""
        last = int(np.searchsorted(self.ends_ps, end_ps, side="right"))
        return 0 if self._overlap else int(self.starts_ps[max(0, last - iterations)])


def attribute(journeys: Sequence[Journey], log: IterationLog) -> list[Attribution | None]:
    """[requests] the parts of each completed request; ``None`` for others."""
    timelines = _timelines(log)
    return [
        _attribute(journey, timelines) if journey.request.status is RequestStatus.COMPLETED else None
        for journey in journeys
    ]


def mean_parts(attributions: Sequence[Attribution | None]) -> dict[str, float]:
    """Mean seconds of every part over completed requests; empty where there are none."""
    found = [attribution for attribution in attributions if attribution is not None]
    names = [part.name for part in fields(Attribution)]
    sums = {name: sum(getattr(attribution, name) for attribution in found) for name in names}
    return {name.removesuffix("_ps"): to_seconds(total) / len(found) for name, total in sums.items()} if found else {}


def _timelines(log: IterationLog) -> dict[str, _Timeline]:
    starts: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    columns: dict[str, list[tuple[NDArray[np.int64], ...]]] = defaultdict(list)
    for run in log.runs:
        name = log.instances[run.instance][0]
        starts[name].append(np.concatenate(([run.start_ps], run.ends_ps[:-1])).astype(np.int64))
        columns[name].append((run.ends_ps, run.compute_ps, run.communication_ps))
    return {name: _Timeline(starts[name], columns[name]) for name in columns}


def _attribute(journey: Journey, timelines: dict[str, _Timeline]) -> Attribution:
    request: Any = journey.request
    arrived_ps, prefilled_ps, completed_ps = request.arrived_ps, request.prefill_completed_ps, request.completed_ps
    entry = journey.prefill_instance or journey.decode_instance
    prefill_ps = timelines[entry].between(request.scheduled_ps, prefilled_ps)
    kv_wait_ps = kv_transfer_ps = 0
    if request.kv_arrived_ps is not None:
        kv_wait_ps = max(0, min(request.kv_sent_ps, request.kv_arrived_ps) - prefilled_ps)
        kv_transfer_ps = max(0, request.kv_arrived_ps - prefilled_ps) - kv_wait_ps
    decode_ps = (0, 0)
    decode_tokens = request.output_tokens - int(request.first_token_ps <= prefilled_ps or _was_sent(request))
    if decode_tokens and completed_ps > prefilled_ps:
        timeline = timelines[journey.decode_instance or entry]
        ready_ps = max(prefilled_ps, request.kv_arrived_ps or 0)
        begin_ps = max(timeline.start_of_last(decode_tokens, completed_ps), ready_ps)
        decode_ps = timeline.between(begin_ps, completed_ps)
    known = (request.scheduled_ps - arrived_ps, *prefill_ps, kv_wait_ps, kv_transfer_ps, *decode_ps)
    return Attribution(*known, completed_ps - arrived_ps - sum(known))


def _was_sent(request: Any) -> bool:
    """Whether the first token came with the KV, so that no iteration of the decode instance sampled it."""
    return bool(request.kv_arrived_ps is not None and request.first_token_ps == request.kv_arrived_ps)
