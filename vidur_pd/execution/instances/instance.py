"""One serving instance: the instance of the C++ core, with its placement, policies and drafts."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd import _core as core
from vidur_pd._core import RunningIteration
from vidur_pd.config import Role
from vidur_pd.execution.instances.placement import Placement
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

    def accept(self, batch: ScheduledBatch) -> tuple[list[int], list[int]]:
        """Drafts kept by each request of ``batch`` that samples, and those made for its next step; nothing where there
        are none, or always as many as fit."""
        if self._drafts is None:
            return [], []
        drafts = batch.drafts[batch.samples]
        accepted, made = self._drafts.accepted(drafts), self._drafts.made(len(drafts))
        return accepted.tolist(), [] if made is None else made.tolist()

    def release(self, request: Request) -> None:
        """Frees the KV held for a transfer, and wakes the instance, as waiting requests may fit now."""
        self.state.release(request)
        self.instance.note_kv_use()
        self.instance.wake()


class Instance(core.Instance):
    """A serving instance. All data-parallel ranks run in lockstep: one iteration holds the micro-batches of every rank.

    With ``pp`` pipeline stages up to ``pp`` iterations run at a time; without stages, decode iterations with unchanged
    batches are simulated as one run.
    """

    def __init__(
        self,
        index: int,
        placement: Placement,
        ranks: Sequence[tuple[RankState, Drafts | None]],
        asked: Sequence[AskedPolicy] = (),
    ) -> None:
        """``asked``: policies of the ranks, where these are in Python; by default vLLM V1 in the core decides."""
        states = [state for state, _ in ranks]
        super().__init__(index, states, None if asked else VllmV1(), placement.partition.pp)
        self.placement = placement
        self.ranks = tuple(Rank(self, index, state, drafts) for index, (state, drafts) in enumerate(ranks))
        self.kv_blocks = sum(state.usable_blocks for state in states)
        self._asked = asked

    @property
    def name(self) -> str:
        return self.placement.name

    @property
    def has_drafts(self) -> bool:
        """Decodes verify drafts."""
        return any(rank.has_drafts for rank in self.ranks)

    def decides_run(self, steps: int, now_ps: int) -> bool:
        """Lets the policies of ranks with work decide the next iteration.

        Returns True where all policies accept ``steps`` plain decodes in a row; 0: the next iteration cannot be one.
        """
        busy = [policy for policy in self._asked if policy.has_work]
        if steps and all(policy.is_steady() for policy in busy):
            return True
        for policy in busy:
            policy.decide(now_ps)
        return False

    def refusal(self, request: Request, role: Role | None = None) -> str | None:
        """Why the instance could never serve this part of a request, by default that of its role; its ranks are
        identical."""
        reason = self.ranks[0].state.rejection_reason(request, role)
        return self._asked[0].refusal(request) if reason is None and self._asked else reason

    def check_progress(self) -> None:
        """Called when no event is left. Raises: InputError, where a policy has left work undone."""
        for rank, policy in enumerate(self._asked):
            if policy.has_work and self.is_up and not self.running_iterations:
                raise policy.stands_still(f"{self.name} rank {rank}")

    def draw_drafts(self, iteration: RunningIteration) -> tuple[list[list[int]], list[list[int]]]:
        """[ranks][requests that sample] drafts that they keep, and drafts for their next step, drawn."""
        if iteration.batch is None:
            return [], []
        ranked = zip(self.ranks, iteration.batch.batches, strict=True)
        drawn = [([], []) if batch is None else rank.accept(batch) for rank, batch in ranked]
        return [accepted for accepted, _ in drawn], [made for _, made in drawn]
