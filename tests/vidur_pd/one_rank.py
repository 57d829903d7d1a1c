"""One rank in the loop of the simulator, step by step: a policy decides, iterations take a made-up time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from vidur_pd._core import AcceptDrafts, DecideIteration, Instance, Loop, PriceIteration, RunningIteration, Stage
from vidur_pd.execution.clock import Priority
from vidur_pd.scheduling import Decision, Drafts, Policy, RankState, RankView, Role, ScheduledBatch, VllmV1
from vidur_pd.scheduling.kv_blocks import BlockPool, CountingBlockPool
from vidur_pd.workload.request import Request

STAGES = 4
"""Micro-batches that may be under way at a time."""
ITERATION_PS = 1000


def generated(request: Request, tokens: int) -> Request:
    """The request after a rank has generated so many of its tokens and failed."""
    rank = OneRank(CountingBlockPool(1000), max_batched_tokens=10_000, max_seqs=1, max_model_len=10_000)
    rank.add(request)
    for _ in range(tokens):
        batch = rank.schedule()
        assert batch is not None
        rank.finish(batch)
    assert rank.clear() == [request]
    return request


@dataclass(frozen=True)
class Outcome:
    """What the requests of a batch have gained, in batch order."""

    produced: list[Request]
    prefill_done: list[Request]
    """Those that got their first token."""
    finished: list[Request]
    accepted_drafts: int


class OneRank:
    """The rank decides when ``schedule`` asks it to, and credits when ``finish`` says so, oldest batch first.

    What is not defined here is that of its `RankState`.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_batched_tokens: int,
        max_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
        by_priority: bool = False,
        chunks_prompts: bool = True,
        role: Role = "mixed",
        drafts: Drafts | None = None,
        policy: Policy | VllmV1 | None = None,
    ) -> None:
        self.state = RankState(
            pool,
            role=role,
            max_batched_tokens=max_batched_tokens,
            max_seqs=max_seqs,
            max_model_len=max_model_len,
            long_prefill_token_threshold=long_prefill_token_threshold,
            by_priority=by_priority,
            chunks_prompts=chunks_prompts,
            drafts_per_step=0 if drafts is None else drafts.per_step,
        )
        self.view, self.decision = RankView(self.state), Decision(self.state)
        self._policy, self._drafts = policy or VllmV1(), drafts
        self._running: deque[RunningIteration] = deque()
        self._is_asked = False
        self._loop = Loop(1, keeps_runs=False, links=None)
        self._instance = Instance(0, [self.state], None, STAGES)
        self._loop.add(
            self._instance,
            has_runs=False,
            has_drafts=drafts is not None,
            reports_launches=False,
            launches_itself=True,
            pricing=[],
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)

    def schedule(self) -> ScheduledBatch | None:
        """The next batch, or none if nothing can run."""
        self._is_asked = True
        self._instance.wake()
        batch = self._run(self._loop.now_ps)
        self._is_asked = False
        return batch

    def finish(self, batch: ScheduledBatch) -> Outcome:
        """Runs the loop to the end of a batch."""
        self._run(self._loop.now_ps)
        iteration = self._running.popleft()
        before = [request.generated_tokens for request in batch.requests]
        self._run(iteration.end_ps)
        grown = [
            (request, tokens)
            for request, tokens in zip(batch.requests, before, strict=True)
            if request.generated_tokens > tokens
        ]
        return Outcome(
            produced=[request for request, _ in grown],
            prefill_done=[
                request for request, tokens in grown if request.prompt_tokens + tokens == request.context_tokens
            ],
            finished=[request for request, _ in grown if request.status in ("completed", "prefilled")],
            accepted_drafts=sum(request.generated_tokens - tokens - 1 for request, tokens in grown),
        )

    def pass_time(self) -> None:
        """Nothing happens for as long as an iteration takes."""
        self._loop.schedule_call(self._loop.now_ps + ITERATION_PS, int(Priority.ARRIVAL))
        self._run(self._loop.now_ps + ITERATION_PS)

    def clear(self) -> list[Request]:
        """The rank fails, and is back at once."""
        self._run(self._loop.now_ps)
        self._running.clear()
        lost = self._instance.halt()
        self._instance.resume()
        return lost

    def _run(self, until_ps: int) -> ScheduledBatch | None:
        while (notice := self._loop.run(until_ps + 1)) is not None:
            if isinstance(notice, DecideIteration) and self._is_asked:
                self._decide()
            elif isinstance(notice, PriceIteration):
                assert notice.iteration.batch is not None
                last = Stage(ITERATION_PS, 0, load=-1)
                stages = [*([Stage(0, 0, load=-1)] * (STAGES - 1)), last]
                notice.iteration.set_stages(stages, np.array([ITERATION_PS]))
                self._running.append(notice.iteration)
                return notice.iteration.batch.batches[0]
            elif isinstance(notice, AcceptDrafts):
                self._accept(notice.iteration)
        return None

    def _decide(self) -> None:
        self._is_asked = False
        self.state.open_decision(self._loop.now_ps)
        self._policy.decide(self.view, self.decision)
        while self.state.asks_again():
            self._policy.decide(self.view, self.decision)

    def _accept(self, iteration: RunningIteration) -> None:
        assert self._drafts is not None
        assert iteration.batch is not None
        batch = iteration.batch.batches[0]
        assert batch is not None
        self._loop.set_accepted([self._drafts.accepted(batch.drafts[batch.samples]).tolist()])


class Spoken(Policy):
    """The next decision is what has been said, (request, tokens) to compute or (request, 0) to preempt."""

    said: tuple[Request, int] | None = None

    def decide(self, rank: RankView, decision: Decision) -> None:
        if self.said is not None:
            (request, tokens), self.said = self.said, None
            decision.run(request, tokens) if tokens else decision.preempt(request)


class DirectedRank(OneRank):
    """A rank whose test says what each iteration computes, with no limits but those of its KV blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self._spoken = Spoken()
        super().__init__(pool, max_batched_tokens=10**7, max_seqs=10**6, max_model_len=10**8, policy=self._spoken)

    def compute(self, request: Request, tokens: int) -> None:
        """An iteration of one request, begun and ended."""
        self._spoken.said = (request, tokens)
        batch = self.schedule()
        assert batch is not None
        self.finish(batch)

    def preempt(self, request: Request) -> None:
        self._spoken.said = (request, 0)
        assert self.schedule() is None
