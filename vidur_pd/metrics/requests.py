"""What became of requests, as columns and as records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.workload import Workload
from vidur_pd.workload.request import STATUSES, RequestStatus

NEVER = -1
"""In a column of times, bytes or instances: does not apply (``core/request_log.hpp``)."""

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request; times are picoseconds, ``None`` where a stage was not reached."""

    index: int
    request_id: str
    arrived_ps: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    resident_tokens: int
    """Prompt tokens that the decode instance had when it reserved blocks."""
    context_tokens: int
    """What its last prefill had to compute: the prompt, and tokens kept from before a restart."""
    generated_tokens: int
    preemptions: int
    restarts: int
    """How often it began again after a fault."""
    status: RequestStatus
    status_reason: str | None
    prefill_instance: str
    decode_instance: str
    kv_bytes: int | None
    """Bytes that crossed between instances."""
    scheduled_ps: int | None
    prefill_completed_ps: int | None
    kv_sent_ps: int | None
    kv_arrived_ps: int | None
    first_token_ps: int | None
    last_token_ps: int | None
    completed_ps: int | None


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable:
    """Columns over requests that have ended; ``NEVER`` where a stage was not reached."""

    request_id: NDArray[np.object_]
    arrived_ps: Times
    prompt_tokens: Times
    output_tokens: Times
    status: Times
    """Positions in ``STATUSES``."""
    reasons: dict[int, str]
    """Why a request was rejected or failed, by its index."""
    index: Times
    cached_tokens: Times
    resident_tokens: Times
    """Prompt tokens that the decode instance had when it reserved blocks."""
    context_tokens: Times
    """What the last prefill had to compute: the prompt, and tokens kept from before a restart."""
    generated_tokens: Times
    preemptions: Times
    restarts: Times
    """How often it began again after a fault."""
    prefill_instance: Times
    """Positions in ``instances``."""
    decode_instance: Times
    kv_bytes: Times
    scheduled_ps: Times
    prefill_completed_ps: Times
    kv_sent_ps: Times
    kv_arrived_ps: Times
    first_token_ps: Times
    last_token_ps: Times
    completed_ps: Times
    prefill_compute_ps: Times
    """Of the iterations that it was in up to the end of its prompt; the others likewise."""
    prefill_communication_ps: Times
    decode_compute_ps: Times
    decode_communication_ps: Times
    instances: tuple[str, ...]

    @classmethod
    def of(cls, workload: Workload, taken: dict[str, Any], instances: tuple[str, ...]) -> RequestTable:
        """From what the core's request log hands over, in the order in which the requests have ended."""
        columns = {name: column for name, column in taken.items() if name != "reasons"}
        index = columns["index"]
        return cls(
            request_id=np.array([workload.request_ids[number] for number in index.tolist()], dtype=object),
            arrived_ps=workload.arrived_ps[index],
            prompt_tokens=workload.prefill_tokens[index],
            output_tokens=workload.decode_tokens[index],
            reasons=dict(taken["reasons"]),
            instances=instances,
            **columns,
        )

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, which: slice | NDArray[np.int64]) -> RequestTable:
        """Some of the requests."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, column in columns.items():
            if isinstance(column, np.ndarray):
                columns[name] = column[which]
        return RequestTable(**columns)

    def in_workload_order(self) -> RequestTable:
        return self.rows(np.argsort(self.index, kind="stable"))

    def names(self, instance: Times) -> NDArray[np.object_]:
        """Names of instances; empty for ``NEVER``."""
        return np.array((*self.instances, ""), dtype=object)[instance]  # NEVER is the last position

    def has(self, status: RequestStatus) -> NDArray[np.bool_]:
        """[requests]"""
        return np.asarray(self.status == STATUSES.index(status))

    @property
    def ttft_ps(self) -> Times:
        """[requests] arrival to the first token; of completed requests."""
        return self.first_token_ps - self.arrived_ps

    @property
    def e2e_ps(self) -> Times:
        """[requests] arrival to the end; of completed requests."""
        return self.completed_ps - self.arrived_ps

    @property
    def tpot_ps(self) -> Times:
        """[requests] rounded to the picosecond; ``NEVER`` for a single token; of completed requests."""
        gaps = self.output_tokens - 1
        some = np.maximum(gaps, 1)
        tpot_ps = (2 * (self.last_token_ps - self.first_token_ps) + some) // (2 * some)
        return np.where(gaps > 0, tpot_ps, NEVER)

    def records(self) -> list[RequestRecord]:
        return list(self._each())

    def _each(self) -> Iterator[RequestRecord]:
        stamps = (
            self.kv_bytes,
            self.scheduled_ps,
            self.prefill_completed_ps,
            self.kv_sent_ps,
            self.kv_arrived_ps,
            self.first_token_ps,
            self.last_token_ps,
            self.completed_ps,
        )
        columns = zip(
            *(of.tolist() for of in (self.index, self.request_id, self.arrived_ps, self.prompt_tokens)),
            *(of.tolist() for of in (self.output_tokens, self.cached_tokens, self.resident_tokens)),
            *(of.tolist() for of in (self.context_tokens, self.generated_tokens, self.preemptions, self.restarts)),
            (STATUSES[status] for status in self.status.tolist()),
            (self.reasons.get(index) for index in self.index.tolist()),
            self.names(self.prefill_instance),
            self.names(self.decode_instance),
            *(_absent(column) for column in stamps),
            strict=True,
        )
        return (RequestRecord(*row) for row in columns)


def seconds(times_ps: Times) -> NDArray[np.float64]:
    return times_ps / PS_PER_S


def _absent(column: Times) -> Iterator[int | None]:
    return (None if value == NEVER else value for value in column.tolist())
