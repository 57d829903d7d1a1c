"""Asynchronous scheduling against a literal reading of vLLM's loop with two batches in flight.

Source: vLLM 0.24.0, vllm/v1/engine/core.py (``step_with_batch_queue``), vllm/v1/core/sched/scheduler.py and
async_scheduler.py. Shared with the engine under test is the reference's block pool alone, which is a literal one too,
and the draw of the drafts that are kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, event, example, given, settings

from tests.vidur_pd.test_vllm_v1_reference import HASH_BLOCK_TOKENS, ReferencePool, Sequence
from tests.vidur_pd.whole_runs import Scenario, WholeRun, scenarios
from vidur_pd._core import RunningIteration
from vidur_pd.scheduling import Drafts

Row = tuple[int, int, int]
"""(request, new tokens, KV tokens)"""
Step = tuple[int, list[Row], list[int], int]
"""(begin [ps], rows, requests preempted since the step before, KV blocks in use at the begin)"""


@dataclass
class Tracked(Sequence):
    """A request as vLLM's scheduler sees it: ``output`` holds known tokens, ``placeholders`` counts unknown ones."""

    placeholders: int = 0
    spec: int = 0
    """Drafts to verify in its next step, as placeholders."""
    preemptions: int = 0
    arrived_ps: int = 0
    priority: int = 0
    token_ends_ps: list[int] = field(default_factory=list)

    @property
    def is_ended(self) -> bool:
        return len(self.output) == self.output_limit

    @property
    def last(self) -> int:
        return len(self.prompt) + self.output_limit


@dataclass
class Batch:
    scheduled: list[tuple[Tracked, int]]
    samples: list[tuple[Tracked, int]]
    """With the drafts that each verifies."""
    rows: list[Row]
    preempted: list[int]
    cost_ps: int


