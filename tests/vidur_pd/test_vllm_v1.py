"""The rules of vLLM V1 one by one, traced by hand. KV blocks have 4 tokens unless stated."""

from __future__ import annotations

import pytest

from boundary.errors import InputError
from tests.vidur_pd.one_rank import OneRank
from tests.vidur_pd.vllm_v1_steps import add, new_tokens, requests_of, scheduler_of, step
from vidur_pd.scheduling import Role
from vidur_pd.scheduling.kv_blocks import PrefixCachingBlockPool
from vidur_pd.workload.request import Request, RequestStatus


def test_the_last_prompt_token_yields_the_first_output_token() -> None:
    """P = 10, D = 3: one prefill iteration, two decode iterations, KV of 10 + 3 − 1 = 12 tokens in 3 blocks."""
    scheduler = scheduler_of()
    (request,) = add(scheduler, (10, 3))
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.kv_tokens.tolist(), batch.logit_rows) == ({"a": 10}, [10], 1)
    assert (batch.prefill_tokens, batch.decode_tokens, batch.admitted) == (10, 0, [request])
    outcome = scheduler.finish(batch)
    assert (outcome.produced, outcome.prefill_done, outcome.finished) == ([request], [request], [])
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.kv_tokens.tolist()) == ({"a": 1}, [11])
    assert (batch.prefill_tokens, batch.decode_tokens, batch.admitted) == (0, 1, [])
    outcome = scheduler.finish(batch)
    assert (outcome.produced, outcome.prefill_done, outcome.finished) == ([request], [], [])
    batch = scheduler.schedule()
    assert batch is not None
    assert (batch.kv_tokens.tolist(), scheduler.used_blocks) == ([12], 3)
    assert scheduler.finish(batch).finished == [request]
    assert (request.computed_tokens, request.generated_tokens, request.status) == (12, 3, RequestStatus.COMPLETED)
    assert (scheduler.used_blocks, scheduler.has_work, scheduler.schedule()) == (0, False, None)


def test_a_single_output_token_ends_the_request_with_its_prefill() -> None:
    scheduler = scheduler_of()
    (request,) = add(scheduler, (10, 1))
    batch = scheduler.schedule()
    assert batch is not None
    outcome = scheduler.finish(batch)
    assert outcome.produced == outcome.prefill_done == outcome.finished == [request]
    assert (request.computed_tokens, scheduler.used_blocks) == (10, 0)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_only_the_last_yields_a_token() -> None:
    scheduler = scheduler_of(budget=8)
    (request,) = add(scheduler, (20, 2))
    for chunk, kv, rows in [(8, 8, 0), (8, 16, 0), (4, 20, 1)]:
        batch = scheduler.schedule()
        assert batch is not None
        assert (new_tokens(batch), batch.kv_tokens.tolist(), batch.logit_rows) == ({"a": chunk}, [kv], rows)
        assert scheduler.finish(batch).produced == [request] * rows
    assert request.generated_tokens == 1


def test_a_chunk_of_one_prompt_token_is_prefill_and_not_a_decode() -> None:
    """P = 9 in chunks of 8 and 1, then a decode; and P = 1."""
    scheduler = scheduler_of(budget=8)
    add(scheduler, (9, 2))
    assert [composition(scheduler) for _ in range(3)] == [(8, 0), (1, 0), (0, 1)]
    add(scheduler, (1, 2))
    assert [composition(scheduler) for _ in range(2)] == [(1, 0), (0, 1)]


def test_the_token_that_a_cached_prefix_leaves_is_prefill() -> None:
    """Of P = 9 two blocks of 4 are cached from an equal prompt."""
    pool = PrefixCachingBlockPool(100, 4, 4)
    scheduler = OneRank(pool, max_batched_tokens=100, max_seqs=8, max_model_len=500)
    for index in range(2):
        scheduler.add(Request(index, f"r{index}", 9, 2, 0, [1, 2, 3]))
        assert [composition(scheduler) for _ in range(2)] == [(9 if index == 0 else 1, 0), (0, 1)]


def composition(scheduler: OneRank) -> tuple[int, int]:
    """Prefill and decode tokens of the next iteration."""
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.finish(batch)
    return batch.prefill_tokens, batch.decode_tokens


