"""TensorRT-LLM's policy against a literal reading of its executor's loops, with and without the overlap scheduler.

Source: TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/py_executor.py (``_executor_loop``, ``_executor_loop_overlap``) and
cpp/tensorrt_llm/batch_manager (capacityScheduler.cpp, microBatchScheduler.cpp, kvCacheManager.cpp). Shared with the
engine under test is nothing; the pool of blocks is vLLM's literal one, as its order of eviction is a stated departure.
The other departures that a scenario can meet are marked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.vidur_pd.test_vllm_v1_reference import HASH_BLOCK_TOKENS, ReferencePool, Sequence
from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenarios
from vidur_pd._core import RunningIteration
from vidur_pd.scheduling.policies.trtllm import Trtllm

Step = tuple[int, list[tuple[int, int]]]
"""(begin [ps], (request, new tokens) of each)"""


class State(IntEnum):
    CONTEXT_INIT = 10
    GENERATION_IN_PROGRESS = 13
    GENERATION_TO_COMPLETE = 14
    GENERATION_COMPLETE = 20


@dataclass
class LlmRequest(Sequence):
    """``computed`` is the position in the context; ``kv`` counts tokens with a place in the KV cache."""

    state: State = State.CONTEXT_INIT
    context: int = 0
    """Tokens to compute before the next is sampled: of the prompt, or of all when it was paused."""
    kv: int = 0
    chunk: int = 0
    pauses: int = 0
    token_ends_ps: list[int] = field(default_factory=list)

    @property
    def in_all(self) -> int:
        return len(self.prompt) + self.output_limit

    @property
    def is_first_chunk(self) -> bool:
        return self.state is State.CONTEXT_INIT and self.computed == 0 and not self.blocks

    @property
    def is_generation(self) -> bool:
        return self.state in (State.GENERATION_IN_PROGRESS, State.GENERATION_TO_COMPLETE)

    @property
    def remaining(self) -> int:
        return self.context - self.computed


@dataclass
class Batch:
    contexts: list[tuple[LlmRequest, int]]
    """With what has been computed of it when the batch ends."""
    samples: list[LlmRequest]
    end_ps: int


class Executor:
    """The loops. An iteration of n tokens takes 1000 + n ps, as in `WholeRun`; the host takes no time."""

    def __init__(self, scenario: Scenario, policy: str, chunking: str) -> None:
        self.scenario, self.policy, self.chunking = scenario, policy, chunking
        self.pool = ReferencePool(scenario.usable_blocks + 1, scenario.block_tokens, scenario.caching)
        self.active: list[LlmRequest] = []
        self.waiting: deque[LlmRequest] = deque()
        self.steps: list[Step] = []
        self.now_ps = 0
        self.gpu_free_ps = 0

    def serve(self, arrivals: list[tuple[int, LlmRequest]]) -> None:
        coming, previous = deque(arrivals), None
        while coming or self.waiting or self.active:
            while coming and coming[0][0] <= self.now_ps:
                self.waiting.append(coming.popleft()[1])
            while self.waiting and len(self.active) < self.scenario.max_seqs:
                self.active.append(request := self.waiting.popleft())
                request.context = len(request.prompt)
            if not self.active:
                self.now_ps = coming[0][0]
                continue
            contexts, generations, paused = self.schedule()
            for request in paused:
                self.terminate(request)
            batch = self.forward(contexts, generations) if contexts or generations else None
            if not self.scenario.plans_ahead:
                self.pause(paused)
                if batch is not None:
                    self.move_on(contexts, generations)
                    self.update(batch)
                elif not paused:
                    self.now_ps = coming[0][0]
                continue
            if previous is not None:
                self.sample(previous)
            self.pause(paused)
            if batch is not None:
                self.move_on(contexts, generations)
            if previous is not None:
                self.respond(previous)
            elif batch is None and not paused:
                self.now_ps = coming[0][0]
            previous = batch

    def update(self, batch: Batch) -> None:
        self.sample(batch)
        self.respond(batch)

    def sample(self, batch: Batch) -> None:
        """``_update_requests``: waits for the batch's end."""
        self.now_ps = batch.end_ps
        for request in batch.samples:
            if request.state is State.GENERATION_COMPLETE:
                continue
            request.output.append((request.name, "output", len(request.output)))
            request.token_ends_ps.append(self.now_ps)
            if len(request.output) == request.output_limit:
                request.state = State.GENERATION_COMPLETE

    def respond(self, batch: Batch) -> None:
        """``_handle_responses`` and ``update_resources``, the latter first, as a request that ends stores all anyhow.

        Departure: a chunk's blocks are stored, not those of the whole prompt.
        """
        for request, computed in batch.contexts:
            if request.blocks:
                self.pool.note(request, computed)
        for request in [one for one in self.active if one.state is State.GENERATION_COMPLETE]:
            if request.blocks:
                self.terminate(request)
            self.active.remove(request)

    def terminate(self, request: LlmRequest) -> None:
        """Stores what is known and takes the blocks back. Departure: of a prompt that was cut what is computed."""
        self.pool.note(request, min(request.computed, len(request.tokens) - 1))
        self.pool.take_back(request)

    def pause(self, paused: list[LlmRequest]) -> None:
        """Departure: one that has got its last token meanwhile ends; what TensorRT-LLM does then was not seen."""
        for request in paused:
            request.pauses += 1
            if request.state is not State.GENERATION_COMPLETE:
                request.state, request.computed, request.kv = State.CONTEXT_INIT, 0, 0
                request.context = len(request.tokens)

    def forward(self, contexts: list[LlmRequest], generations: list[LlmRequest]) -> Batch:
        rows = []
        for request in contexts:
            if request.is_first_chunk:
                self.add_sequence(request)
            rows.append((request.name, request.chunk))
        for request in generations:
            request.kv += 1
            self.pool.give(request, request.kv, [], 0)
            rows.append((request.name, 1))
        begin_ps = max(self.now_ps, self.gpu_free_ps)
        self.gpu_free_ps = begin_ps + 1000 + sum(new for _, new in rows)
        self.steps.append((begin_ps, sorted(rows)))
        ends = [(request, request.computed + request.chunk) for request in contexts]
        last = [request for request, end in ends if end == request.context]
        return Batch(ends, last + generations, self.gpu_free_ps)

    def add_sequence(self, request: LlmRequest) -> None:
        hits, size = self.pool.hits(request), self.pool.size
        self.pool.give(request, request.context, hits, 0)
        request.kv = request.context
        past = len(hits) * size
        if request.first_hits is None:
            request.first_hits = past
        if past and past + request.chunk < request.context:
            request.chunk = (past + request.chunk) // size * size - past
        request.computed = past
        request.chunk = min(request.chunk, request.remaining)

    def move_on(self, contexts: list[LlmRequest], generations: list[LlmRequest]) -> None:
        """``_update_request_states``."""
        for request in contexts:
            request.computed += request.chunk
        for request in generations:
            request.computed += 1
        for request in contexts + generations:
            if request.remaining > 0:
                continue
            request.state = State.GENERATION_IN_PROGRESS
            tokens = request.computed + 1 - len(request.prompt)  # of the output when the batch has ended
            if self.scenario.plans_ahead and tokens >= request.output_limit:
                request.state = State.GENERATION_TO_COMPLETE

    def schedule(self) -> tuple[list[LlmRequest], list[LlmRequest], list[LlmRequest]]:
        paused: list[LlmRequest] = []
        known = set()
        if self.policy != "static_batch":
            for request in self.active:
                if request.state is State.CONTEXT_INIT and not request.is_first_chunk:
                    known.add(self.new_block(request))
        known.discard(None)
        if self.policy == "max_utilization":
            fitting, paused = self.max_utilization(known)
        else:
            fitting = self.guaranteed_no_evict(known)
        return (*self.micro_batch(fitting), paused)

    def new_block(self, request: LlmRequest) -> tuple[object, ...] | None:
        """``findNewContextBlock``."""
        for position in range(len(request.tokens) // self.pool.size if self.scenario.caching else 0):
            wanted = request.tokens[: (position + 1) * self.pool.size]
            if wanted not in self.pool.content.values():
                return wanted
        return None

    def beneficial_to_skip(self, request: LlmRequest, known: set[tuple[object, ...] | None]) -> bool:
        if not request.is_first_chunk or (block := self.new_block(request)) is None:
            return False
        if block in known:
            return True
        known.add(block)
        return False

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.pool.size)

    def guaranteed_no_evict(self, known: set[tuple[object, ...] | None]) -> list[LlmRequest]:
        free = len(self.pool.queue)
        scheduled = [request for request in self.active if request.is_generation]
        free -= sum(self.blocks(request.in_all) - len(request.blocks) for request in scheduled)
        is_static = self.policy == "static_batch"
        if is_static and scheduled:
            return scheduled
        is_full = False
        for request in self.active:
            if request.state is not State.CONTEXT_INIT:
                continue
            if is_full and request.is_first_chunk:  # departure: the others go on behind one that does not fit
                continue
            if not is_static and self.beneficial_to_skip(request, known):
                continue
            needed = self.blocks(request.in_all) - len(request.blocks)
            if needed > free:
                is_full = True
                continue
            free -= needed
            scheduled.append(request)
        return scheduled

    def max_utilization(self, known: set[tuple[object, ...] | None]) -> tuple[list[LlmRequest], list[LlmRequest]]:
        users, free = dict(self.pool.users), len(self.pool.queue)
        scheduled: list[LlmRequest] = []
        paused: list[LlmRequest] = []
        taken, place, end = 0, 0, len(self.active)
        while place < end:
            request = self.active[place]
            if request.state is State.GENERATION_COMPLETE or self.beneficial_to_skip(request, known):
                place += 1
                continue
            needed = 0
            if request.is_first_chunk:
                needed = self.blocks(request.context)
            elif request.is_generation:
                needed = self.blocks(min(request.kv + 1, request.in_all)) - self.blocks(request.kv)
            if taken + needed <= free:
                taken += needed
                scheduled.append(request)
                place += 1
                continue
            started = [at for at in range(place, end) if self.is_started(self.active[at])]
            if not started:
                break
            end = started[-1]
            for block in self.active[end].blocks:
                users[block] -= 1
                free += users[block] == 0
            paused.append(self.active[end])
        return scheduled, paused

    @staticmethod
    def is_started(request: LlmRequest) -> bool:
        return request.is_generation or (request.state is State.CONTEXT_INIT and not request.is_first_chunk)

    def micro_batch(self, fitting: list[LlmRequest]) -> tuple[list[LlmRequest], list[LlmRequest]]:
        budget, tokens, chunked = self.scenario.budget, 0, 0
        contexts: list[LlmRequest] = []
        generations: list[LlmRequest] = []
        for request in fitting:
            if request.state >= State.GENERATION_TO_COMPLETE:
                continue
            if request.state is State.CONTEXT_INIT:
                request.chunk = request.remaining
                if self.scenario.chunks_prompts:
                    chunked += request.chunk
                else:
                    request.chunk = min(request.chunk, budget)  # departure: one that has outgrown it is cut
                    if tokens + request.chunk > budget:
                        break
                    tokens += request.chunk
                contexts.append(request)
            else:
                if tokens + 1 > budget:
                    break
                tokens += 1
                generations.append(request)
            if len(contexts) + len(generations) == self.scenario.max_seqs:
                break
        if chunked > budget - tokens and self.scenario.chunks_prompts:
            self.set_chunks(contexts, budget - tokens)
        return [request for request in contexts if request.chunk], generations

    def set_chunks(self, contexts: list[LlmRequest], room: int) -> None:
        unit = self.pool.size
        for request in contexts:
            request.chunk = 0
        if self.chunking == "first_come_first_served":
            for request in contexts:
                size = min(room, request.remaining)
                request.chunk = size if size == request.remaining else size // unit * unit
                room -= request.chunk
            return
        grown = 1
        while room and grown:
            grown = 0
            for request in contexts:
                more = min(request.chunk + unit, request.remaining) - request.chunk
                if more <= room:
                    request.chunk += more
                    room -= more
                    grown += more


