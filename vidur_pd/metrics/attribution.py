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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.request_rows import Journey
from vidur_pd.request import Request, RequestStatus

PARTS: Final = (
    "queue",  # arrival to the start of the first iteration
    "prefill_compute",
    "prefill_communication",  # collectives that compute does not hide
    "kv_wait",  # end of prefill to the first KV byte: room on the decode side, set-up
    "kv_transfer",  # KV on its way after the end of prefill: what prefill did not hide
    "decode_compute",
    "decode_communication",
    "stall",  # the rest: the step in progress, a place in the batch, pipeline bubbles, preemption
)
"""Parts of the end-to-end latency of a request, in their order."""

Times = NDArray[np.int64]


class _Timeline:
    """Iterations of one instance in the order of their ends, with running sums."""

    def __init__(self, columns: list[tuple[Times, Times, Times, Times]]) -> None:
        starts, ends, compute, communication = (np.concatenate(column) for column in zip(*columns, strict=True))
        order = np.argsort(ends, kind="stable")
        self._starts_ps, self._ends_ps = starts[order], ends[order]
        self._sums_ps = np.zeros((2, len(order) + 1), dtype=np.int64)
        np.cumsum(compute[order], out=self._sums_ps[0, 1:])
        np.cumsum(communication[order], out=self._sums_ps[1, 1:])
        self._overlap = bool((self._starts_ps[1:] < self._ends_ps[:-1]).any())

    def between(self, start_ps: Times, end_ps: Times) -> Times:
        """[spans, (compute, communication)] of the iterations that lie in each span; together at most its length."""
        first = np.searchsorted(self._starts_ps, start_ps, side="left")
        last = np.maximum(first, np.searchsorted(self._ends_ps, end_ps, side="right"))
        compute, communication = self._sums_ps[:, last] - self._sums_ps[:, first]
        compute = np.minimum(compute, end_ps - start_ps)
        return np.stack((compute, np.minimum(communication, end_ps - start_ps - compute)), axis=1)

    def start_of_last(self, iterations: Times, end_ps: Times) -> Times:
        """[spans] start of the first of so many iterations up to the one that ends then; 0 where iterations overlap."""
        if self._overlap:
            return np.zeros_like(end_ps)
        last = np.searchsorted(self._ends_ps, end_ps, side="right")
        starts_ps: Times = self._starts_ps[np.clip(last - iterations, 0, len(self._starts_ps) - 1)]
        return starts_ps


def attribute(journeys: Sequence[Journey], log: IterationLog) -> Times:
    """[completed requests, ``PARTS``] picoseconds; each row adds up to the end-to-end latency of its request."""
    done = [journey for journey in journeys if journey.request.status is RequestStatus.COMPLETED]
    parts = np.zeros((len(done), len(PARTS)), dtype=np.int64)
    if not done:
        return parts
    stamps = np.array([_stamps(journey.request) for journey in done], dtype=np.int64)
    arrived, scheduled, prefilled, sent, received, completed, decode_steps = stamps.T
    parts[:, 0] = scheduled - arrived
    parts[:, 3] = sent - prefilled
    parts[:, 4] = received - sent
    timelines = _timelines(log)
    entry = np.array([journey.prefill_instance or journey.decode_instance for journey in done])
    decode = np.array([journey.decode_instance or journey.prefill_instance for journey in done])
    for name, timeline in timelines.items():
        rows = np.flatnonzero(entry == name)
        parts[rows, 1:3] = timeline.between(scheduled[rows], prefilled[rows])
        rows = np.flatnonzero((decode == name) & (decode_steps > 0))
        begin = np.maximum(timeline.start_of_last(decode_steps[rows], completed[rows]), received[rows])
        parts[rows, 5:7] = timeline.between(begin, completed[rows])
    parts[:, 7] = completed - arrived - parts.sum(axis=1)
    return parts


def mean_parts(parts: Times) -> dict[str, float]:
    """Mean seconds of every part over completed requests; empty where there are none."""
    return dict(zip(PARTS, (parts.mean(axis=0) / PS_PER_S).tolist(), strict=True)) if len(parts) else {}


def _timelines(log: IterationLog) -> dict[str, _Timeline]:
    columns: dict[str, list[tuple[Times, Times, Times, Times]]] = defaultdict(list)
    for run in log.runs:
        starts = np.concatenate(([run.start_ps], run.ends_ps[:-1])).astype(np.int64)
        columns[log.instances[run.instance][0]].append((starts, run.ends_ps, run.compute_ps, run.communication_ps))
    return {name: _Timeline(of_instance) for name, of_instance in columns.items()}


def _stamps(request: Request) -> tuple[int, ...]:
    """(arrived, scheduled, prefilled, KV sent, KV received, completed, decode steps); stamps are in this order.

    Without a transfer KV is sent and received when it is prefilled; what was sent earlier counts from there on.
    """
    assert request.scheduled_ps is not None
    assert request.prefill_completed_ps is not None
    assert request.completed_ps is not None
    prefilled_ps, received_ps = request.prefill_completed_ps, request.kv_arrived_ps
    came_with_kv = received_ps is not None and request.first_token_ps == received_ps
    steps = request.output_tokens - int(came_with_kv or (request.first_token_ps or 0) <= prefilled_ps)
    received_ps = max(received_ps or 0, prefilled_ps)
    sent_ps = min(max(request.kv_sent_ps or 0, prefilled_ps), received_ps)
    return request.arrived_ps, request.scheduled_ps, prefilled_ps, sent_ps, received_ps, request.completed_ps, steps