def test_running_requests_come_first_and_a_waiting_prompt_gets_the_rest_of_the_budget() -> None:
    """Budget 10: a's prompt takes 6 and b's 4 of 9; then a decodes (1), b ends its prompt (5), c starts with 4 of 7."""
    scheduler = scheduler_of(budget=10)
    add(scheduler, (6, 9), (9, 9), (7, 9))
    assert step(scheduler) == {"a": 6, "b": 4}
    assert step(scheduler) == {"a": 1, "b": 5, "c": 4}
    assert step(scheduler) == {"a": 1, "b": 1, "c": 3}


def test_the_long_prompt_threshold_caps_each_chunk_so_that_others_join_the_step() -> None:
    scheduler = scheduler_of(budget=10, threshold=4)
    add(scheduler, (9, 2), (3, 2), (5, 2))
    assert step(scheduler) == {"a": 4, "b": 3, "c": 3}
    assert step(scheduler) == {"a": 4, "b": 1, "c": 2}
    assert step(scheduler) == {"a": 1, "c": 1}


def test_decodes_beyond_the_budget_wait_in_order_of_admission() -> None:
    """Budget 2, three running: the third starves until an earlier one ends, because a step serves its list in order."""
    scheduler = scheduler_of(budget=2)
    add(scheduler, (1, 3), (1, 3), (1, 3))
    assert step(scheduler) == {"a": 1, "b": 1}
    assert step(scheduler) == {"a": 1, "b": 1}
    assert step(scheduler) == {"a": 1, "b": 1}
    assert step(scheduler) == {"c": 1}


def test_no_more_than_max_seqs_requests_run() -> None:
    scheduler = scheduler_of(seqs=2)
    add(scheduler, (4, 2), (4, 3), (4, 1))
    assert step(scheduler) == {"a": 4, "b": 4}
    assert (scheduler.running_requests, scheduler.waiting_requests) == (2, 1)
    assert step(scheduler) == {"a": 1, "b": 1}
    assert step(scheduler) == {"b": 1, "c": 4}


def test_a_waiting_head_that_does_not_fit_blocks_those_behind_it() -> None:
    """10 blocks: a holds 2, so the 9 blocks of b do not fit and c, which would fit, waits behind it."""
    scheduler = scheduler_of(10)
    add(scheduler, (8, 2), (36, 1), (4, 1))
    assert step(scheduler) == {"a": 8}
    assert step(scheduler) == {"a": 1}
    assert step(scheduler) == {"b": 36, "c": 4}


def test_a_prompt_is_admitted_only_if_all_of_it_fits_now_though_only_its_first_chunk_is_taken() -> None:
    """10 blocks, budget 8. When a has its 20 tokens in 5 blocks, 4 tokens of the step are left for b.

    One block would do for them, but b's 32 tokens need 8, so b waits until a ends.
    """
    scheduler = scheduler_of(10, budget=8)
    add(scheduler, (20, 4), (32, 1))
    assert step(scheduler) == {"a": 8}
    assert step(scheduler) == {"a": 8}
    assert step(scheduler) == {"a": 4}
    assert scheduler.used_blocks == 5
    assert step(scheduler) == {"a": 1}
    assert step(scheduler) == {"a": 1}
    assert step(scheduler) == {"a": 1}
    assert step(scheduler) == {"b": 8}


def test_the_whole_sequence_check_does_not_reserve() -> None:
    """10 blocks, chunks of 4: a (24 tokens, 6 blocks) and b (28, 7 blocks) both pass the check in the first step.

    They take one block each per step; in step 6 a takes the 11th and b, at the tail, is preempted.
    """
    scheduler = scheduler_of(10, threshold=4)
    a, b = add(scheduler, (24, 2), (28, 2))
    for _ in range(5):
        assert step(scheduler) == {"a": 4, "b": 4}
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.preempted, b.preemptions, a.preemptions) == ({"a": 4}, [b], 1, 0)
    assert scheduler.used_blocks == 6


