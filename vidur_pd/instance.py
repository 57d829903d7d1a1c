"""One serving instance: the schedulers of its ranks, and the iterations in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from aicb import Batch
from vidur_pd.cluster import Placement
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.executor import Executor
from vidur_pd.execution.flight import Flight
from vidur_pd.metrics.iterations import COMPUTE_PHASES, IterationLog, IterationRun
from vidur_pd.request import Request
from vidur_pd.scheduling import Outcome, ScheduledBatch, VllmV1Scheduler

LONGEST_RUN = 4096
"""Decode iterations priced in one call; longer runs are cut here to bound memory."""


class Launcher(Protocol):
    """Decides when a flight ends and calls ``Instance.land`` then."""

    def launch(self, flight: Flight) -> None: ...

    def truncate(self, flight: Flight) -> None:
        """Ends a run with the step in progress."""
        ...


class Listener(Protocol):
    """Is told what iterations do to requests."""

    def before_step(self, instance: Instance) -> None:
        """The instance is about to schedule: remote requests may be admitted."""
        ...

    def launched(self, instance: Instance, flight: Flight) -> None: ...

    def landed(self, flight: Flight) -> None: ...

    def prefilled(self, rank: Rank, request: Request) -> None:
        """A prefill-role instance has computed the whole prompt and sampled one token."""
        ...

    def completed(self, request: Request) -> None: ...


class Rank:
    """One data-parallel rank of an instance as routing sees it."""

    __slots__ = ("index", "instance", "scheduler")

    def __init__(self, instance: Instance, index: int, scheduler: VllmV1Scheduler) -> None:
        self.instance = instance
        self.index = index
        self.scheduler = scheduler

    @property
    def pending_requests(self) -> int:
        """vLLM's data-parallel front end: 4 · waiting + running."""
        return 4 * self.scheduler.waiting_requests + self.scheduler.running_requests

    @property
    def pending_tokens(self) -> int:
        return self.scheduler.pending_prefill_tokens


