"""Where the time of each request goes: parts that add up to its end-to-end latency, to the picosecond.

The core counts, for every request, what the iterations took that it was in: from the one that first schedules it to the
one that ends its prompt, and from the one in which it joins the batch of its decode instance to its end, without those
between a preemption and its return. Where iterations of an instance overlap (pipeline stages), all that end in the span
of a request count, cut to its length, compute first.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vidur_pd.metrics.requests import NEVER, RequestTable, Times
from vidur_pd.workload.request import RequestStatus

PARTS: Final = (
    "frontend",  # from the client to the engines, and from the last sampled token back; where one is simulated
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
WAITING: Final = [PARTS.index(name) for name in ("queue", "kv_wait", "stall")]
"""Places of the parts in which nothing is done for the request."""


def attribute(table: RequestTable) -> Times:
    """[completed requests, ``PARTS``] picoseconds; each row adds up to the end-to-end latency of its request.

    Without a transfer KV is sent and received when it is prefilled; what was sent earlier counts from there on.
    """
    done = table.has(RequestStatus.COMPLETED)
    entered, sampled = (getattr(table, name)[done] for name in ("entered_ps", "sampled_ps"))
    entered = np.where(entered == NEVER, table.arrived_ps[done], entered)
    completed = np.where(sampled == NEVER, table.completed_ps[done], sampled)
    prefilled = table.prefill_completed_ps[done]
    received = np.maximum(table.kv_arrived_ps[done], prefilled)
    sent = np.minimum(np.maximum(table.kv_sent_ps[done], prefilled), received)
    parts = np.zeros((int(np.count_nonzero(done)), len(PARTS)), dtype=np.int64)
    parts[:, 0] = entered - table.arrived_ps[done] + table.completed_ps[done] - completed
    parts[:, 1] = table.scheduled_ps[done] - entered
    prefill = (table.prefill_compute_ps[done], table.prefill_communication_ps[done])
    parts[:, 2:4] = _within(prefilled - table.scheduled_ps[done], *prefill)
    parts[:, 4] = sent - prefilled
    parts[:, 5] = received - sent
    decode = (table.decode_compute_ps[done], table.decode_communication_ps[done])
    parts[:, 6:8] = _within(completed - received, *decode)
    parts[:, 8] = table.e2e_ps[done] - parts.sum(axis=1)
    return parts


def _within(span_ps: Times, compute_ps: Times, communication_ps: Times) -> Times:
    """[requests, (compute, communication)] together at most the span, compute first."""
    compute_ps = np.minimum(compute_ps, span_ps)
    return np.stack((compute_ps, np.minimum(communication_ps, span_ps - compute_ps)), axis=1)
