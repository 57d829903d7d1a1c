"""One serving instance: the schedulers of its ranks, and the iterations in flight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from aicb import RankBatches
from vidur_pd.cluster import Placement
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.executor import Executor
from vidur_pd.execution.flight import Flight
from vidur_pd.metrics.iterations import COMPUTE_PHASES, IterationLog, IterationRun
from vidur_pd.request import Request
from vidur_pd.scheduling import GroupBatch, GroupOutcome, RankGroup, VllmV1Scheduler

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

    def drop(self, flight: Flight) -> None:
        """The flight comes to nothing: it is forgotten, and what it has on the network is taken off."""
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
        """An iteration came to nothing; its instance has nothing of the request any more."""
        ...

    def broken_off(self, instance: Instance) -> None:
        """All requests of the iteration that came to nothing have been told of."""
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
        self.is_up = True
        self.stage_free_ps = [0] * placement.partition.pp
        self._executor = executor
        self.kv_blocks = sum(scheduler.usable_blocks for scheduler in schedulers)
        self._dispatch_at_ps: int | None = None

    def attach(self, queue: EventQueue, launcher: Launcher, listener: Listener, log: IterationLog) -> None:
        """Connects the instance to the simulation it takes part in."""
        self._queue = queue
        self._launcher = launcher
        self._listener = listener
        self._log = log
        self._has_drafts = any(rank.scheduler.has_drafts for rank in self.ranks)
        self._group = RankGroup([rank.scheduler for rank in self.ranks], log.gap_counts)

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

    def halt(self) -> list[Request]:
        """The instance fails now and launches nothing until `resume`.

        Steps of a run that have ended by now count, tokens and all. The step in progress and all other flights come to
        nothing and are not recorded. All requests leave, and all KV is gone, that held for transfers and cached content
        too. Returns the requests that the ranks had alone (`Scheduler.clear`), rank by rank.
        """
        self.is_up, self._dispatch_at_ps = False, None
        for flight in self.flights:
            self._launcher.drop(flight)
            if flight.event is not None:
                flight.event.cancel()
            ended = int(np.searchsorted(flight.ends_ps, self._queue.now_ps, side="right"))
            if flight.is_run and ended:
                flight.keep_steps(ended)
                self._book(flight)
        self.flights.clear()
        lost = [request for rank in self.ranks for request in rank.scheduler.clear()]
        self.note_kv_use()
        return lost

    def resume(self) -> None:
        """The instance is back, empty, and may launch from now on."""
        self.is_up = True
        self.stage_free_ps[:] = [self._queue.now_ps] * len(self.stage_free_ps)
        self._dispatch_later(self._queue.now_ps)

    def set_pace(self, factor: float) -> None:
        """Iterations launched from now on compute ``factor`` times as long; of those in flight, a run ends with the
        step in progress, and nothing else changes."""
        self._executor.pace = factor
        if self.flights and self.flights[0].is_run:
            self._launcher.truncate(self.flights[0])

    def land(self, flight: Flight) -> None:
        """A flight has ended: credits its tokens, records it and schedules the next."""
        self.flights.remove(flight)
        self._book(flight)
        self.note_kv_use()
        self._dispatch_later(self._queue.now_ps)

    def break_off(self, flight: Flight, reason: str) -> None:
        """A flight has come to nothing: its requests fail, and the instance goes on with the others."""
        self.flights.remove(flight)
        assert flight.batch is not None, "what may fail has one step"
        if flight.ends_ps[0] > flight.start_ps:
            flight.compute_ps = np.minimum(flight.compute_ps, flight.ends_ps - flight.start_ps)
            self._record(flight, 0)
        for rank, batch in zip(self.ranks, flight.batch.batches, strict=True):
            for request in rank.scheduler.abandon(batch) if batch is not None else ():
                self._listener.failed(request, reason)
        self.note_kv_use()
        self._listener.broken_off(self)
        self._dispatch_later(self._queue.now_ps)

    def note_kv_use(self) -> int:
        """Records the KV blocks held from now on, and returns them."""
        used = self._group.used_blocks
        self._log.kv_use.hold(self.index, self._queue.now_ps, used)
        return used

    def _dispatch_later(self, at_ps: int) -> None:
        if self.is_up and (self._dispatch_at_ps is None or at_ps < self._dispatch_at_ps):
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
        steps = self._group.steady_decode_steps(LONGEST_RUN)
        if not steps:
            return None
        price, compute_ps = self._executor.price_run(RankBatches.decode(*self._group.decode_kv_tokens()), steps)
        return Flight(self, None, (price,), compute_ps)

    def _micro_batch(self) -> Flight | None:
        batch = self._group.schedule(self._queue.now_ps)
        if batch is None:
            return None
        prices = self._executor.price(_rank_batches(batch), batch.most_drafts)
        compute_ps = np.array([sum(price.cost.compute_ps for price in prices)], dtype=np.int64)
        return Flight(self, batch, prices, compute_ps)

    def _book(self, flight: Flight) -> None:
        """All steps of the flight have ended."""
        outcome = self._credit(flight)
        self._record(flight, outcome.produced)
        self._listener.landed(flight)
        self._tell(flight, outcome)

    def _credit(self, flight: Flight) -> GroupOutcome:
        """What has become of the requests; their tokens are stamped, and the gaps between tokens counted."""
        now_ps, first_end_ps = self._queue.now_ps, int(flight.ends_ps[0])
        if flight.batch is None:
            outcome = self._group.advance_decode(flight.steps, first_end_ps, int(flight.ends_ps[-1]))
            self._log.kv_use.ramp(self.index, now_ps, self._group.used_blocks)
            return outcome
        accepted: list[list[int]] = []
        if self._has_drafts:
            ranked = zip(self.ranks, flight.batch.batches, strict=True)
            accepted = [[] if batch is None else rank.scheduler.accept(batch) for rank, batch in ranked]
        return self._group.finish(flight.batch, accepted, first_end_ps, now_ps)

    def _tell(self, flight: Flight, outcome: GroupOutcome) -> None:
        for rank, request in outcome.prefilled:
            self._listener.prefilled(self.ranks[rank], request)
        for request in outcome.completed:
            self._listener.completed(request)
        if flight.steps > 1:
            self._log.add_equal_gaps(np.diff(flight.ends_ps), outcome.produced)

    def _record(self, flight: Flight, produced: int) -> None:
        prices, batch = flight.prices, flight.batch
        communication_ps = flight.ends_ps - flight.compute_ps
        communication_ps[0] -= flight.start_ps
        communication_ps[1:] -= flight.ends_ps[:-1]
        if flight.is_pipelined:  # stages overlap with other flights: what was waited for is not communication
            communication_ps = np.full(flight.steps, flight.communication_ps, dtype=np.int64)
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
                requests=produced if batch is None else batch.requests,
                prefill_tokens=0 if batch is None else batch.prefill_tokens,
                decode_tokens=produced if batch is None else batch.decode_tokens,
                waiting=self._group.waiting_requests,
                running=self._group.running_requests,
                kv_blocks_used=(flight.kv_blocks, self._group.used_blocks if flight.is_run else flight.kv_blocks),
                kv_blocks_total=self.kv_blocks,
            )
        )


def _rank_batches(batch: GroupBatch) -> RankBatches:
    """The batches without their drafts."""
    new_tokens = batch.new_tokens()
    if batch.most_drafts:
        new_tokens = new_tokens - batch.drafts()
    return RankBatches(new_tokens, batch.kv_tokens(), batch.rank_requests(), batch.rank_logit_rows())