class Instance:
    """Forms micro-batches, hands them to the launcher and applies their results.

    All data-parallel ranks run in lockstep: one flight holds the micro-batches of every rank. With ``pp`` pipeline
    stages up to ``pp`` flights are under way; without, runs of unchanged decode batches are one flight.
    """

    def __init__(
        self,
        index: int,
        placement: Placement,
        schedulers: Sequence[VllmV1Scheduler],
        executor: Executor,
    ) -> None:
        self.index = index
        self.placement = placement
        self.ranks = tuple(Rank(self, rank, scheduler) for rank, scheduler in enumerate(schedulers))
        self.flights: list[Flight] = []
        self.stage_free_ps = [0] * placement.partition.pp
        self._executor = executor
        self._dispatch_at_ps: int | None = None

    def attach(self, queue: EventQueue, launcher: Launcher, listener: Listener, log: IterationLog) -> None:
        """Connects the instance to the simulation it takes part in."""
        self._queue = queue
        self._launcher = launcher
        self._listener = listener
        self._log = log

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def pending_requests(self) -> int:
        return sum(rank.pending_requests for rank in self.ranks)

    @property
    def pending_tokens(self) -> int:
        return sum(rank.pending_tokens for rank in self.ranks)

    def wake(self) -> None:
        """Something new may be scheduled: act at this instant, or as soon as the step in progress ends."""
        if len(self.flights) < len(self.stage_free_ps):
            self._dispatch_later(self._queue.now_ps)
        elif self.flights[0].is_run:
            self._launcher.truncate(self.flights[0])

    def land(self, flight: Flight) -> None:
        """A flight has ended: credits its tokens, records it and schedules the next."""
        self.flights.remove(flight)
        outcomes = self._credit(flight)
        self._record(flight, outcomes)
        self._listener.landed(flight)
        for rank, outcome in zip(self.ranks, outcomes, strict=True):
            if outcome is not None:
                self._stamp(rank, outcome, flight)
        self._dispatch_later(self._queue.now_ps)

    def _dispatch_later(self, at_ps: int) -> None:
        if self._dispatch_at_ps is None or at_ps < self._dispatch_at_ps:
            self._dispatch_at_ps = at_ps
            self._queue.schedule(at_ps, Priority.DISPATCH, self._dispatch)

    def _dispatch(self) -> None:
        now_ps = self._queue.now_ps
        if self._dispatch_at_ps != now_ps:
            return
        self._dispatch_at_ps = None
        if len(self.flights) >= len(self.stage_free_ps):
            return
        if self.stage_free_ps[0] > now_ps:
            self._dispatch_later(self.stage_free_ps[0])
            return
        self._listener.before_step(self)
        flight = self._decode_run() or self._micro_batch()
        if flight is None:
            return
        flight.start_ps = now_ps
        self.flights.append(flight)
        self._launcher.launch(flight)
        self._listener.launched(self, flight)
        if len(self.flights) < len(self.stage_free_ps):
            self._dispatch_later(self.stage_free_ps[0])

    def _decode_run(self) -> Flight | None:
        """A flight of at least two decode iterations in which no rank's batch changes."""
        if len(self.stage_free_ps) > 1:
            return None
        busy = [rank.scheduler for rank in self.ranks if rank.scheduler.has_work]
        steps = min((scheduler.steady_decode_steps() for scheduler in busy), default=0)
        if steps < 2:
            return None
        kv_tokens = [rank.scheduler.decode_kv_tokens() for rank in self.ranks]
        compute_ps = self._executor.decode_compute_ps(kv_tokens, min(steps, LONGEST_RUN))
        return Flight(self, None, self._executor.price([Batch.decode(kv) for kv in kv_tokens]), compute_ps)

    def _micro_batch(self) -> Flight | None:
        scheduled = [rank.scheduler.schedule() for rank in self.ranks]
        if all(batch is None for batch in scheduled):
            return None
        now_ps = self._queue.now_ps
        for batch in scheduled:
            for request in batch.admitted if batch is not None else ():
                if request.scheduled_ps is None:
                    request.scheduled_ps = now_ps
        prices = self._executor.price([_batch(batch) for batch in scheduled])
        compute_ps = np.array([sum(price.cost.compute_ps for price in prices)], dtype=np.int64)
        return Flight(self, scheduled, prices, compute_ps)

    def _credit(self, flight: Flight) -> list[Outcome | None]:
        if flight.batches is None:
            return [
                rank.scheduler.advance_decode(flight.steps) if rank.scheduler.has_work else None for rank in self.ranks
            ]
        return [
            None if batch is None else rank.scheduler.finish(batch)
            for rank, batch in zip(self.ranks, flight.batches, strict=True)
        ]

    def _stamp(self, rank: Rank, outcome: Outcome, flight: Flight) -> None:
        """Token and completion times of the requests of one rank."""
        now_ps, first_end_ps = self._queue.now_ps, int(flight.ends_ps[0])
        for request in outcome.prefill_done:
            if request.prefill_completed_ps is None:
                request.prefill_completed_ps = now_ps
                if self.placement.role == "prefill":
                    self._listener.prefilled(rank, request)
        if self.placement.role == "prefill":
            return
        first_gaps = []
        for request in outcome.produced:
            if request.last_token_ps is not None:
                first_gaps.append(first_end_ps - request.last_token_ps)
            elif request.first_token_ps is None:
                request.first_token_ps = first_end_ps
            request.last_token_ps = now_ps
        if first_gaps:
            gaps, counts = np.unique(np.array(first_gaps, dtype=np.int64), return_counts=True)
            self._log.add_gaps(gaps, counts.astype(np.int64))
        if flight.steps > 1:
            following = np.diff(flight.ends_ps)
            self._log.add_gaps(following, np.full(len(following), len(outcome.produced), dtype=np.int64))
        for request in outcome.finished:
            self._listener.completed(request)

    def _record(self, flight: Flight, outcomes: Sequence[Outcome | None]) -> None:
        prices, schedulers = flight.prices, [rank.scheduler for rank in self.ranks]
        batches = [batch for batch in flight.batches or () if batch is not None]
        produced = sum(len(outcome.produced) for outcome in outcomes if outcome is not None)
        durations_ps = np.diff(flight.ends_ps, prepend=flight.start_ps)
        communication_ps = durations_ps - flight.compute_ps
        if len(self.stage_free_ps) > 1:  # stages overlap with other flights: what was waited for is not communication
            communication_ps = np.full(flight.steps, flight.communication_ps, dtype=np.int64)
        self._log.add(
            IterationRun(
                instance=self.index,
                start_ps=flight.start_ps,
                ends_ps=flight.ends_ps,
                compute_ps=flight.compute_ps,
                communication_ps=communication_ps,
                host_ps=sum(price.cost.host_ps for price in prices),
                phase_ps=tuple(
                    sum(price.cost.phase_ps[position] for price in prices) for position in range(len(COMPUTE_PHASES))
                ),
                estimated_ps=sum(price.cost.estimated_ps for price in prices),
                estimated_operators=tuple(name for price in prices for name in price.cost.estimated_operators),
                requests=produced if flight.is_run else sum(len(batch.requests) for batch in batches),
                prefill_tokens=sum(batch.prefill_tokens for batch in batches),
                decode_tokens=produced if flight.is_run else sum(batch.decode_tokens for batch in batches),
                waiting=sum(scheduler.waiting_requests for scheduler in schedulers),
                running=sum(scheduler.running_requests for scheduler in schedulers),
                kv_blocks_used=sum(scheduler.used_blocks for scheduler in schedulers),
                kv_blocks_total=sum(scheduler.usable_blocks for scheduler in schedulers),
            )
        )


def _batch(scheduled: ScheduledBatch | None) -> Batch:
    if scheduled is None:
        return Batch.empty()
    return Batch(scheduled.new_tokens, scheduled.kv_tokens, scheduled.logit_rows)