def test_the_tail_of_the_running_list_is_preempted_recomputed_and_keeps_its_tokens() -> None:
    """4 blocks. a and b (7 + 4 tokens) hold 2 blocks each and need a third when their KV passes 8 tokens.

    Iterations: prefill (KV 7), decode (8), then a needs the block: b, with 2 tokens generated, loses its blocks. a ends
    after 4 tokens; b computes 7 + 2 = 9 tokens again, which yields its third token.
    """
    scheduler = scheduler_of(4)
    a, b = add(scheduler, (7, 4), (7, 4))
    assert step(scheduler) == {"a": 7, "b": 7}
    assert step(scheduler) == {"a": 1, "b": 1}
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.preempted) == ({"a": 1}, [b])
    assert (b.computed_tokens, b.generated_tokens, b.status) == (0, 2, RequestStatus.WAITING)
    assert (scheduler.waiting_requests, b.sequence_tokens) == (1, 9)
    scheduler.finish(batch)
    assert step(scheduler) == {"a": 1}
    assert a.status is RequestStatus.COMPLETED
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.admitted) == ({"b": 9}, [b])
    outcome = scheduler.finish(batch)
    assert (outcome.produced, outcome.prefill_done, b.generated_tokens) == ([b], [], 3)
    assert step(scheduler) == {"b": 1}
    assert (b.computed_tokens, b.preemptions, b.prompt_tokens, b.output_tokens) == (10, 1, 7, 4)
    assert scheduler.used_blocks == 0


def test_a_step_that_preempts_admits_nothing_even_if_blocks_are_left() -> None:
    """6 blocks. a (3 tokens), b (8) and c (9) hold 1 + 2 + 3; d (4 tokens, 1 block) waits.

    b's ninth token needs a block, so c goes: 6 − 4 = 2 blocks are left, which d does not get because the step has
    preempted. In the next step a's fifth token takes one, and c, at the head of the queue, needs 10 tokens, 3 blocks.
    """
    scheduler = scheduler_of(6)
    *_, c = add(scheduler, (3, 9), (8, 9), (9, 2))
    assert step(scheduler) == {"a": 3, "b": 8, "c": 9}
    d = Request(3, "d", 4, 1, 0)
    scheduler.add(d)
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.preempted, scheduler.used_blocks) == ({"a": 1, "b": 1}, [c], 4)
    scheduler.finish(batch)
    assert step(scheduler) == {"a": 1, "b": 1}
    assert scheduler.waiting_requests == 2


def test_several_victims_go_tail_first_and_return_in_their_order() -> None:
    """6 blocks, chunks of 12: a (24 tokens) takes 3 blocks, b, c, d (4 tokens each) one each.

    a's second chunk needs 3 more: d, c, b go, in this order, and come back as b, c, d, before e. Each then computes its
    4 prompt tokens and 1 generated token, 2 blocks, so that no block is left for e.
    """
    scheduler = scheduler_of(6, threshold=12)
    a, b, c, d = add(scheduler, (24, 1), (4, 3), (4, 3), (4, 3))
    assert step(scheduler) == {"a": 12, "b": 4, "c": 4, "d": 4}
    scheduler.add(Request(4, "e", 1, 1, 0))
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.preempted) == ({"a": 12}, [d, c, b])
    assert scheduler.finish(batch).finished == [a]
    assert step(scheduler) == {"b": 5, "c": 5, "d": 5}


def test_a_request_at_the_tail_that_lacks_a_block_preempts_itself() -> None:
    """4 blocks: a (5 tokens) and b (8 tokens) hold 2 each; b's ninth token finds none and nobody behind it."""
    scheduler = scheduler_of(4)
    _, b = add(scheduler, (5, 3), (8, 3))
    assert step(scheduler) == {"a": 5, "b": 8}
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.preempted, scheduler.used_blocks) == ({"a": 1}, [b], 2)


def test_a_request_sits_in_one_micro_batch_at_a_time() -> None:
    """With two pipeline stages, a's next token waits for its micro-batch; b fills the other."""
    scheduler = scheduler_of()
    a, b = requests_of((4, 3), (4, 3))
    scheduler.add(a)
    first = scheduler.schedule()
    scheduler.add(b)
    second = scheduler.schedule()
    assert first is not None
    assert second is not None
    assert (new_tokens(first), new_tokens(second), scheduler.schedule()) == ({"a": 4}, {"b": 4}, None)
    scheduler.finish(first)
    third = scheduler.schedule()
    assert third is not None
    assert (new_tokens(third), scheduler.schedule()) == ({"a": 1}, None)
    scheduler.finish(second)
    assert step(scheduler) == {"b": 1}