class AsyncEngine:
    """The engine's loop. A step of n tokens takes 1000 + n ps, as in `WholeRun`; planning takes no time."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.pool = ReferencePool(scenario.usable_blocks + 1, scenario.block_tokens, scenario.caching)
        self.drafts = Drafts([0.6] * (scenario.drafts or 1), np.random.default_rng(0))
        self.running: list[Tracked] = []
        self.waiting: deque[Tracked] = deque()
        self.queue: deque[Batch] = deque()
        self.preempted: list[int] = []
        self.steps: list[Step] = []
        self.now_ps = self.end_ps = 0

    def serve(self, arrivals: list[tuple[int, Tracked]]) -> None:
        coming = deque(arrivals)
        while coming or self.waiting or self.running or self.queue:
            while coming and coming[0][0] <= self.now_ps:
                self.queue_up(coming.popleft()[1])
            if self.waiting or self.running:
                self.queue.append(self.schedule())
                if len(self.queue) == 1:
                    self.begin_first()
                    continue
            elif not self.queue:
                self.now_ps = max(self.now_ps, coming[0][0])
                continue
            if self.queue[0].scheduled:
                self.now_ps = self.end_ps
            self.update(self.queue.popleft())
            if self.queue:
                self.begin_first()

    def queue_up(self, sequence: Tracked, first: bool = False) -> None:
        """By priority the queue is a heap, and a victim goes where it belongs."""
        if first:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)
        if self.scenario.priorities is not None:
            self.waiting = deque(sorted(self.waiting, key=lambda one: (one.priority, one.arrived_ps, one.name)))

    def begin_first(self) -> None:
        """The oldest batch begins to run on the GPU, as nothing else runs there."""
        batch = self.queue[0]
        if batch.scheduled:
            self.end_ps = self.now_ps + batch.cost_ps
            used = self.scenario.usable_blocks - len(self.pool.queue)
            rows = [
                (name, new, sequence.computed if sequence in self.running else kv)
                for (name, new, kv), (sequence, _) in zip(batch.rows, batch.scheduled, strict=True)
            ]
            self.steps.append((self.now_ps, rows, batch.preempted, used))

    def chunk(self, sequence: Tracked, budget: int) -> int:
        new = len(sequence.tokens) + sequence.spec + sequence.placeholders - sequence.computed
        if 0 < self.scenario.threshold < new:
            new = self.scenario.threshold
        return min(new, budget)

    def slots(self, sequence: Tracked, new: int) -> int:
        return self.with_lookahead(sequence.computed + new)

    def with_lookahead(self, tokens: int) -> int:
        return max(tokens, min(tokens + self.scenario.lookahead, self.scenario.max_model_len))

    def allocate(self, sequence: Tracked, new: int, hits: list[int]) -> None:
        known = min(sequence.computed + new, len(sequence.tokens))
        self.pool.give(sequence, self.slots(sequence, new), hits, known)

    def hits(self, sequence: Tracked) -> list[int]:
        found = self.pool.hits(sequence)
        return found[:-1] if self.scenario.drops_last_hit else found

    def schedule(self) -> Batch:
        budget = self.scenario.budget
        scheduled, has_preempted = self.continue_running(budget)
        budget -= sum(new for _, new in scheduled)
        if not has_preempted:
            self.admit(scheduled, budget)
        samples = []
        for sequence, new in scheduled:
            sequence.computed += new
            verified = sequence.computed - len(sequence.tokens) - sequence.placeholders
            sequence.spec = 0
            if verified >= 0:
                sequence.placeholders += 1 + verified
                sequence.spec = self.scenario.drafts
                samples.append((sequence, verified))
        preempted = self.preempted
        if scheduled:
            self.preempted = []
        rows = [(sequence.name, new, sequence.computed) for sequence, new in scheduled]
        return Batch(scheduled, samples, rows, preempted, 1000 + sum(new for _, new in scheduled))

    def continue_running(self, budget: int) -> tuple[list[tuple[Tracked, int]], bool]:
        scheduled: list[tuple[Tracked, int]] = []
        has_preempted, position = False, 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            position += 1
            if sequence.placeholders > 0 and sequence.computed + 2 - sequence.placeholders >= sequence.last:
                continue
            new = self.chunk(sequence, budget)
            if new == 0:
                continue
            while self.pool.needed(sequence, self.slots(sequence, new), []) > len(self.pool.queue):
                victim = self.running[-1]
                if self.scenario.priorities is not None:
                    victim = max(self.running, key=lambda one: (one.priority, one.arrived_ps))
                self.running.remove(victim)
                for entry in [entry for entry in scheduled if entry[0] is victim]:
                    scheduled.remove(entry)
                    budget += entry[1]
                    position -= 1
                self.pool.take_back(victim)
                victim.computed = victim.spec = 0
                victim.preemptions += 1
                self.queue_up(victim, first=True)
                self.preempted.append(victim.name)
                has_preempted = True
                if victim is sequence:
                    return scheduled, True
            self.allocate(sequence, new, [])
            scheduled.append((sequence, new))
            budget -= new
        return scheduled, has_preempted

    def admit(self, scheduled: list[tuple[Tracked, int]], budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.scenario.max_seqs:
            sequence = self.waiting[0]
            hits = self.hits(sequence)
            spared = self.scenario.watermark_blocks if self.running else 0
            past = len(hits) * self.pool.size
            rest = len(sequence.tokens) - past
            chunk = min(rest, self.scenario.threshold or rest, budget)
            most = max(len(sequence.tokens), self.with_lookahead(past + chunk))
            if self.pool.needed(sequence, most, hits) + spared > len(self.pool.queue):
                break
            if not self.scenario.chunks_prompts and min(rest, self.scenario.threshold or rest) > budget:
                break
            self.waiting.popleft()
            sequence.computed = past
            if sequence.first_hits is None:
                sequence.first_hits = sequence.computed
            new = self.chunk(sequence, budget)
            self.allocate(sequence, new, hits)
            self.running.append(sequence)
            scheduled.append((sequence, new))
            budget -= new

    def update(self, batch: Batch) -> None:
        live = [(sequence, verified) for sequence, verified in batch.samples if not sequence.is_ended]
        kept = self.drafts.accepted(np.array([verified for _, verified in live], dtype=np.int64))
        for (sequence, verified), accepted in zip(
            live, kept.tolist() if self.scenario.drafts else [0] * len(live), strict=True
        ):
            if sequence.computed > 0:
                sequence.computed -= verified - accepted
            sequence.placeholders -= verified - accepted
            for _ in range(min(1 + accepted, sequence.output_limit - len(sequence.output))):
                sequence.output.append((sequence.name, "output", len(sequence.output)))
                sequence.token_ends_ps.append(self.now_ps)
                sequence.placeholders -= 1
            if sequence in self.running:
                self.pool.note(sequence, sequence.computed - sequence.placeholders)
            if sequence.is_ended:
                self.pool.take_back(sequence)
        self.running = [sequence for sequence in self.running if not sequence.is_ended]
        self.waiting = deque(sequence for sequence in self.waiting if not sequence.is_ended)


class SteppedRun(WholeRun):
    """Notes the steps of its reference."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.steps: list[Step] = []

    def _price(self, iteration: RunningIteration) -> None:
        super()._price(iteration)
        rows, _, preempted = self.batches[-1]
        self.steps.append((self.loop.now_ps, [row[:3] for row in rows], preempted, self.state.used_blocks))


