"""One serving instance as routing, KV transfers and couplings see it; iterations run in `core/loop.hpp`."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd._core import Flight, Loop
from vidur_pd.cluster import Placement
from vidur_pd.execution.executor import InstanceExecutor
from vidur_pd.execution.launcher import Launcher
from vidur_pd.request import Request
from vidur_pd.scheduling import VllmV1Scheduler


class Rank:
    """One data-parallel rank of an instance as routing sees it."""

    __slots__ = ("index", "instance", "scheduler")

    def __init__(self, instance: Instance, index: int, scheduler: VllmV1Scheduler) -> None:
        self.instance = instance
        self.index = index
        self.scheduler = scheduler

    def release(self, request: Request) -> None:
        """Frees the KV that has been held for a transfer; something that waited for it may run now."""
        self.scheduler.release(request)
        self.instance.note_kv_use()
        self.instance.wake()


class Instance:
    """All data-parallel ranks run in lockstep: one flight holds the micro-batches of every rank.

    With ``pp`` pipeline stages up to ``pp`` flights are under way; without, runs of unchanged decode batches are one
    flight.
    """

    def __init__(
        self,
        index: int,
        placement: Placement,
        schedulers: Sequence[VllmV1Scheduler],
        executor: InstanceExecutor,
    ) -> None:
        self.index = index
        self.placement = placement
        self.ranks = tuple(Rank(self, rank, scheduler) for rank, scheduler in enumerate(schedulers))
        self.executor = executor
        self.kv_blocks = sum(scheduler.usable_blocks for scheduler in schedulers)
        self.has_drafts = any(scheduler.has_drafts for scheduler in schedulers)

    def join(self, loop: Loop, launcher: Launcher, *, tells_launches: bool) -> None:
        """Takes its place in a loop, which tells of each flight where ``tells_launches``."""
        self._loop, self._launcher = loop, launcher
        number = loop.add_instance(
            [rank.scheduler for rank in self.ranks],
            self.placement.partition.pp,
            has_runs=launcher.has_runs and self.executor.prices_runs,
            has_drafts=self.has_drafts,
            tells_launches=tells_launches,
            launches_itself=launcher.launches_itself,
            pricing=self.executor.pricing(),
        )
        assert number == self.index, "instances join in their order"

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def flights(self) -> list[Flight]:
        return self._loop.flights(self.index)

    @property
    def is_up(self) -> bool:
        return self._loop.is_up(self.index)

    def halt(self) -> list[Request]:
        """The instance fails now and launches nothing until ``resume``; see ``Loop::halt``.

        Returns the requests that the ranks had alone (``Scheduler.clear``), rank by rank.
        """
        for flight in self.flights:
            self._launcher.drop(flight)
        return self._loop.halt(self.index)

    def resume(self) -> None:
        """The instance is back, empty, and may launch from now on."""
        self._loop.resume(self.index)

    def set_pace(self, factor: float) -> None:
        """Iterations launched from now on compute ``factor`` times as long; of those in flight, a run ends with the
        step in progress, and nothing else changes."""
        self._loop.set_pace(self.index, factor)

    def break_off(self, flight: Flight) -> list[Request]:
        """A flight of one step has come to nothing: returns its requests, which the instance has no more."""
        return self._loop.break_off(flight)

    def wake(self) -> None:
        """Something new may be scheduled: act at this instant, or as soon as the step in progress ends."""
        self._loop.wake(self.index)

    def note_kv_use(self) -> int:
        """Records the KV blocks held from now on, and returns them."""
        return self._loop.note_kv_use(self.index)

    def set_waits_for_room(self, waits: bool) -> None:
        """Requests wait for blocks here: the loop tells of every step before it is scheduled."""
        self._loop.set_waits_for_room(self.index, waits)

    def accept(self, flight: Flight) -> None:
        """Draws the drafts that the decodes of a flight keep."""
        if flight.batch is not None:
            ranked = zip(self.ranks, flight.batch.batches, strict=True)
            self._loop.set_accepted([[] if batch is None else rank.scheduler.accept(batch) for rank, batch in ranked])
