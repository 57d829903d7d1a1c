"""The scheduler against a slow, literal reading of vLLM V1's rules that shares neither code nor data structures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.vidur_pd.one_rank import OneRank
from vidur_pd.scheduling import Role, ScheduledBatch
from vidur_pd.scheduling.kv_blocks import CountingBlockPool, PrefixCachingBlockPool
from vidur_pd.workload.request import Request

HASH_BLOCK_TOKENS = 6


@dataclass
class Sequence:
    """One request as real tokens, so that block contents can be compared literally."""

    name: int
    prompt: tuple[object, ...]
    output_limit: int
    output: list[object] = field(default_factory=list)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    in_flight: bool = False
    under_way: int = 0
    """Tokens of the step under way."""
    to_compute: int = 0
    """Tokens that it had when it was admitted, unless its KV came from elsewhere."""
    first_hits: int | None = None

    @property
    def tokens(self) -> tuple[object, ...]:
        return self.prompt + tuple(self.output)


class ReferencePool:
    """A list of free block ids and, per block, the tokens up to its end if they are known to be there."""

    def __init__(self, num_blocks: int, block_tokens: int, caching: bool) -> None:
        self.size, self.caching = block_tokens, caching
        self.queue = list(range(1, num_blocks))
        self.content: dict[int, tuple[object, ...]] = {}
        self.age: dict[int, int] = {}
        self.clock = count()
        self.users: dict[int, int] = dict.fromkeys(range(1, num_blocks), 0)

    def hits(self, sequence: Sequence) -> list[int]:
        found: list[int] = []
        while self.caching and (len(found) + 1) * self.size < len(sequence.tokens):
            wanted = sequence.tokens[: (len(found) + 1) * self.size]
            same = [block for block, content in self.content.items() if content == wanted]
            if not same:
                break
            found.append(min(same, key=lambda block: self.age[block]))
        return found

    def needed(self, sequence: Sequence, tokens: int, hits: list[int]) -> int:
        new = -(-tokens // self.size) - len(sequence.blocks) - len(hits)
        return max(0, new) + sum(self.users[block] == 0 for block in hits)

    def give(self, sequence: Sequence, tokens: int, hits: list[int], known: int) -> None:
        for block in hits:
            if self.users[block] == 0:
                self.queue.remove(block)
            self.users[block] += 1
            sequence.blocks.append(block)
        while len(sequence.blocks) * self.size < tokens:
            block = self.queue.pop(0)
            self.content.pop(block, None)
            self.users[block] = 1
            sequence.blocks.append(block)
        self.note(sequence, known)

    def note(self, sequence: Sequence, known: int) -> None:
        for position in range(known // self.size if self.caching else 0):
            block = sequence.blocks[position]
            if block not in self.content:
                self.content[block] = sequence.tokens[: (position + 1) * self.size]
                self.age[block] = next(self.clock)

    def take_back(self, sequence: Sequence) -> None:
        for block in reversed(sequence.blocks):
            self.users[block] -= 1
            if self.users[block] == 0 and block in self.content:
                self.queue.append(block)
            elif self.users[block] == 0:
                self.queue.insert(0, block)
        sequence.blocks = []


class ReferenceScheduler:
    """One request after the other, as the engine does it."""

    def __init__(self, pool: ReferencePool, role: Role, budget: int, max_seqs: int, threshold: int) -> None:
        self.pool, self.role, self.budget, self.max_seqs, self.threshold = pool, role, budget, max_seqs, threshold
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.remote: deque[Sequence] = deque()
        self.loading: list[Sequence] = []
        self.arrived: deque[Sequence] = deque()

    def chunk(self, sequence: Sequence, budget: int) -> int:
        new = len(sequence.tokens) - sequence.computed
        if 0 < self.threshold < new:
            new = self.threshold
        return min(new, budget)

    def back_to_queue(self, sequence: Sequence) -> None:
        self.pool.take_back(sequence)
        sequence.computed = 0
        self.waiting.appendleft(sequence)

    def step(self) -> tuple[list[tuple[Sequence, int]], list[Sequence]]:
        budget, preempted, batch = self.budget, [], []
        for sequence in list(self.running):
            if sequence.in_flight or sequence in preempted or budget == 0:
                continue
            new = self.chunk(sequence, budget)
            while self.pool.needed(sequence, sequence.computed + new, []) > len(self.pool.queue):
                victim = [other for other in self.running if not other.in_flight][-1]
                self.running.remove(victim)
                self.back_to_queue(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            if sequence in preempted:
                break
            self.pool.give(sequence, sequence.computed + new, [], sequence.computed + new)
            budget -= new
            batch.append((sequence, new))
        while not preempted and budget > 0 and len(self.running) < self.max_seqs and (self.arrived or self.waiting):
            if self.arrived:
                sequence, hits = self.arrived[0], []
            else:
                sequence = self.waiting[0]
                hits = self.pool.hits(sequence)
            if self.pool.needed(sequence, len(sequence.tokens), hits) > len(self.pool.queue):
                if self.arrived and not self.running and not self.loading:
                    self.back_to_queue(self.arrived.pop())
                    continue
                break
            sequence.to_compute = 0 if self.arrived else len(sequence.tokens)
            (self.arrived or self.waiting).popleft()
            if not sequence.computed:
                sequence.computed = len(hits) * self.pool.size
                if sequence.first_hits is None:
                    sequence.first_hits = sequence.computed
            new = self.chunk(sequence, budget)
            self.pool.give(sequence, sequence.computed + new, hits, sequence.computed + new)
            self.running.append(sequence)
            budget -= new
            batch.append((sequence, new))
        for sequence, new in batch:
            sequence.computed += new
            sequence.in_flight, sequence.under_way = True, new
        return batch, preempted

    def schedule(self) -> list[tuple[Sequence, int]]:
        batch, preempted = self.step()
        return self.step()[0] if preempted and not batch else batch

    def finish(self, batch: list[tuple[Sequence, int]]) -> list[Sequence]:
        finished = []
        for sequence, _ in batch:
            sequence.in_flight, sequence.under_way = False, 0
            if sequence.computed == len(sequence.tokens):
                sequence.output.append((sequence.name, "output", len(sequence.output)))
                if len(sequence.output) == sequence.output_limit or self.role == "prefill":
                    finished.append(sequence)
                    self.running.remove(sequence)
                    if self.role != "prefill":
                        self.pool.take_back(sequence)
        return finished

    def load(self) -> tuple[int, int]:
        """4 · waiting + running requests; prompt tokens without an ended step, where decodes run with all prompts."""
        idle = [*self.waiting, *self.remote, *self.loading, *self.arrived]
        outstanding = sum(len(sequence.tokens) for sequence in self.waiting)
        for sequence in self.running:
            outstanding += max(0, sequence.to_compute - (sequence.computed - sequence.under_way))
        context = sum(len(sequence.prompt) for sequence in [*idle, *self.running])
        return 4 * len(idle) + len(self.running), outstanding + (context if self.role != "prefill" else 0)

    def admit_remote(self) -> list[Sequence]:
        started = []
        while self.remote and not self.waiting and len(self.running) < self.max_seqs:
            sequence = self.remote[0]
            promised = sum(self.pool.needed(other, len(other.tokens), []) for other in self.running)
            hits = self.pool.hits(sequence)
            if self.pool.needed(sequence, len(sequence.prompt), hits) > len(self.pool.queue) - promised:
                break
            self.pool.give(sequence, len(sequence.prompt), hits, 0)
            self.loading.append(self.remote.popleft())
            started.append(sequence)
        return started

    def remote_arrived(self, sequence: Sequence, computed: int) -> None:
        self.loading.remove(sequence)
        sequence.computed = computed
        sequence.output = [(sequence.name, "output", 0)] if computed == len(sequence.prompt) else []
        sequence.first_hits = 0
        self.pool.note(sequence, computed)
        self.arrived.append(sequence)


@dataclass(frozen=True)
class Scenario:
    role: Role
    caching: bool
    block_tokens: int
    num_blocks: int
    budget: int
    max_seqs: int
    threshold: int
    micro_batches: int
    requests: list[tuple[int, int, tuple[int, ...] | None]]
    script: list[int]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    block_tokens = draw(st.sampled_from([1, 2, 4]))
    requests = []
    for _ in range(draw(st.integers(2, 12))):
        prompt, output = draw(st.integers(1, 30)), draw(st.integers(1, 20))
        changed_at = draw(st.integers(0, 5))
        ids = tuple(int(block == changed_at) for block in range(-(-prompt // HASH_BLOCK_TOKENS)))
        requests.append((prompt, output, draw(st.sampled_from([ids, ids, ids, None]))))
    largest = max(-(-(prompt + output - 1) // block_tokens) for prompt, output, _ in requests)
    return Scenario(
        role=draw(st.sampled_from(["mixed", "mixed", "prefill", "decode"])),
        caching=draw(st.booleans()),
        block_tokens=block_tokens,
        num_blocks=largest + draw(st.integers(0, 2 * largest)) + 1,
        budget=draw(st.integers(4, 60)),
        max_seqs=draw(st.integers(1, 6)),
        threshold=draw(st.sampled_from([0, 0, 3, 7])),
        micro_batches=draw(st.sampled_from([1, 1, 2, 3])),
        requests=requests,
        script=draw(st.lists(st.integers(0, 9), min_size=8, max_size=40)),
    )


class Pair:
    """The scheduler and its reference, told the same and compared after every call."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        sizes = (scenario.num_blocks, scenario.block_tokens)
        self.pool = (
            PrefixCachingBlockPool(*sizes, hash_block_tokens=HASH_BLOCK_TOKENS)
            if scenario.caching
            else CountingBlockPool(*sizes)
        )
        self.scheduler = OneRank(
            self.pool,
            role=scenario.role,
            max_batched_tokens=scenario.budget,
            max_seqs=scenario.max_seqs,
            max_model_len=1000,
            long_prefill_token_threshold=scenario.threshold,
        )
        self.reference = ReferenceScheduler(
            ReferencePool(*sizes, caching=scenario.caching),
            scenario.role,
            scenario.budget,
            scenario.max_seqs,
            scenario.threshold,
        )
        self.both: dict[int, tuple[Request, Sequence]] = {}
        self.in_flight: deque[tuple[ScheduledBatch, list[tuple[Sequence, int]]]] = deque()
        self.loading: list[int] = []
        self.held: list[int] = []
        self.preemptions = 0

    def add(self, index: int) -> None:
        prompt, output, ids = self.scenario.requests[index]
        request = Request(index, f"r{index}", prompt, output, 0, ids)
        if self.scheduler.rejection_reason(request) is not None:
            return
        chained = [ids[: i // HASH_BLOCK_TOKENS + 1] if ids else index for i in range(prompt)]
        sequence = Sequence(index, tuple((chain, i) for i, chain in enumerate(chained)), output)
        self.both[index] = (request, sequence)
        if self.scenario.role == "decode":
            self.scheduler.add_remote(request)
            self.reference.remote.append(sequence)
        else:
            self.scheduler.add(request)
            self.reference.waiting.append(sequence)

    def schedule(self) -> bool:
        batch, expected = self.scheduler.schedule(), self.reference.schedule()
        found = [] if batch is None else list(zip(batch.requests, batch.new_tokens.tolist(), strict=True))
        assert [(request.index, new) for request, new in found] == [(sequence.name, new) for sequence, new in expected]
        if batch is None:
            return False
        assert batch.new_tokens.sum() == batch.prefill_tokens + batch.decode_tokens <= self.scenario.budget
        assert batch.kv_tokens.tolist() == [sequence.computed for sequence, _ in expected]
        assert batch.logit_rows == sum(sequence.computed == len(sequence.tokens) for sequence, _ in expected)
        self.preemptions += len(batch.preempted)
        self.in_flight.append((batch, expected))
        return True

    def finish(self) -> None:
        batch, expected = self.in_flight.popleft()
        sampled = [s.name for s, _ in expected if s.computed == len(s.tokens)]
        fresh = [s.name for s, _ in expected if s.computed == len(s.tokens) and not s.output]
        finished = [sequence.name for sequence in self.reference.finish(expected)]
        outcome = self.scheduler.finish(batch)
        assert [request.index for request in outcome.produced] == sampled
        assert [request.index for request in outcome.prefill_done] == fresh
        assert [request.index for request in outcome.finished] == finished
        if self.scenario.role == "prefill":
            self.held += finished

    def admit_remote(self) -> None:
        started = [request.index for request in self.scheduler.admit_remote()]
        assert started == [sequence.name for sequence in self.reference.admit_remote()]
        self.loading += started

    def arrive(self, choice: int) -> None:
        request, sequence = self.both[self.loading.pop(choice % len(self.loading))]
        computed = request.prompt_tokens - (request.output_tokens == 1 or choice % 2)
        self.scheduler.remote_arrived(request, computed)
        self.reference.remote_arrived(sequence, computed)

    def release(self) -> None:
        request, sequence = self.both[self.held.pop(0)]
        self.scheduler.release(request)
        self.reference.pool.take_back(sequence)

    def compare(self) -> None:
        assert self.scheduler.view.free_blocks == len(self.reference.pool.queue)
        requests = 4 * self.scheduler.waiting_requests + self.scheduler.running_requests
        assert (requests, self.scheduler.load_tokens) == self.reference.load()
        for request, sequence in self.both.values():
            assert request.computed_tokens == sequence.computed
            assert request.generated_tokens == len(sequence.output)
            assert request.cached_tokens == (sequence.first_hits or 0)


@settings(max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_every_step_is_that_of_the_literal_rules_and_everything_drains(scenario: Scenario) -> None:
    pair = Pair(scenario)
    to_add = deque(range(len(scenario.requests)))
    for turn in count():
        choice = scenario.script[turn % len(scenario.script)]
        if to_add and (choice < 3 or not pair.scheduler.waiting_requests + pair.scheduler.running_requests):
            pair.add(to_add.popleft())
        elif scenario.role == "decode" and choice == 3:
            pair.admit_remote()
        elif pair.loading and choice > 6:
            pair.arrive(choice)
        elif pair.held and choice > 7:
            pair.release()
        elif len(pair.in_flight) == scenario.micro_batches or not pair.schedule():
            if pair.in_flight:
                pair.finish()
            elif pair.held:
                pair.release()
            elif scenario.role == "decode":
                pair.admit_remote()
                if pair.loading:
                    pair.arrive(choice)
        pair.compare()
        requests = [request for request, _ in pair.both.values()]
        limit = 1 if scenario.role == "prefill" else None
        if not (to_add or pair.in_flight or pair.held) and all(
            request.generated_tokens == (limit or request.output_tokens) for request in requests
        ):
            break
        assert turn < 20_000, "no progress"
    assert pair.scheduler.used_blocks == 0
    assert pair.scheduler.waiting_requests == pair.scheduler.running_requests == pair.scheduler.load_tokens == 0
    event(f"{scenario.role}: preemptions {'yes' if pair.preemptions else 'no'}")
    event(f"hits {'yes' if any(request.cached_tokens for request in requests) else 'no'}")