class SteppedRun(WholeRun):
    """Notes the steps of its reference."""

    def __init__(self, scenario: Scenario, **options: Any) -> None:
        super().__init__(scenario, Trtllm, **options)
        self.steps: list[Step] = []

    def _price(self, iteration: RunningIteration) -> None:
        super()._price(iteration)
        self.steps.append((self.loop.now_ps, sorted((row[0], row[1]) for row in self.batches[-1][0])))


def llm_requests(scenario: Scenario, accepted: set[int]) -> list[tuple[int, LlmRequest]]:
    """(arrival, request) of each; prompts are equal as far as their content ids are."""
    made = []
    for name, (at_ps, prompt, output, ids) in enumerate(scenario.requests):
        if name in accepted:
            tokens = tuple((ids[: i // HASH_BLOCK_TOKENS + 1] if ids else name, i) for i in range(prompt))
            made.append((at_ps, LlmRequest(name, tokens, output)))
    return made


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization", "static_batch"])
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(scenarios(), scenarios(plans_ahead=True)),
    st.sampled_from(["first_come_first_served", "equal_progress"]),
)
def test_every_step_is_that_of_the_executor(policy: str, scenario: Scenario, chunking: str) -> None:
    budget = max(scenario.budget, scenario.block_tokens)
    scenario = replace(scenario, role="mixed", stages=1, priorities=None, lookahead=0, budget=budget)
    run = SteppedRun(scenario, capacity_scheduler_policy=policy, context_chunking_policy=chunking)
    arrivals = llm_requests(scenario, {request.index for request in run.accepted})
    reference = Executor(scenario, policy, chunking)
    reference.serve(arrivals)
    run.serve()
    assert run.steps == reference.steps
    for _, expected in arrivals:
        request, ends_ps = run.requests[expected.name], expected.token_ends_ps
        assert (request.first_token_ps, request.last_token_ps) == (ends_ps[0], ends_ps[-1])
        assert (request.preemptions, request.cached_tokens) == (expected.pauses, expected.first_hits)
    assert run.left_undone() == []
    event(f"pauses {'yes' if any(one.pauses for _, one in arrivals) else 'no'}")
    event(f"hits {'yes' if any(one.first_hits for _, one in arrivals) else 'no'}")
