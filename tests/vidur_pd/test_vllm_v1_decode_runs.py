"""Runs of decode iterations taken at once against the same iterations one by one."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from vidur_pd.kv import CountingBlockPool, PrefixCachingBlockPool
from vidur_pd.request import Request
from vidur_pd.scheduling import VllmV1Scheduler


@dataclass(frozen=True)
class Setting:
    is_caching: bool
    usable_blocks: int
    budget: int
    max_seqs: int
    lengths: list[tuple[int, int]]

    def build(self) -> VllmV1Scheduler:
        sizes = (self.usable_blocks + 1, 4)
        scheduler = VllmV1Scheduler(
            PrefixCachingBlockPool(*sizes, hash_block_tokens=8) if self.is_caching else CountingBlockPool(*sizes),
            max_batched_tokens=self.budget,
            max_seqs=self.max_seqs,
            max_model_len=1000,
        )
        for index, (prompt, output) in enumerate(self.lengths):
            scheduler.add(Request(index, str(index), prompt, output, 0, tuple(range(-(-prompt // 8)))))
        return scheduler


@st.composite
def settings_of_runs(draw: st.DrawFn) -> Setting:
    lengths = draw(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=1, max_size=8))
    largest = max(-(-(prompt + output - 1) // 4) for prompt, output in lengths)
    return Setting(
        is_caching=draw(st.booleans()),
        usable_blocks=largest + draw(st.integers(0, 2 * largest)),
        budget=draw(st.integers(3, 40)),
        max_seqs=draw(st.integers(1, 6)),
        lengths=lengths,
    )


def _single(scheduler: VllmV1Scheduler) -> tuple[object, ...]:
    """One iteration: what was computed, and what came of it."""
    batch = scheduler.schedule()
    assert batch is not None
    outcome = scheduler.finish(batch)
    return (
        [(request.index, request.generated_tokens, request.computed_tokens) for request in batch.requests],
        batch.kv_tokens.tolist(),
        [request.index for request in batch.admitted],
        [request.index for request in batch.preempted],
        [request.index for request in outcome.produced],
        [request.index for request in outcome.finished],
        (scheduler.used_blocks, scheduler.waiting_requests, scheduler.running_requests),
    )


@settings(max_examples=300, deadline=None)
@given(settings_of_runs(), st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_a_run_equals_its_iterations_one_by_one_and_ends_where_something_changes(
    setting: Setting, choices: list[int]
) -> None:
    fast, slow = setting.build(), setting.build()
    turn = 0
    while slow.has_work:
        longest = fast.steady_decode_steps()
        steps = longest if turn % 2 else choices[turn % len(choices)] % (longest + 1)
        turn += 1
        for step in range(steps):
            kv_tokens = fast.decode_kv_tokens() + step
            computed, seen, admitted, preempted, produced, finished, _ = _single(slow)
            assert seen == kv_tokens.tolist()
            assert [index for index, *_ in computed] == produced
            assert admitted == preempted == finished == []
        if steps:
            outcome = fast.advance_decode(steps)
            assert [request.index for request in outcome.produced] == produced
            assert [(r.index, r.generated_tokens, r.computed_tokens) for r in outcome.produced] == computed
        assert (fast.used_blocks, fast.running_requests) == (slow.used_blocks, slow.running_requests)
        if steps == longest > 0:
            assert fast.steady_decode_steps() == 0
        single = _single(fast)
        assert single == _single(slow)
        if steps == longest > 0:
            assert single[3] or single[5], "the run could have been longer"
    assert not fast.has_work
    assert fast.used_blocks == slow.used_blocks == 0


def _decoding(usable_blocks: int, *lengths: tuple[int, int], **limits: int) -> VllmV1Scheduler:
    defaults = {"max_batched_tokens": 100, "max_seqs": 8, "max_model_len": 1000}
    scheduler = VllmV1Scheduler(CountingBlockPool(usable_blocks + 1, 4), **(defaults | limits))
    for index, (prompt, output) in enumerate(lengths):
        scheduler.add(Request(index, str(index), prompt, output, 0))
    return scheduler


def test_a_run_stops_before_the_iteration_in_which_a_request_ends() -> None:
    """After the prefills, 4 and 9 tokens are left: 3 iterations change nothing, the fourth ends the first request."""
    scheduler = _decoding(100, (5, 5), (6, 10))
    _single(scheduler)
    assert scheduler.steady_decode_steps() == 3
    assert scheduler.decode_kv_tokens().tolist() == [6, 7]
    scheduler.advance_decode(3)
    assert scheduler.steady_decode_steps() == 0
    _single(scheduler)
    assert scheduler.steady_decode_steps() == 9 - 4 - 1


def test_a_run_stops_before_the_iteration_that_lacks_a_block() -> None:
    """5 blocks of 4. KV of 5 and 6 tokens fills 4 of them; the fifth serves the second request's ninth token, in the
    third iteration; the first request's ninth token, in the fourth, finds none: 3 iterations.
    """
    scheduler = _decoding(5, (5, 12), (6, 12))
    _single(scheduler)
    assert scheduler.steady_decode_steps() == 3
    scheduler.advance_decode(3)
    batch = scheduler.schedule()
    assert batch is not None
    assert [request.index for request in batch.preempted] == [1]


def test_there_is_no_run_while_a_waiting_request_could_be_admitted() -> None:
    scheduler = _decoding(100, (5, 50))
    _single(scheduler)
    assert scheduler.steady_decode_steps() == 48
    scheduler.add(Request(1, "1", 4, 4, 0))
    assert scheduler.steady_decode_steps() == 0


def test_waiting_requests_that_cannot_be_admitted_do_not_prevent_a_run() -> None:
    """Because the running list is full; because 12 blocks do not fit into 11 − 2; because the budget is used up."""
    for scheduler in (
        _decoding(100, (5, 20), (4, 4), max_seqs=1),
        _decoding(12, (5, 20), (48, 1)),
        _decoding(100, (1, 20), (4, 4), max_batched_tokens=1),
    ):
        _single(scheduler)
        assert (scheduler.steady_decode_steps(), scheduler.waiting_requests) == (18, 1)


def test_requests_added_during_a_run_join_the_iteration_after_it() -> None:
    scheduler = _decoding(100, (5, 50))
    _single(scheduler)
    late = Request(1, "1", 4, 4, 0)
    scheduler.add(late)
    (request,) = scheduler.advance_decode(10).produced
    assert (request.generated_tokens, late.computed_tokens) == (11, 0)
    batch = scheduler.schedule()
    assert batch is not None
    assert batch.requests == [request, late]


def test_an_idle_rank_advances_without_effect() -> None:
    scheduler = _decoding(10)
    assert (scheduler.steady_decode_steps(), scheduler.decode_kv_tokens().tolist()) == (0, [])
    assert scheduler.advance_decode(7).produced == []