def test_a_request_in_flight_is_not_preempted() -> None:
    """4 blocks: a and b (8 tokens) hold 2 each, b is under way: a's ninth token costs a its own blocks, not b's."""
    scheduler = scheduler_of(4)
    a, b = requests_of((8, 3), (8, 3))
    scheduler.add(a)
    first = scheduler.schedule()
    scheduler.add(b)
    second = scheduler.schedule()
    assert first is not None
    assert second is not None
    scheduler.finish(first)
    assert scheduler.schedule() is None
    assert (a.preemptions, b.preemptions) == (1, 0)
    scheduler.finish(second)
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.preempted) == ({"b": 1}, [a])


def _caching(usable_blocks: int = 100, **limits: int) -> OneRank:
    pool = PrefixCachingBlockPool(usable_blocks + 1)
    defaults = {"max_batched_tokens": 1000, "max_seqs": 8, "max_model_len": 5000}
    return OneRank(pool, **(defaults | limits))


def test_an_equal_prompt_admitted_in_the_same_step_hits_already() -> None:
    """Blocks of 16 are registered when scheduled: of two equal prompts of 32 tokens the second computes 16."""
    scheduler = _caching()
    a, b = Request(0, "a", 32, 2, 0, (1,)), Request(1, "b", 32, 2, 0, (1,))
    scheduler.add(a)
    scheduler.add(b)
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.kv_tokens.tolist()) == ({"a": 32, "b": 16}, [32, 32])
    assert (a.cached_tokens, b.cached_tokens, scheduler.used_blocks) == (0, 16, 3)


def test_each_chunk_registers_its_full_blocks_for_later_requests() -> None:
    """Budget 40: a's first chunk fills 2 blocks of 16 and half of the third; its second chunk completes all 5 of 80.

    In step 2 the budget of 40 is a's again; in step 3 b, equal to a, hits 4 blocks (64 of its first 79 tokens).
    """
    scheduler = _caching(max_batched_tokens=40)
    scheduler.add(Request(0, "a", 80, 3, 0, (1,)))
    b = Request(1, "b", 80, 2, 0, (1,))
    scheduler.add(b)
    assert [step(scheduler) for _ in range(3)] == [{"a": 40}, {"a": 40}, {"a": 1, "b": 16}]
    assert b.cached_tokens == 64


def test_a_preempted_request_hits_its_own_blocks_and_its_first_hits_stay_on_record() -> None:
    """6 blocks of 16: a and b (47 tokens) hold 3 each; the 49th token needs a fourth: b goes with 2 tokens generated.

    b's 48 computed tokens are 3 full blocks, cached; a takes one of the free ones, the tail of b's. 2 blocks are too
    few for b until a has ended; then it resumes with 49 tokens, of which 32 are hit. On record stay the 0 hits of its
    first admission.
    """
    scheduler = _caching(6)
    a, b = Request(0, "a", 47, 4, 0), Request(1, "b", 47, 4, 0)
    scheduler.add(a)
    scheduler.add(b)
    steps = [step(scheduler) for _ in range(5)]
    assert steps == [{"a": 47, "b": 47}, {"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {"b": 17}]
    assert (b.preemptions, b.cached_tokens) == (1, 0)


@pytest.mark.parametrize(
    ("role", "lengths", "reason"),
    [
        ("mixed", (30, 11), None),
        ("mixed", (30, 12), "its 11 KV blocks exceed the 10 of the pool"),
        ("prefill", (40, 400), None),
        ("prefill", (41, 1), "its 11 KV blocks exceed the 10 of the pool"),
        ("decode", (100, 401), "501 prompt and output tokens exceed the context window of 500"),
    ],
)
def test_a_request_that_can_never_end_here_is_refused_with_a_reason(
    role: Role, lengths: tuple[int, int], reason: str | None
) -> None:
    """10 blocks of 4 tokens: P + D − 1 ≤ 40, on a prefill rank P ≤ 40."""
    scheduler = scheduler_of(10, role=role)
    (request,) = requests_of(lengths)
    assert scheduler.rejection_reason(request) == reason


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(InputError, match=r"engine\.max_seqs: found 0, expected at least 1"):
        scheduler_of(seqs=0)
    with pytest.raises(InputError, match=r"engine\.long_prefill_token_threshold: found -1, expected at least 0"):
        scheduler_of(threshold=-1)
