"""Where the time of each request goes: parts that add up to its end-to-end latency, to the picosecond.

Stamps cut the life of a request into spans. In those in which an instance serves it, the core counts what the
iterations took that it was in: from the one that first schedules it to the one that ends its prompt, and from the one
in which it joins the batch of its decode instance to its end, without those between a preemption and its return. Where
iterations of an instance overlap (pipeline stages), all that end in the span of a request count, cut to its length,
compute first.

The same cut at the first token is where TTFT goes; the rest is where the time between tokens goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from vidur_pd.metrics.columns import TEXT, Column, values_of
from vidur_pd.metrics.requests import NEVER, RequestTable, Times

MEANINGS: Final = {
    "frontend": "from the client to the engines, and from the last sampled token back; where a frontend is simulated",
    "lost": "attempts that a fault has ended",
    "queue": "arrival at the engines to the begin of its first iteration",
    "prefill_compute": "compute of the iterations of its prompt, exposed host time included",
    "prefill_communication": "their collectives, as far as compute does not hide them, and waits for layers from tiers",
    "kv_room": "end of its prompt to the reservation of KV blocks on the decode instance, which looks between two "
    "steps",
    "kv_setup": "from there to the first KV byte: handshake, descriptors, set-up, and what a mode waits for",
    "kv_transfer": "KV on its way after the end of its prompt: what prefill did not hide",
    "decode_queue": "arrival of its KV to its first decode iteration: notice of it, the step in progress, a place",
    "decode_compute": "compute of its decode iterations, exposed host time included",
    "decode_communication": "their collectives, as far as compute does not hide them, and waits for layers of others",
    "preempted": "without KV blocks, after others had taken them",
    "stall": "the rest: tokens that the host hands out late, pipeline bubbles, iterations that it was not in",
}
PARTS: Final = tuple(MEANINGS)
"""Parts of the end-to-end latency of a request, in the order in which most of them happen."""
WAITING: Final = [
    PARTS.index(name) for name in ("queue", "kv_room", "kv_transfer", "decode_queue", "preempted", "stall")
]
"""Places of the parts in which a request waits for others: for an instance, for room, or for links that it shares."""

_PREFILL: Final = ("prefill_compute_ps", "prefill_communication_ps", "prefill_preempted_ps")
_DECODE: Final = ("decode_compute_ps", "decode_communication_ps", "decode_preempted_ps")


def attribute(table: RequestTable, *, until_first_token: bool = False) -> Times:
    """[completed requests, ``PARTS``] picoseconds; each row adds up to the end-to-end latency of its request.

    ``until_first_token``: to its TTFT instead. What an iteration that the first token falls into took of compute and
    communication then counts in proportion.
    Without a transfer KV is sent and received when it is prefilled; what was sent earlier counts from there on.
    """
    done = table.is_completed
    stamps = _stamps(table, done)
    whole = np.diff(stamps, axis=0)
    spans = np.diff(np.minimum(stamps, table.first_token_ps[done]), axis=0) if until_first_token else whole
    to_engines, lost, queue, prefill, room, setup, transfer, decode_queue, decode, back = spans
    of_prefill = _within(prefill, whole[3], [getattr(table, name)[done] for name in _PREFILL])
    of_decode = _within(decode, whole[8], [getattr(table, name)[done] for name in _DECODE])
    columns = {
        "frontend": to_engines + back,
        "lost": lost,
        "queue": queue,
        "prefill_compute": of_prefill[0],
        "prefill_communication": of_prefill[1],
        "kv_room": room,
        "kv_setup": setup,
        "kv_transfer": transfer,
        "decode_queue": decode_queue,
        "decode_compute": of_decode[0],
        "decode_communication": of_decode[1],
        "preempted": of_prefill[2] + of_decode[2],
        "stall": of_prefill[3] + of_decode[3],
    }
    return np.stack([columns[name] for name in PARTS], axis=1)


def _stamps(table: RequestTable, done: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Times:
    """[stamps, completed requests] rising: from the arrival of each request to its last token."""

    def stamp(name: str) -> Times:
        values: Times = getattr(table, name)[done]
        return values

    completed = stamp("completed_ps")
    sampled = np.where(stamp("sampled_ps") == NEVER, completed, stamp("sampled_ps"))
    names = ("again_ps", "scheduled_ps", "prefill_completed_ps", "room_ps", "kv_sent_ps", "kv_arrived_ps", "joined_ps")
    inner = [stamp(name) for name in ("arrived_ps", "entered_ps", *names)]  # one that is missing is that before it
    rising = np.maximum.accumulate(np.stack(inner), axis=0)
    return np.concatenate((np.minimum(rising, sampled), np.stack((sampled, completed))))


def _within(span_ps: Times, whole_ps: Times, counted_ps: list[Times]) -> list[Times]:
    """Compute, communication, preemption and the rest of a span, which add up to it; of a part of the whole span, in
    proportion to those of the whole."""
    parts, left_ps = [], whole_ps
    for each_ps in counted_ps:
        parts.append(np.minimum(each_ps, left_ps))
        left_ps = left_ps - parts[-1]
    parts.append(left_ps)
    is_cut = span_ps < whole_ps
    if not is_cut.any():
        return parts
    share = np.divide(span_ps, whole_ps, out=np.ones(len(whole_ps)), where=whole_ps > 0)
    ends_ps = np.rint(np.cumsum(parts, axis=0) * share).astype(np.int64)  # of ends, so that parts add up to the span
    return [np.where(is_cut, cut, part) for cut, part in zip(np.diff(ends_ps, axis=0, prepend=0), parts, strict=True)]


def _part(place: int) -> Callable[[tuple[RequestTable, Times]], Times]:
    return lambda source: source[1][:, place]


def _figure(name: str) -> Callable[[tuple[RequestTable, Times]], Times]:
    return lambda source: getattr(source[0], name)[source[0].is_completed]


ATTRIBUTION_COLUMNS: Final[tuple[Column[tuple[RequestTable, Times]], ...]] = (
    Column("request_id", TEXT, _figure("request_id"), "name of the request"),
    Column("e2e_ps", "ps", _figure("e2e_ps"), "arrival to last token, the sum of the parts that follow"),
    *(Column(f"{name}_ps", "ps", _part(place), meaning) for place, (name, meaning) in enumerate(MEANINGS.items())),
    Column(
        "prefill_contention_ps",
        "ps",
        _figure("prefill_contention_ps"),
        "of the communication of its prompt, what it took beyond an idle fabric; below 0 where that is priced too long",
    ),
    Column("decode_contention_ps", "ps", _figure("decode_contention_ps"), "the same of its decode iterations"),
)
"""Columns of ``attribution.parquet``, of (requests, parts of the completed ones)."""


def attribution_columns(table: RequestTable) -> dict[str, Any]:
    """[completed requests] columns of ``attribution.parquet`` by name."""
    return values_of(ATTRIBUTION_COLUMNS, (table, attribute(table)))
