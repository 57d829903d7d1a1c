"""Whole runs of one instance in the loop, with a made-up price: a policy from the first request to the last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from vidur_pd._core import (
    AcceptDrafts,
    BeforeStep,
    CallDue,
    DecideIteration,
    Instance,
    Loop,
    PriceIteration,
    PromptPrefilled,
    RunningIteration,
    Stage,
)
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.scheduling import AskedPolicy, Drafts, Policy, RankState, Role, ScheduledBatch, Section, VllmV1
from vidur_pd.scheduling.kv_blocks import BlockPool, CountingBlockPool, KvGroups, PrefixCacheSizes
from vidur_pd.workload.request import Request

HASH_BLOCK_TOKENS = 6
TRANSFER_PS = 2500
"""From the reservation of blocks to the arrival of KV, and from the end of a prefill to its release."""
MOST_BATCHES = 100_000
"""Of a run that ends: scenarios have some hundred tokens."""


@dataclass(frozen=True)
class Scenario:
    """Requests are (arrival [ps], prompt, output, content of the prompt or none)."""

    role: Role
    caching: bool
    block_tokens: int
    usable_blocks: int
    budget: int
    max_seqs: int
    threshold: int
    stages: int
    drafts: int
    requests: tuple[tuple[int, int, int, tuple[int, ...] | None], ...]
    max_model_len: int = 1000
    watermark_blocks: int = 0
    plans_ahead: bool = False
    lookahead: int = 0
    drops_last_hit: bool = False
    priorities: tuple[int, ...] | None = None
    """Of the requests; ``None``: first come, first served."""
    chunks_prompts: bool = True
    pipelines_chunks: bool = False


def unchunked(scenario: Scenario) -> Scenario:
    """Without chunked prefill, which asks for a budget of the longest request."""
    longest = max(prompt + output for _, prompt, output, _ in scenario.requests) + 1
    return replace(scenario, chunks_prompts=False, max_model_len=longest, budget=max(scenario.budget, longest))


@st.composite
def scenarios(draw: st.DrawFn, drafts: int = 0, plans_ahead: bool = False) -> Scenario:
    """``plans_ahead``: with asynchronous scheduling, which has one pipeline stage and no drafts."""
    block_tokens = draw(st.sampled_from([1, 2, 4]))
    requests, at_ps = [], 0
    for _ in range(draw(st.integers(1, 12))):
        at_ps += draw(st.sampled_from([0, 0, 700, 5000, 60_000]))
        prompt, output = draw(st.integers(1, 30)), draw(st.integers(1, 40))
        changed_at = draw(st.integers(0, 5))
        ids = tuple(int(block == changed_at) for block in range(-(-prompt // HASH_BLOCK_TOKENS)))
        requests.append((at_ps, prompt, output, draw(st.sampled_from([ids, ids, ids, None]))))
    largest = max(-(-(prompt + output - 1) // block_tokens) for _, prompt, output, _ in requests)
    scenario = Scenario(
        role=draw(st.sampled_from(["mixed", "mixed", "prefill", "decode"])),
        caching=draw(st.booleans()),
        block_tokens=block_tokens,
        usable_blocks=largest + -(-drafts // block_tokens) + draw(st.integers(0, 2 * largest)),
        budget=draw(st.integers(4, 60)),
        max_seqs=draw(st.integers(1, 6)),
        threshold=draw(st.sampled_from([0, 0, 3, 7])),
        stages=(stages := draw(st.sampled_from([1, 1, 2, 3])) if not (drafts or plans_ahead) else 1),
        drafts=drafts,
        requests=tuple(requests),
        watermark_blocks=draw(st.sampled_from([0, 0, 1, 3])),
        plans_ahead=plans_ahead,
        lookahead=draw(st.sampled_from([0, drafts])),
        drops_last_hit=draw(st.booleans()) if drafts else False,
        pipelines_chunks=stages > 1 and draw(st.booleans()),
    )
    if draw(st.sampled_from([False, False, True])):
        scenario = replace(scenario, priorities=tuple(draw(st.integers(0, 2)) for _ in requests))
    return unchunked(scenario) if draw(st.sampled_from([False, False, True])) else scenario


@st.composite
def extremes(draw: st.DrawFn) -> Scenario:
    """Overload by many requests at once, pools that the longest of them fills, prompts longer than the budget, prompts
    that are cached to the last block, outputs of one token: each alone and with the others."""
    block_tokens = draw(st.sampled_from([1, 4, 16]))
    prompts, outputs = (
        draw(st.sampled_from([(1, 1), (1, 40), (24, 24)])),
        draw(st.sampled_from([(1, 1), (1, 2), (1, 30)])),
    )
    gap_ps = draw(st.sampled_from([0, 0, 1, 1500]))
    is_cached = draw(st.booleans())
    requests = []
    for index in range(draw(st.integers(2, 24))):
        prompt = draw(st.integers(*prompts))
        ids = (0,) * -(-prompt // HASH_BLOCK_TOKENS) if is_cached else None
        requests.append((index * gap_ps, prompt, draw(st.integers(*outputs)), ids))
    largest = max(-(-(prompt + output - 1) // block_tokens) for _, prompt, output, _ in requests)
    longest = max(prompt + output for _, prompt, output, _ in requests)
    return Scenario(
        role="mixed",
        caching=is_cached,
        block_tokens=block_tokens,
        usable_blocks=largest + draw(st.sampled_from([0, 0, 1, 2, 10 * largest])),
        budget=draw(st.sampled_from([1, 8, requests[0][1], longest - 1, longest, 1000])),
        max_seqs=draw(st.sampled_from([1, 2, 7, 100])),
        threshold=0,
        stages=draw(st.sampled_from([1, 1, 2, 4])),
        drafts=0,
        requests=tuple(requests),
        watermark_blocks=draw(st.sampled_from([0, 0, 1])),
    )


def scenario_of(
    *requests: tuple[int, int, int], contents: Sequence[tuple[int, ...] | None] | None = None, **fields: Any
) -> Scenario:
    """(arrival [ps], prompt, output) of each request, contents of their prompts; blocks of 4 tokens, and room for all
    of them."""
    usual: dict[str, Any] = {
        "role": "mixed",
        "caching": False,
        "block_tokens": 4,
        "usable_blocks": 100,
        "budget": 100,
        "max_seqs": 8,
        "threshold": 0,
        "stages": 1,
        "drafts": 0,
    }
    rows = zip(requests, contents or [None] * len(requests), strict=True)
    return Scenario(**(usual | fields), requests=tuple((*request, ids) for request, ids in rows))


def _block_pool(scenario: Scenario, policy: type[Policy] | None, options: Section | None) -> BlockPool:
    if not scenario.caching:
        return CountingBlockPool(scenario.usable_blocks + 1, scenario.block_tokens)
    groups = KvGroups(whole=1, spanned=0, most_spanned_blocks=0)
    sizes = PrefixCacheSizes(
        scenario.usable_blocks + 1, scenario.block_tokens, HASH_BLOCK_TOKENS, groups, scenario.drops_last_hit
    )
    return (policy or Policy).prefix_cache(options or Section(), sizes)


class WholeRun:
    """Serves a scenario. With ``takes_runs`` plain decodes are taken at once where the policy allows it."""

    def __init__(
        self,
        scenario: Scenario,
        policy: type[Policy] | None = None,
        *,
        takes_runs: bool = False,
        drafts: Drafts | None = None,
        **options: Any,
    ) -> None:
        """``policy``: in Python, with its options; by default vLLM V1 of the core. ``drafts``: by default six of ten
        are accepted."""
        if policy is not None and not policy.has_token_budget:
            scenario = replace(scenario, budget=10**6)
        self.scenario = scenario
        self.options = None if policy is None else policy.Options(**options)
        self.pool = _block_pool(scenario, policy, self.options)
        self.state = RankState(
            self.pool,
            role=scenario.role,
            max_batched_tokens=scenario.budget,
            max_seqs=scenario.max_seqs,
            max_model_len=scenario.max_model_len,
            long_prefill_token_threshold=scenario.threshold,
            drafts_per_step=scenario.drafts,
            watermark_blocks=scenario.watermark_blocks,
            pipeline_stages=scenario.stages,
            plans_ahead=scenario.plans_ahead,
            by_priority=scenario.priorities is not None,
            chunks_prompts=scenario.chunks_prompts,
            pipelines_chunks=scenario.pipelines_chunks,
            lookahead_tokens=scenario.lookahead,
        )
        self._drafts = drafts or Drafts([0.6] * (scenario.drafts or 1), np.random.default_rng(0))
        self.asked = None if policy is None else AskedPolicy("mine", policy, self.state, self.options)
        self.loop = Loop(1, keeps_runs=False, links=None)
        self.queue = EventQueue(self.loop)
        self._instance = Instance(0, [self.state], VllmV1() if policy is None else None, scenario.stages)
        self.loop.add(
            self._instance,
            has_runs=takes_runs,
            has_drafts=scenario.drafts > 0,
            reports_launches=False,
            launches_itself=True,
            launches_apart=True,
            pricing=[],
        )
        self.batches: list[tuple[Any, ...]] = []
        """What each batch computes, and which requests were preempted before it."""
        self.runs: list[int] = []
        """Steps of each run of plain decodes, as far as could be seen when it began."""
        self.questions = 0
        self.accepted: list[Request] = []
        """Those that are not refused when they arrive: what they have generated counts later."""
        self.requests = [self._request(index) for index in range(len(scenario.requests))]

    def _request(self, index: int) -> Request:
        at_ps, prompt, output, ids = self.scenario.requests[index]
        if self.scenario.role == "decode":
            output = max(output, 2)
        request = Request(index, f"r{index}", prompt, output, at_ps, ids)
        if self.scenario.priorities is not None:
            request.priority = self.scenario.priorities[index]
        if self.refusal(request) is None:
            self.accepted.append(request)
            self.queue.schedule(at_ps, Priority.ARRIVAL, lambda: self._enter(request))
        return request

    def refusal(self, request: Request) -> str | None:
        """Why the rank could never complete the request."""
        reason = self.state.rejection_reason(request)
        return self.asked.refusal(request) if reason is None and self.asked else reason

    def serve(self) -> WholeRun:
        """Runs until nothing happens any more."""
        handlers: dict[type, Callable[[Any], None]] = {
            CallDue: lambda notice: self.queue.call(notice.number),
            BeforeStep: lambda _: self._admit_remote(),
            DecideIteration: self._decide,
            PriceIteration: lambda notice: self._price(notice.iteration),
            AcceptDrafts: lambda notice: self._accept(notice.iteration),
            PromptPrefilled: lambda notice: self._later(partial(self._release, notice.request)),
        }
        while (notice := self.loop.run(2**62)) is not None:
            handlers[type(notice)](notice)
        return self

    def left_undone(self) -> list[Request]:
        """Requests that should have been served and were not, or left something behind."""
        state, limit = self.state, 1 if self.scenario.role == "prefill" else None
        assert (state.used_blocks, state.waiting_requests, state.running_requests) == (0, 0, 0)
        assert state.load_tokens == 0
        return [request for request in self.accepted if request.generated_tokens != (limit or request.output_tokens)]

    def seen(self) -> tuple[Any, ...]:
        """What a user and an operator see of it, however iterations were grouped."""
        stamps = [
            (r.scheduled_ps, r.first_token_ps, r.last_token_ps, r.generated_tokens, r.preemptions, r.cached_tokens)
            for r in self.requests
        ]
        gaps = [column.tolist() for column in self.loop.iterations.gap_counts.counts()]
        return stamps, gaps, self.loop.iterations.iterations, self.state.used_blocks

    def _later(self, action: Callable[[], None]) -> None:
        self.queue.schedule(self.queue.now_ps + TRANSFER_PS, Priority.ARRIVAL, action)

    def _enter(self, request: Request) -> None:
        if self.scenario.role == "decode":
            self.state.add_remote(request)
            self._instance.set_waits_for_room(True)
        else:
            self.state.add(request)
        self._instance.wake()

    def _admit_remote(self) -> None:
        for request in self.state.admit_remote():
            self._later(partial(self._arrive, request))

    def _arrive(self, request: Request) -> None:
        self.state.remote_arrived(request, request.prompt_tokens - request.index % 2)
        self._instance.wake()

    def _release(self, request: Request) -> None:
        self.state.release(request)
        self._instance.wake()

    def _decide(self, notice: DecideIteration) -> None:
        assert self.asked is not None
        self.questions += 1
        if notice.steps and self.asked.is_steady():
            self.loop.decode_run()
        else:
            self.asked.decide(self.loop.now_ps)

    def _price(self, iteration: RunningIteration) -> None:
        new_tokens, *_ = self.loop.batches()
        stage_ps = 1000 + int(new_tokens.sum())
        stages = [Stage(stage_ps, 0, load=-1)] * self.scenario.stages
        steps = np.full(iteration.steps, stage_ps * self.scenario.stages, dtype=np.int64)
        iteration.set_stages(stages, steps)
        if iteration.is_run:
            self.runs.append(iteration.steps)
        elif iteration.batch is not None and (batch := iteration.batch.batches[0]) is not None:
            self.batches.append(computed(batch))
            assert len(self.batches) < MOST_BATCHES, f"no end; the last batches: {self.batches[-3:]}"
            assert batch.new_tokens.sum() <= self.scenario.budget
            assert self.state.running_requests <= self.scenario.max_seqs
            assert self.state.used_blocks <= self.scenario.usable_blocks

    def _accept(self, iteration: RunningIteration) -> None:
        assert iteration.batch is not None
        batch = iteration.batch.batches[0]
        assert batch is not None
        drafts = batch.drafts[batch.samples]
        accepted, made = self._drafts.accepted(drafts), self._drafts.made(len(drafts))
        self.loop.set_accepted([accepted.tolist()], [] if made is None else [made.tolist()])


def computed(batch: ScheduledBatch) -> tuple[Any, ...]:
    """(request, new tokens, KV tokens, drafts) of each in order, admitted and preempted ones."""
    columns = (batch.new_tokens.tolist(), batch.kv_tokens.tolist(), batch.drafts.tolist())
    return (
        [(request.index, *row) for request, *row in zip(batch.requests, *columns, strict=True)],
        [request.index for request in batch.admitted],
        [request.index for request in batch.preempted],
    )
