"""One serving instance: the schedulers of its ranks, and the iterations in flight."""

from __future__ import annotations

from collections import Counter
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

    @property
    def carries_runs(self) -> bool:
        """Whether a flight may have more than one step."""
        ...

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

    def failed(self, request: Request, reason: str) -> None:
        """The request ends without its tokens; its instance has nothing of it any more."""
        ...


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

    def release(self, request: Request) -> None:
        """Frees the KV that has been held for a transfer; something that waited for it may run now."""
        self.scheduler.release(request)
        self.instance.note_kv_use()
        self.instance.wake()


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
        self._idle = [None] * len(self.ranks)
        self.kv_blocks = sum(scheduler.usable_blocks for scheduler in schedulers)
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
        self._stamp(flight, outcomes)
        self.note_kv_use()
        self._dispatch_later(self._queue.now_ps)

    def break_off(self, flight: Flight, reason: str) -> None:
        """A flight has come to nothing: its requests fail, and the instance goes on with the others."""
        self.flights.remove(flight)
        assert flight.batches is not None, "what may fail has one step"
        self._record(flight, self._idle)
        for rank, batch in zip(self.ranks, flight.batches, strict=True):
            for request in rank.scheduler.abandon(batch) if batch is not None else ():
                self._listener.failed(request, reason)
        self.note_kv_use()
        self._dispatch_later(self._queue.now_ps)

    def note_kv_use(self) -> int:
        """Records the KV blocks held from now on, and returns them."""
        used = self._used_blocks()
        self._log.kv_use.hold(self.index, self._queue.now_ps, used)
        return used

    def _used_blocks(self) -> int:
        return sum(rank.scheduler.used_blocks for rank in self.ranks)

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
        used_blocks = self.note_kv_use()
        if flight is None:
            return
        flight.start_ps, flight.kv_blocks = now_ps, used_blocks
        self.flights.append(flight)
        self._launcher.launch(flight)
        self._listener.launched(self, flight)
        if len(self.flights) < len(self.stage_free_ps):
            self._dispatch_later(self.stage_free_ps[0])

    def _decode_run(self) -> Flight | None:
        """A flight of at least two decode iterations in which no rank's batch changes."""
        if len(self.stage_free_ps) > 1 or not (self._launcher.carries_runs and self._executor.prices_runs):
            return None
        steps, busy = LONGEST_RUN, False
        for rank in self.ranks:
            if rank.scheduler.has_work:
                steps, busy = min(steps, rank.scheduler.steady_decode_steps()), True
                if steps < 2:
                    return None
        if not busy:
            return None
        kv_tokens = [rank.scheduler.decode_kv_tokens() for rank in self.ranks]
        compute_ps = self._executor.decode_compute_ps(kv_tokens, steps)
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
        drafts = max(int(batch.drafts.max()) for batch in scheduled if batch is not None)
        prices = self._executor.price([_batch(batch) for batch in scheduled], drafts)
        compute_ps = np.array([sum(price.cost.compute_ps for price in prices)], dtype=np.int64)
        return Flight(self, scheduled, prices, compute_ps)

    def _credit(self, flight: Flight) -> list[Outcome | None]:
        if flight.batches is None:
            outcomes: list[Outcome | None] = [
                rank.scheduler.advance_decode(flight.steps) if rank.scheduler.running_requests else None
                for rank in self.ranks
            ]
            self._log.kv_use.ramp(self.index, self._queue.now_ps, self._used_blocks())
            return outcomes
        return [
            None if batch is None else rank.scheduler.finish(batch)
            for rank, batch in zip(self.ranks, flight.batches, strict=True)
        ]

    def _stamp(self, flight: Flight, outcomes: Sequence[Outcome | None]) -> None:
        """Token and completion times of requests, and the gaps between their tokens."""
        now_ps, first_end_ps = self._queue.now_ps, int(flight.ends_ps[0])
        gaps: Counter[int] = Counter()
        produced = 0
        for rank, outcome in zip(self.ranks, outcomes, strict=True):
            if outcome is None:
                continue
            for request in outcome.prefill_done:
                if request.prefill_completed_ps is None:
                    request.prefill_completed_ps = now_ps
                    if self.placement.role == "prefill":
                        self._listener.prefilled(rank, request)
            if self.placement.role == "prefill":
                continue
            produced += len(outcome.produced)
            if outcome.accepted_drafts:
                gaps[0] += outcome.accepted_drafts
            for request in outcome.produced:
                if request.last_token_ps is not None:
                    gaps[first_end_ps - request.last_token_ps] += 1
                elif request.first_token_ps is None:
                    request.first_token_ps = first_end_ps
                request.last_token_ps = now_ps
            for request in outcome.finished:
                self._listener.completed(request)
        self._log.add_gaps(gaps)
        if flight.steps > 1:
            self._log.add_equal_gaps(np.diff(flight.ends_ps), produced)

    def _record(self, flight: Flight, outcomes: Sequence[Outcome | None]) -> None:
        prices = flight.prices
        durations_ps = np.diff(flight.ends_ps, prepend=flight.start_ps)
        communication_ps = durations_ps - flight.compute_ps
        if flight.is_pipelined:  # stages overlap with other flights: what was waited for is not communication
            communication_ps = np.full(flight.steps, flight.communication_ps, dtype=np.int64)
        prefill_tokens = decode_tokens = requests = waiting = running = 0
        for rank, batch, outcome in zip(self.ranks, flight.batches or self._idle, outcomes, strict=True):
            waiting += rank.scheduler.waiting_requests
            running += rank.scheduler.running_requests
            if batch is not None:
                requests += len(batch.requests)
                prefill_tokens += batch.prefill_tokens
                decode_tokens += batch.decode_tokens
            elif flight.is_run and outcome is not None:
                requests += len(outcome.produced)
                decode_tokens += len(outcome.produced)
        self._log.add(
            IterationRun(
                instance=self.index,
                start_ps=flight.start_ps,
                ends_ps=flight.ends_ps,
                compute_ps=flight.compute_ps,
                communication_ps=communication_ps,
                idle_communication_ps=sum(price.exposed_ps(1.0) for price in prices),
                host_ps=sum(price.cost.host_ps for price in prices),
                phase_ps=tuple(
                    sum(price.cost.phase_ps[position] for price in prices) for position in range(len(COMPUTE_PHASES))
                ),
                estimated_ps=sum(price.cost.estimated_ps for price in prices),
                estimated_operators=tuple(name for price in prices for name in price.cost.estimated_operators),
                requests=requests,
                prefill_tokens=prefill_tokens,
                decode_tokens=decode_tokens,
                waiting=waiting,
                running=running,
                kv_blocks_used=(flight.kv_blocks, self._used_blocks() if flight.is_run else flight.kv_blocks),
                kv_blocks_total=self.kv_blocks,
            )
        )


def _batch(scheduled: ScheduledBatch | None) -> Batch:
    if scheduled is None:
        return Batch.empty()
    return Batch(scheduled.new_tokens - scheduled.drafts, scheduled.kv_tokens, scheduled.logit_rows)
