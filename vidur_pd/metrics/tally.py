"""What the summary says of requests, counted as they end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config import SloConfig
from vidur_pd.config.objectives import ClassObjectives
from vidur_pd.metrics.attribution import PARTS, WAITING, attribute
from vidur_pd.metrics.quantities import exact_sum, to_seconds
from vidur_pd.metrics.reasons import Outcomes
from vidur_pd.metrics.requests import NEVER, RequestTable, Times, seconds
from vidur_pd.workload.pacing import NOBODY
from vidur_pd.workload.request import STATUSES, RequestStatus
from vidur_pd.workload.source import RequestSource


def objectives_of(slo: SloConfig, name: str) -> ClassObjectives:
    """What requests of a class have to meet."""
    own = (slo.classes or {}).get(name, ClassObjectives())
    return ClassObjectives(
        ttft_s=own.ttft_s or slo.ttft_s, tpot_s=own.tpot_s or slo.tpot_s, e2e_s=own.e2e_s or slo.e2e_s
    )


class RequestTally:
    """Latencies and counts of the requests of a workload, 35 bytes each.

    Requests may come in any order and in any number of tables: sums are exact, and latencies keep the order of arrival,
    so that figures do not depend on it. Requests of the workload that were never sent are not among them.
    """

    def __init__(self, source: RequestSource) -> None:
        self._source, self._workload = source, source.workload
        workload = source.workload
        self._status = np.zeros(len(workload), dtype=np.int8)
        zeros = [np.zeros(len(workload), dtype=np.int64) for _ in range(4)]
        self._ttft_ps, self._tpot_ps, self._e2e_ps, self._waited_ps = zeros
        self._before_first, self._after_first = (np.zeros(len(workload), dtype=np.int8) for _ in range(2))
        self._parts_ps = [0] * len(PARTS)
        self._ttft_parts_ps = [0] * len(PARTS)
        self._has_frontend = False
        self.not_served = Outcomes()
        self.cached_tokens = 0
        """Prompt tokens of completed requests that were not computed."""
        self.preemptions = 0
        self.transfers_ps = 0
        """First byte to last byte, summed over KV transfers."""
        self.posting_ps = 0
        """Time to post descriptors, summed over the same."""
        self.handshakes_ps = 0
        """Wait for the first contact of instances, summed over completed requests."""

    def add(self, table: RequestTable) -> None:
        """Counts requests that have ended."""
        self._status[table.index] = table.status
        self._ttft_ps[table.index] = table.ttft_ps
        self._tpot_ps[table.index] = table.tpot_ps
        self._e2e_ps[table.index] = table.e2e_ps
        self.preemptions += int(table.preemptions.sum())
        self.cached_tokens += int(table.cached_tokens[table.has(RequestStatus.COMPLETED)].sum())
        for row in np.flatnonzero(~table.has(RequestStatus.COMPLETED)).tolist():
            reason = table.reasons.get(int(table.index[row])) or "no reason given"
            self.not_served.add(STATUSES[table.status[row]].value, reason, str(table.request_id[row]))
        self._has_frontend |= table.came_through_frontend
        has_arrived = table.kv_arrived_ps != NEVER
        self.transfers_ps += exact_sum((table.kv_arrived_ps - table.kv_sent_ps)[has_arrived])
        self.posting_ps += exact_sum(np.maximum(table.kv_posting_ps[has_arrived], 0))
        self.handshakes_ps += exact_sum(np.maximum(table.kv_handshake_ps[table.is_completed], 0))
        self._add_parts(table)

    def _add_parts(self, table: RequestTable) -> None:
        """Where the time of completed requests went."""
        parts_ps, to_first_ps = attribute(table), attribute(table, until_first_token=True)
        self._parts_ps = _added(self._parts_ps, parts_ps)
        self._ttft_parts_ps = _added(self._ttft_parts_ps, to_first_ps)
        rows = table.index[table.is_completed]
        self._waited_ps[rows] = parts_ps[:, WAITING].sum(axis=1)
        self._before_first[rows] = to_first_ps.argmax(axis=1)
        self._after_first[rows] = (parts_ps - to_first_ps).argmax(axis=1)

    def __len__(self) -> int:
        return len(self.arrived_ps)

    def count(self, status: RequestStatus) -> int:
        """Requests that have ended so."""
        return int(np.count_nonzero(self._status == STATUSES.index(status)))

    @property
    def is_completed(self) -> NDArray[np.bool_]:
        """[requests]"""
        return np.asarray(self._status[self._source.sent] == STATUSES.index(RequestStatus.COMPLETED))

    def _completed(self, values: Times) -> Times:
        """[completed requests] of [requests of the workload]"""
        return values[self._source.sent][self.is_completed]

    def is_served(self, slo: SloConfig) -> NDArray[np.bool_]:
        """[requests] whether each has completed and met every objective; one of a single token meets that of TPOT."""
        sent = self._source.sent
        in_time = seconds(self._ttft_ps[sent]) <= self._objectives(slo, "ttft_s")
        steady = seconds(np.maximum(self._tpot_ps[sent], 0)) <= self._objectives(slo, "tpot_s")
        soon = seconds(self._e2e_ps[sent]) <= self._objectives(slo, "e2e_s")
        return np.asarray(self.is_completed & in_time & steady & soon)

    def _objectives(self, slo: SloConfig, field: str) -> NDArray[np.float64]:
        """[requests] what each has to meet."""
        common, classes = getattr(slo, field), self._workload.classes
        of_classes = [] if classes is None else [getattr(objectives_of(slo, name), field) for name in classes.names]
        places = np.full(len(self), NOBODY) if classes is None else classes.of[self._source.sent]
        limits = [np.inf if limit is None else limit for limit in (*of_classes, common)]
        return np.array(limits)[places]  # `NOBODY` is the last position

    def latency_s(self, name: str) -> NDArray[np.float64]:
        """[requests] seconds of ``ttft``, ``tpot`` or ``e2e``: infinite if one was not served, NaN for no TPOT."""
        found_ps = {"ttft": self._ttft_ps, "tpot": self._tpot_ps, "e2e": self._e2e_ps}[name][self._source.sent]
        found_s = np.where(found_ps == NEVER, np.nan, seconds(found_ps))
        return np.where(self.is_completed, found_s, np.inf)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Classes of the workload."""
        return () if self._workload.classes is None else self._workload.classes.names

    def is_of_class(self, name: str) -> NDArray[np.bool_]:
        """[requests]"""
        classes = self._workload.classes
        assert classes is not None, "only what has a name is asked for"
        return np.asarray(classes.of[self._source.sent] == classes.names.index(name))

    @property
    def arrived_ps(self) -> Times:
        """[requests]"""
        return self._source.arrived_ps[self._source.sent]

    @property
    def offered_input_tokens(self) -> NDArray[np.int64]:
        """[requests]"""
        return self._workload.prefill_tokens[self._source.sent]

    @property
    def offered_output_tokens(self) -> NDArray[np.int64]:
        """[requests]"""
        return self._workload.decode_tokens[self._source.sent]

    @property
    def ttft_ps(self) -> Times:
        """[completed requests]"""
        return self._completed(self._ttft_ps)

    @property
    def share_begun(self) -> float:
        """Share of the requests that have their first token by the last arrival."""
        first_token_ps = self.arrived_ps[self.is_completed] + self.ttft_ps
        return float(np.count_nonzero(first_token_ps <= self.arrived_ps.max()) / len(self))

    @property
    def tpot_ps(self) -> Times:
        """[completed requests] ``NEVER`` for a single token."""
        return self._completed(self._tpot_ps)

    @property
    def e2e_ps(self) -> Times:
        """[completed requests]"""
        return self._completed(self._e2e_ps)

    @property
    def waited_ps(self) -> Times:
        """[completed requests] in which each waited for others (`attribution.WAITING`)."""
        return self._completed(self._waited_ps)

    def largest_parts(self, *, of_ttft: bool) -> NDArray[np.int8]:
        """[completed requests] place in `PARTS` of the largest part of the TTFT of each, or of the time after it."""
        of = self._before_first if of_ttft else self._after_first
        return of[self._source.sent][self.is_completed]

    @property
    def makespan_ps(self) -> int:
        """First arrival to last completion, or to the last arrival where that is later, as of a refused request."""
        done = self.is_completed
        if not done.any():
            return 0
        arrived_ps = self.arrived_ps
        return int(max((arrived_ps[done] + self.e2e_ps).max(), arrived_ps.max()) - arrived_ps.min())

    @property
    def input_tokens_each(self) -> NDArray[np.int64]:
        """[completed requests]"""
        return self._completed(self._workload.prefill_tokens)

    @property
    def output_tokens_each(self) -> NDArray[np.int64]:
        """[completed requests]"""
        return self._completed(self._workload.decode_tokens)

    @property
    def input_tokens(self) -> int:
        """Of completed requests."""
        return int(self.input_tokens_each.sum())

    @property
    def output_tokens(self) -> int:
        """Of completed requests."""
        return int(self.output_tokens_each.sum())

    def mean_parts_s(self) -> dict[str, float]:
        """Mean seconds of every part of end-to-end latency over completed requests; empty where there are none."""
        return self._means(self._parts_ps)

    def mean_ttft_parts_s(self) -> dict[str, float]:
        """The same of TTFT."""
        return self._means(self._ttft_parts_ps)

    def _means(self, totals_ps: list[int]) -> dict[str, float]:
        completed = self.count(RequestStatus.COMPLETED)
        if not completed:
            return {}
        parts = {name: to_seconds(total) / completed for name, total in zip(PARTS, totals_ps, strict=True)}
        return parts if self._has_frontend else {name: mean for name, mean in parts.items() if name != "frontend"}


def _added(totals_ps: list[int], parts_ps: Times) -> list[int]:
    return [total + exact_sum(part) for total, part in zip(totals_ps, parts_ps.T, strict=True)]