def tracked(scenario: Scenario) -> list[tuple[int, Tracked]]:
    """(arrival, request) of each; prompts are equal as far as their content ids are."""
    made = []
    for name, (at_ps, prompt, output, ids) in enumerate(scenario.requests):
        chained = [ids[: i // HASH_BLOCK_TOKENS + 1] if ids else name for i in range(prompt)]
        priority = 0 if scenario.priorities is None else scenario.priorities[name]
        tokens = tuple((chain, i) for i, chain in enumerate(chained))
        made.append((at_ps, Tracked(name, tokens, output, arrived_ps=at_ps, priority=priority)))
    return made


RECOMPUTED_IN_FLIGHT = Scenario(
    role="mixed",
    caching=True,
    block_tokens=4,
    usable_blocks=18,
    budget=12,
    max_seqs=4,
    threshold=0,
    stages=1,
    drafts=0,
    plans_ahead=True,
    requests=(
        (60000, 12, 14, (0, 1)),
        (60700, 23, 11, (1, 0, 0, 0)),
        (60700, 3, 8, (1,)),
        (60700, 2, 8, (1,)),
        (60700, 1, 1, (1,)),
        (60700, 1, 1, (1,)),
    ),
)
"""The fourth request is preempted while a batch recomputes its answer, and hits those tokens when it runs again."""


@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios(plans_ahead=True))
@example(RECOMPUTED_IN_FLIGHT)
def test_every_step_is_that_of_two_batches_in_flight(scenario: Scenario) -> None:
    compare(replace(scenario, role="mixed"))


@pytest.mark.parametrize("drafts", [1, 3])
def test_so_is_every_step_with_drafts(drafts: int) -> None:
    @settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
    @given(scenarios(drafts=drafts, plans_ahead=True))
    def check(scenario: Scenario) -> None:
        compare(replace(scenario, role="mixed"))

    check()


def compare(scenario: Scenario) -> None:
    reference, arrivals = AsyncEngine(scenario), tracked(scenario)
    reference.serve(arrivals)
    run = SteppedRun(scenario)
    run.serve()
    assert run.steps == reference.steps
    for request, (_, expected) in zip(run.requests, arrivals, strict=True):
        ends_ps = expected.token_ends_ps
        assert (request.first_token_ps, request.last_token_ps) == (ends_ps[0], ends_ps[-1])
        assert (request.preemptions, request.cached_tokens) == (expected.preemptions, expected.first_hits)
    assert run.left_undone() == []
    event(f"preemptions {'yes' if any(step[2] for step in run.steps) else 'no'}")
    event(f"hits {'yes' if any(request.cached_tokens for request in run.requests) else 'no'}")
