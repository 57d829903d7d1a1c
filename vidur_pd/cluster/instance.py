"""One serving instance as routing, KV transfers and couplings see it; iterations run in `core/loop.hpp`."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd._core import Loop, RunningIteration
from vidur_pd.cluster.placement import Placement
from vidur_pd.execution.coupling.exact import ExactLauncher
from vidur_pd.execution.iteration.pricer import IterationPricer
from vidur_pd.scheduling import AskedPolicy, Drafts, RankState, ScheduledBatch, VllmV1
from vidur_pd.workload.request import Request


class Rank:
    """One data-parallel rank of an instance as routing sees it."""

    __slots__ = ("_drafts", "index", "instance", "state")

    def __init__(self, instance: Instance, index: int, state: RankState, drafts: Drafts | None) -> None:
        self.instance = instance
        self.index = index
        self.state = state
        self._drafts = drafts

    @property
    def has_drafts(self) -> bool:
        """Decodes verify drafts."""
        return self._drafts is not None

    def accept(self, batch: ScheduledBatch) -> list[int]:
        """Drafts kept by each request of ``batch`` that samples; nothing without drafts."""
        if self._drafts is None:
            return []
        accepted: list[int] = self._drafts.accepted(batch.drafts[batch.samples]).tolist()
        return accepted

    def release(self, request: Request) -> None:
        """Frees the KV that has been held for a transfer; something that waited for it may run now."""
        self.state.release(request)
        self.instance.note_kv_use()
        self.instance.wake()


class Instance:
    """All data-parallel ranks run in lockstep: one iteration holds the micro-batches of every rank.

    With ``pp`` pipeline stages up to ``pp`` running_iterations are under way; without, runs of unchanged decode batches are one
    iteration.
    """

    def __init__(
        self,
        index: int,
        placement: Placement,
        ranks: Sequence[tuple[RankState, Drafts | None]],
        pricer: IterationPricer,
        asked: Sequence[AskedPolicy] = (),
    ) -> None:
        """``asked``: policies of the ranks, where Python decides; by default it is vLLM V1 in the core."""
        self.index = index
        self.placement = placement
        self.ranks = tuple(Rank(self, index, state, drafts) for index, (state, drafts) in enumerate(ranks))
        self.pricer = pricer
        self.kv_blocks = sum(rank.state.usable_blocks for rank in self.ranks)
        self._asked = asked

    def join(self, loop: Loop, launcher: ExactLauncher | None, *, reports_launches: bool) -> None:
        """Takes its place in a loop, which launches its running iterations unless a launcher does, and tells of each where
        ``reports_launches``.
        """
        self._loop, self._launcher = loop, launcher
        number = loop.add_instance(
            [rank.state for rank in self.ranks],
            None if self._asked else VllmV1(),
            self.placement.partition.pp,
            has_runs=launcher is None and self.pricer.prices_runs,
            has_drafts=any(rank.has_drafts for rank in self.ranks),
            reports_launches=reports_launches,
            launches_itself=launcher is None,
            pricing=self.pricer.pricing(),
        )
        assert number == self.index, "instances join in their order"

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def running_iterations(self) -> list[RunningIteration]:
        return self._loop.running_iterations(self.index)

    @property
    def is_up(self) -> bool:
        return self._loop.is_up(self.index)

    def halt(self) -> list[Request]:
        """The instance fails now and launches nothing until ``resume``; see ``Loop::halt``.

        Returns the requests that the ranks had alone (``RankState::clear``), rank by rank.
        """
        if self._launcher is not None:
            for iteration in self.running_iterations:
                self._launcher.drop(iteration)
        return self._loop.halt(self.index)

    def resume(self) -> None:
        """The instance is back, empty, and may launch from now on."""
        self._loop.resume(self.index)

    def set_compute_slowdown(self, factor: float) -> None:
        """Iterations launched from now on compute ``factor`` times as long; of those in iteration, a run ends with the
        step in progress, and nothing else changes."""
        self._loop.set_compute_slowdown(self.index, factor)

    def break_off(self, iteration: RunningIteration) -> list[Request]:
        """A iteration of one step has come to nothing: returns its requests, which the instance has no more."""
        return self._loop.break_off(iteration)

    def wake(self) -> None:
        """Something new may be scheduled: act at this instant, or as soon as the step in progress ends."""
        self._loop.wake(self.index)

    def note_kv_use(self) -> int:
        """Records the KV blocks held from now on, and returns them."""
        return self._loop.note_kv_use(self.index)

    def set_waits_for_room(self, waits: bool) -> None:
        """Requests wait for blocks here: the loop tells of every step before it is scheduled."""
        self._loop.set_waits_for_room(self.index, waits)

    def decide(self, steps: int) -> None:
        """Lets the policies of ranks with work decide the next iteration; ``steps`` > 0: it could be the first of so
        many plain decodes."""
        busy = [policy for policy in self._asked if policy.has_work]
        if steps and all(policy.is_steady() for policy in busy):
            self._loop.decode_run()
            return
        for policy in busy:
            policy.decide(self._loop.now_ps)

    def check_progress(self) -> None:
        """Nothing will happen any more. Raises: InputError, where a policy has left work undone."""
        for rank, policy in enumerate(self._asked):
            if policy.has_work and self.is_up and not self.running_iterations:
                raise policy.stands_still(f"{self.name} rank {rank}")

    def accept(self, iteration: RunningIteration) -> None:
        """Draws the drafts that the decodes of a iteration keep."""
        if iteration.batch is not None:
            ranked = zip(self.ranks, iteration.batch.batches, strict=True)
            self._loop.set_accepted([[] if batch is None else rank.accept(batch) for rank, batch in ranked])
