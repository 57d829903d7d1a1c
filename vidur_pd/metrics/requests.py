"""What became of requests, as columns and as records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.request_figures import NEVER, RequestFigures
from vidur_pd.workload.request import STATUSES, RequestStatus
from vidur_pd.workload.source import RequestSource

__all__ = ["NEVER", "RequestRecord", "RequestTable", "Times", "seconds"]

Times = NDArray[np.int64]


@dataclass(slots=True)
class RequestRecord(RequestFigures[int, int | None, int | None, str]):
    """One request; ``None`` where a figure does not apply, an empty name where there is no instance."""

    index: int
    request_id: str
    arrived_ps: int
    prompt_tokens: int
    output_tokens: int
    status: RequestStatus
    status_reason: str | None
    session: int | None
    """``None`` where the workload has no sessions, as ``turn``."""
    turn: int | None
    class_name: str | None
    """``None`` where the workload has no classes."""


@dataclass(slots=True, eq=False)
class RequestTable(RequestFigures[Times, Times, Times, Times]):
    """Columns over requests that have ended; ``NEVER`` where a figure does not apply."""

    index: Times
    """Rows in the workload."""
    request_id: NDArray[np.object_]
    arrived_ps: Times
    prompt_tokens: Times
    output_tokens: Times
    status: Times
    """Positions in ``STATUSES``."""
    reasons: dict[int, str]
    """Why a request was rejected or failed, by its index."""
    instances: tuple[str, ...]
    """Names of instances, by what the columns of instances hold."""
    session: Times | None
    """``None`` where the workload has no sessions, as ``turn``."""
    turn: Times | None
    class_name: NDArray[np.object_] | None
    """``None`` where the workload has no classes."""
    has_priorities: bool
    """Whether the workload says who goes first."""
    has_connector: bool
    """Whether KV is handed over by a connector with costs."""

    @classmethod
    def of(
        cls, source: RequestSource, taken: dict[str, Any], instances: tuple[str, ...], *, has_connector: bool
    ) -> RequestTable:
        """From what the core's request log hands over, in the order in which the requests have ended."""
        index, workload = taken["index"], source.workload
        sessions = workload.sessions
        return cls(
            request_id=np.array([workload.request_ids[number] for number in index.tolist()], dtype=object),
            arrived_ps=source.arrived_ps[index],
            prompt_tokens=workload.prefill_tokens[index],
            output_tokens=workload.decode_tokens[index],
            instances=instances,
            session=None if sessions is None else sessions.session[index],
            turn=None if sessions is None else sessions.turn[index],
            class_name=None if workload.classes is None else workload.classes.name_of[index],
            has_priorities=workload.priority is not None,
            has_connector=has_connector,
            **taken | {"reasons": dict(taken["reasons"])},
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

    def in_order_of_arrival(self) -> RequestTable:
        """Of requests that arrive at once in that of the workload."""
        return self.rows(np.lexsort((self.index, self.arrived_ps)))

    def names(self, instance: Times) -> NDArray[np.object_]:
        """Names of instances; empty for ``NEVER``."""
        return np.array((*self.instances, ""), dtype=object)[instance]  # NEVER is the last position

    def has(self, status: RequestStatus) -> NDArray[np.bool_]:
        """[requests]"""
        return np.asarray(self.status == STATUSES.index(status))

    @property
    def asked_priority(self) -> Times | None:
        """[requests] ``None`` where the workload has no priorities."""
        return self.priority if self.has_priorities else None

    @property
    def has_tiers(self) -> bool:
        """Whether prompts were looked up in tiers of KV."""
        return bool((self.tier_tokens != NEVER).any())

    @property
    def came_through_frontend(self) -> bool:
        """Whether a frontend was simulated."""
        return bool((self.entered_ps != NEVER).any())

    @property
    def is_completed(self) -> NDArray[np.bool_]:
        """[requests]"""
        return self.has(RequestStatus.COMPLETED)

    @property
    def end(self) -> NDArray[np.object_]:
        """[requests] how each has ended, with its reason."""
        texts = np.array([status.value for status in STATUSES], dtype=object)[self.status]
        if self.reasons:
            for row in np.flatnonzero(~self.is_completed).tolist():
                reason = self.reasons.get(int(self.index[row]))
                texts[row] += "" if reason is None else f": {reason}"
        return texts

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
        columns = (self._of_records(field.name) for field in fields(RequestRecord))
        return [RequestRecord(*row) for row in zip(*columns, strict=True)]

    def _of_records(self, name: str) -> Iterable[Any]:
        """[requests] a field of the records."""
        if name == "status":
            return (STATUSES[status] for status in self.status.tolist())
        if name == "status_reason":
            return (self.reasons.get(index) for index in self.index.tolist())
        column: NDArray[Any] | None = getattr(self, name)
        if column is None:
            return [None] * len(self)
        match RequestFigures.__annotations__.get(name):
            case "Place":
                return self.names(column)
            case "Maybe" | "Stage":
                return (None if value == NEVER else value for value in column.tolist())
        values: list[Any] = column.tolist()
        return values


def seconds(times_ps: Times) -> NDArray[np.float64]:
    return times_ps / PS_PER_S
