"""The rules of vLLM V1 one by one, traced by hand. KV blocks have 4 tokens unless stated."""

from __future__ import annotations

import pytest

from vidur_pd.errors import InputError
from vidur_pd.kv import CountingBlockPool, PrefixCachingBlockPool
from vidur_pd.request import Request, RequestStatus
from vidur_pd.scheduling import Role, ScheduledBatch, VllmV1Scheduler


def _scheduler(
    usable_blocks: int = 1000, *, budget: int = 100, seqs: int = 8, threshold: int = 0, role: Role = "mixed"
) -> VllmV1Scheduler:
    return VllmV1Scheduler(
        CountingBlockPool(usable_blocks + 1, 4),
        max_batched_tokens=budget,
        max_seqs=seqs,
        max_model_len=500,
        long_prefill_token_threshold=threshold,
        role=role,
    )


def _requests(*lengths: tuple[int, int]) -> list[Request]:
    return [Request(i, "abcdefgh"[i], prompt, output, 0) for i, (prompt, output) in enumerate(lengths)]


def _add(scheduler: VllmV1Scheduler, *lengths: tuple[int, int]) -> list[Request]:
    requests = _requests(*lengths)
    for request in requests:
        scheduler.add(request)
    return requests


def _show(batch: ScheduledBatch | None) -> dict[str, int]:
    assert batch is not None
    return {request.request_id: new for request, new in zip(batch.requests, batch.new_tokens.tolist(), strict=True)}


def _step(scheduler: VllmV1Scheduler) -> dict[str, int]:
    """Schedule and finish one iteration; returns the new tokens of each request."""
    batch = scheduler.schedule()
    shown = _show(batch)
    assert batch is not None
    scheduler.finish(batch)
    return shown


def test_the_last_prompt_token_yields_the_first_output_token() -> None:
    """P = 10, D = 3: one prefill iteration, two decode iterations, KV of 10 + 3 − 1 = 12 tokens in 3 blocks."""
    scheduler = _scheduler()
    (request,) = _add(scheduler, (10, 3))
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.kv_tokens.tolist(), batch.logit_rows) == ({"a": 10}, [10], 1)
    assert (batch.prefill_tokens, batch.decode_tokens, batch.admitted) == (10, 0, [request])
    outcome = scheduler.finish(batch)
    assert (outcome.produced, outcome.prefill_done, outcome.finished) == ([request], [request], [])
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.kv_tokens.tolist()) == ({"a": 1}, [11])
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
    scheduler = _scheduler()
    (request,) = _add(scheduler, (10, 1))
    batch = scheduler.schedule()
    assert batch is not None
    outcome = scheduler.finish(batch)
    assert outcome.produced == outcome.prefill_done == outcome.finished == [request]
    assert (request.computed_tokens, scheduler.used_blocks) == (10, 0)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_only_the_last_yields_a_token() -> None:
    scheduler = _scheduler(budget=8)
    (request,) = _add(scheduler, (20, 2))
    for chunk, kv, rows, pending in [(8, 8, 0, 12), (8, 16, 0, 4), (4, 20, 1, 0)]:
        batch = scheduler.schedule()
        assert batch is not None
        assert (_show(batch), batch.kv_tokens.tolist(), batch.logit_rows) == ({"a": chunk}, [kv], rows)
        assert scheduler.finish(batch).produced == [request] * rows
        assert scheduler.pending_prefill_tokens == pending
    assert request.generated_tokens == 1


def test_running_requests_come_first_and_a_waiting_prompt_gets_the_rest_of_the_budget() -> None:
    """Budget 10: a's prompt takes 6 and b's 4 of 9; then a decodes (1), b ends its prompt (5), c starts with 4 of 7."""
    scheduler = _scheduler(budget=10)
    _add(scheduler, (6, 9), (9, 9), (7, 9))
    assert _step(scheduler) == {"a": 6, "b": 4}
    assert _step(scheduler) == {"a": 1, "b": 5, "c": 4}
    assert _step(scheduler) == {"a": 1, "b": 1, "c": 3}


def test_the_long_prompt_threshold_caps_each_chunk_so_that_others_join_the_step() -> None:
    scheduler = _scheduler(budget=10, threshold=4)
    _add(scheduler, (9, 2), (3, 2), (5, 2))
    assert _step(scheduler) == {"a": 4, "b": 3, "c": 3}
    assert _step(scheduler) == {"a": 4, "b": 1, "c": 2}
    assert _step(scheduler) == {"a": 1, "c": 1}


def test_decodes_beyond_the_budget_wait_in_order_of_admission() -> None:
    """Budget 2, three running: the third starves until an earlier one ends, because a step serves its list in order."""
    scheduler = _scheduler(budget=2)
    _add(scheduler, (1, 3), (1, 3), (1, 3))
    assert _step(scheduler) == {"a": 1, "b": 1}
    assert _step(scheduler) == {"a": 1, "b": 1}
    assert _step(scheduler) == {"a": 1, "b": 1}
    assert _step(scheduler) == {"c": 1}


def test_no_more_than_max_seqs_requests_run() -> None:
    scheduler = _scheduler(seqs=2)
    _add(scheduler, (4, 2), (4, 3), (4, 1))
    assert _step(scheduler) == {"a": 4, "b": 4}
    assert (scheduler.running_requests, scheduler.waiting_requests) == (2, 1)
    assert _step(scheduler) == {"a": 1, "b": 1}
    assert _step(scheduler) == {"b": 1, "c": 4}


def test_a_waiting_head_that_does_not_fit_blocks_those_behind_it() -> None:
    """10 blocks: a holds 2, so the 9 blocks of b do not fit and c, which would fit, waits behind it."""
    scheduler = _scheduler(10)
    _add(scheduler, (8, 2), (36, 1), (4, 1))
    assert _step(scheduler) == {"a": 8}
    assert _step(scheduler) == {"a": 1}
    assert _step(scheduler) == {"b": 36, "c": 4}


def test_a_prompt_is_admitted_only_if_all_of_it_fits_now_though_only_its_first_chunk_is_taken() -> None:
    """10 blocks, budget 8. When a has its 20 tokens in 5 blocks, 4 tokens of the step are left for b.

    One block would do for them, but b's 32 tokens need 8, so b waits until a ends.
    """
    scheduler = _scheduler(10, budget=8)
    _add(scheduler, (20, 4), (32, 1))
    assert _step(scheduler) == {"a": 8}
    assert _step(scheduler) == {"a": 8}
    assert _step(scheduler) == {"a": 4}
    assert scheduler.used_blocks == 5
    assert _step(scheduler) == {"a": 1}
    assert _step(scheduler) == {"a": 1}
    assert _step(scheduler) == {"a": 1}
    assert _step(scheduler) == {"b": 8}


def test_the_whole_sequence_check_does_not_reserve() -> None:
    """10 blocks, chunks of 4: a (24 tokens, 6 blocks) and b (28, 7 blocks) both pass the check in the first step.

    They take one block each per step; in step 6 a takes the 11th and b, at the tail, is preempted.
    """
    scheduler = _scheduler(10, threshold=4)
    a, b = _add(scheduler, (24, 2), (28, 2))
    for _ in range(5):
        assert _step(scheduler) == {"a": 4, "b": 4}
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.preempted, b.preemptions, a.preemptions) == ({"a": 4}, [b], 1, 0)
    assert scheduler.used_blocks == 6


def test_the_tail_of_the_running_list_is_preempted_recomputed_and_keeps_its_tokens() -> None:
    """4 blocks. a and b (7 + 4 tokens) hold 2 blocks each and need a third when their KV passes 8 tokens.

    Iterations: prefill (KV 7), decode (8), then a needs the block: b, with 2 tokens generated, loses its blocks. a ends
    after 4 tokens; b computes 7 + 2 = 9 tokens again, which yields its third token.
    """
    scheduler = _scheduler(4)
    a, b = _add(scheduler, (7, 4), (7, 4))
    assert _step(scheduler) == {"a": 7, "b": 7}
    assert _step(scheduler) == {"a": 1, "b": 1}
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.preempted) == ({"a": 1}, [b])
    assert (b.computed_tokens, b.generated_tokens, b.status) == (0, 2, RequestStatus.WAITING)
    assert (scheduler.waiting_requests, scheduler.pending_prefill_tokens) == (1, 9)
    scheduler.finish(batch)
    assert _step(scheduler) == {"a": 1}
    assert a.status is RequestStatus.COMPLETED
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.admitted) == ({"b": 9}, [b])
    outcome = scheduler.finish(batch)
    assert (outcome.produced, outcome.prefill_done, b.generated_tokens) == ([b], [], 3)
    assert _step(scheduler) == {"b": 1}
    assert (b.computed_tokens, b.preemptions, b.prompt_tokens, b.output_tokens) == (10, 1, 7, 4)
    assert scheduler.used_blocks == 0


def test_a_step_that_preempts_admits_nothing_even_if_blocks_are_left() -> None:
    """6 blocks. a (3 tokens), b (8) and c (9) hold 1 + 2 + 3; d (4 tokens, 1 block) waits.

    b's ninth token needs a block, so c goes: 6 − 4 = 2 blocks are left, which d does not get because the step has
    preempted. In the next step a's fifth token takes one, and c, at the head of the queue, needs 10 tokens, 3 blocks.
    """
    scheduler = _scheduler(6)
    *_, c = _add(scheduler, (3, 9), (8, 9), (9, 2))
    assert _step(scheduler) == {"a": 3, "b": 8, "c": 9}
    d = Request(3, "d", 4, 1, 0)
    scheduler.add(d)
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.preempted, scheduler.used_blocks) == ({"a": 1, "b": 1}, [c], 4)
    scheduler.finish(batch)
    assert _step(scheduler) == {"a": 1, "b": 1}
    assert scheduler.waiting_requests == 2


def test_several_victims_go_tail_first_and_return_in_their_order() -> None:
    """6 blocks, chunks of 12: a (24 tokens) takes 3 blocks, b, c, d (4 tokens each) one each.

    a's second chunk needs 3 more: d, c, b go, in this order, and come back as b, c, d, before e. Each then computes its
    4 prompt tokens and 1 generated token, 2 blocks, so that no block is left for e.
    """
    scheduler = _scheduler(6, threshold=12)
    a, b, c, d = _add(scheduler, (24, 1), (4, 3), (4, 3), (4, 3))
    assert _step(scheduler) == {"a": 12, "b": 4, "c": 4, "d": 4}
    scheduler.add(Request(4, "e", 1, 1, 0))
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.preempted) == ({"a": 12}, [d, c, b])
    assert scheduler.finish(batch).finished == [a]
    assert _step(scheduler) == {"b": 5, "c": 5, "d": 5}


def test_a_request_at_the_tail_that_lacks_a_block_preempts_itself() -> None:
    """4 blocks: a (5 tokens) and b (8 tokens) hold 2 each; b's ninth token finds none and nobody behind it."""
    scheduler = _scheduler(4)
    _, b = _add(scheduler, (5, 3), (8, 3))
    assert _step(scheduler) == {"a": 5, "b": 8}
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.preempted, scheduler.used_blocks) == ({"a": 1}, [b], 2)


def test_a_request_sits_in_one_micro_batch_at_a_time() -> None:
    """With two pipeline stages, a's next token waits for its micro-batch; b fills the other."""
    scheduler = _scheduler()
    a, b = _requests((4, 3), (4, 3))
    scheduler.add(a)
    first = scheduler.schedule()
    scheduler.add(b)
    second = scheduler.schedule()
    assert first is not None
    assert second is not None
    assert (_show(first), _show(second), scheduler.schedule()) == ({"a": 4}, {"b": 4}, None)
    assert scheduler.steady_decode_steps() == 0
    scheduler.finish(first)
    third = scheduler.schedule()
    assert third is not None
    assert (_show(third), scheduler.schedule()) == ({"a": 1}, None)
    scheduler.finish(second)
    assert _step(scheduler) == {"b": 1}


def test_a_request_in_flight_is_not_preempted() -> None:
    """4 blocks: a and b (8 tokens) hold 2 each, b is in flight: a's ninth token costs a its own blocks, not b's."""
    scheduler = _scheduler(4)
    a, b = _requests((8, 3), (8, 3))
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
    assert (_show(batch), batch.preempted) == ({"b": 1}, [a])


def _caching(usable_blocks: int = 100, **limits: int) -> VllmV1Scheduler:
    pool = PrefixCachingBlockPool(usable_blocks + 1)
    defaults = {"max_batched_tokens": 1000, "max_seqs": 8, "max_model_len": 5000}
    return VllmV1Scheduler(pool, **(defaults | limits))


def test_an_equal_prompt_admitted_in_the_same_step_hits_already() -> None:
    """Blocks of 16 are registered when scheduled: of two equal prompts of 32 tokens the second computes 16."""
    scheduler = _caching()
    a, b = Request(0, "a", 32, 2, 0, (1,)), Request(1, "b", 32, 2, 0, (1,))
    scheduler.add(a)
    scheduler.add(b)
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.kv_tokens.tolist()) == ({"a": 32, "b": 16}, [32, 32])
    assert (a.cached_tokens, b.cached_tokens, scheduler.used_blocks) == (0, 16, 3)


def test_each_chunk_registers_its_full_blocks_for_later_requests() -> None:
    """Budget 40: a's first chunk fills 2 blocks of 16 and half of the third; its second chunk completes all 5 of 80.

    In step 2 the budget of 40 is a's again; in step 3 b, equal to a, hits 4 blocks (64 of its first 79 tokens).
    """
    scheduler = _caching(max_batched_tokens=40)
    scheduler.add(Request(0, "a", 80, 3, 0, (1,)))
    b = Request(1, "b", 80, 2, 0, (1,))
    scheduler.add(b)
    assert [_step(scheduler) for _ in range(3)] == [{"a": 40}, {"a": 40}, {"a": 1, "b": 16}]
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
    steps = [_step(scheduler) for _ in range(5)]
    assert steps == [{"a": 47, "b": 47}, {"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {"b": 17}]
    assert (b.preemptions, b.cached_tokens) == (1, 0)


def test_a_prefill_rank_ends_with_the_first_token_and_holds_the_kv_until_it_is_released() -> None:
    """5 blocks: a (12 tokens, 3 blocks) is done after one step; b (12 tokens) has to wait for its transfer to end."""
    scheduler = _scheduler(5, role="prefill")
    a, b = _add(scheduler, (12, 50), (12, 1))
    batch = scheduler.schedule()
    assert batch is not None
    outcome = scheduler.finish(batch)
    assert outcome.produced == outcome.prefill_done == outcome.finished == [a]
    assert (a.status, a.generated_tokens, scheduler.used_blocks) == (RequestStatus.PREFILLED, 1, 3)
    assert scheduler.schedule() is None
    scheduler.release(a)
    assert _step(scheduler) == {"b": 12}
    assert (b.status, scheduler.used_blocks) == (RequestStatus.COMPLETED, 3)
    scheduler.release(b)
    assert scheduler.used_blocks == 0


def test_held_kv_does_not_stop_a_chunked_prompt_for_ever() -> None:
    """6 blocks, chunks of 8. b (8 tokens, 2 blocks) is held after step 1, when a (20 tokens) has 8, after step 2 16.

    Then a lacks a fifth block and preempts itself; the step that follows at once has 4 blocks, too few to admit it
    again. After the release it starts anew.
    """
    scheduler = _scheduler(6, threshold=8, role="prefill")
    a, b = _add(scheduler, (20, 2), (8, 2))
    assert _step(scheduler) == {"a": 8, "b": 8}
    assert _step(scheduler) == {"a": 8}
    assert (scheduler.schedule(), a.preemptions, scheduler.used_blocks) == (None, 1, 2)
    scheduler.release(b)
    batch = scheduler.schedule()
    assert batch is not None
    assert (_show(batch), batch.preempted) == ({"a": 8}, [a])


def _arrive(scheduler: VllmV1Scheduler, *requests: Request, recompute: int = 0) -> None:
    for request in requests:
        scheduler.remote_arrived(request, request.prompt_tokens - recompute)


def test_a_decode_rank_reserves_whole_prompts_in_order_and_stops_at_the_first_that_does_not_fit() -> None:
    """10 blocks: a (16 tokens, 4 blocks) and b (12, 3) leave 3; c (16) does not fit, and d (4) waits behind it."""
    scheduler = _scheduler(10, role="decode")
    a, b, c, d = _requests((16, 3), (12, 3), (16, 3), (4, 3))
    for request in (a, b, c, d):
        scheduler.add_remote(request)
    assert scheduler.admit_remote() == [a, b]
    assert (a.status, c.status) == (RequestStatus.TRANSFERRING, RequestStatus.WAITING)
    assert (scheduler.used_blocks, scheduler.waiting_requests, scheduler.running_requests) == (7, 4, 0)
    assert (scheduler.has_work, scheduler.schedule(), scheduler.admit_remote()) == (False, None, [])


def test_a_remote_request_decodes_from_its_second_token_on_when_prefill_gave_the_first() -> None:
    """P = 16, D = 3: KV of 16 tokens arrives; two decode steps see 17 and 18 tokens, in 5 blocks."""
    scheduler = _scheduler(role="decode")
    (a,) = _requests((16, 3))
    scheduler.add_remote(a)
    scheduler.admit_remote()
    assert scheduler.schedule() is None
    _arrive(scheduler, a)
    assert (a.computed_tokens, a.generated_tokens, scheduler.has_work) == (16, 1, True)
    for kv, finished in [(17, []), (18, [a])]:
        batch = scheduler.schedule()
        assert batch is not None
        assert (batch.kv_tokens.tolist(), batch.decode_tokens, scheduler.used_blocks) == ([kv], 1, 5)
        outcome = scheduler.finish(batch)
        assert (outcome.produced, outcome.prefill_done, outcome.finished) == ([a], [], finished)
    assert (a.computed_tokens, a.cached_tokens, scheduler.used_blocks) == (18, 0, 0)


def test_a_remote_request_recomputes_its_last_prompt_token_when_decode_gives_the_first() -> None:
    scheduler = _scheduler(role="decode")
    (a,) = _requests((16, 1))
    scheduler.add_remote(a)
    scheduler.admit_remote()
    _arrive(scheduler, a, recompute=1)
    assert (a.computed_tokens, a.generated_tokens) == (15, 0)
    batch = scheduler.schedule()
    assert batch is not None
    assert (batch.kv_tokens.tolist(), batch.logit_rows) == ([16], 1)
    outcome = scheduler.finish(batch)
    assert outcome.produced == outcome.prefill_done == outcome.finished == [a]


def test_arrived_requests_run_in_order_of_arrival_before_other_waiting_ones() -> None:
    scheduler = _scheduler(role="decode", seqs=2)
    a, b, c = _requests((16, 3), (16, 3), (5, 2))
    scheduler.add_remote(a)
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == [a, b]
    scheduler.add(c)
    _arrive(scheduler, b, a)
    assert _step(scheduler) == {"b": 1, "a": 1}


def test_no_transfer_starts_while_the_running_list_is_full_or_a_local_request_waits() -> None:
    scheduler = _scheduler(role="decode", seqs=1)
    a, b, c = _requests((16, 3), (16, 3), (4, 1))
    scheduler.add_remote(a)
    assert scheduler.admit_remote() == [a]
    _arrive(scheduler, a)
    assert _step(scheduler) == {"a": 1}
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == []
    assert _step(scheduler) == {"a": 1}
    scheduler.add(c)
    assert scheduler.admit_remote() == []
    assert _step(scheduler) == {"c": 4}
    assert scheduler.admit_remote() == [b]


@pytest.mark.parametrize(("prompt", "is_admitted"), [(16, True), (17, False)])
def test_a_reservation_leaves_what_running_prefills_still_need(prompt: int, is_admitted: bool) -> None:
    """10 blocks, chunks of 8: a local prompt of 24 tokens holds 2 of its 6 blocks; 8 are free, 4 of them promised."""
    scheduler = _scheduler(10, threshold=8, role="decode")
    a, b = _requests((24, 2), (prompt, 2))
    scheduler.add(a)
    assert _step(scheduler) == {"a": 8}
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == [b] * is_admitted


def test_a_request_preempted_on_the_decode_rank_is_recomputed_there() -> None:
    """4 blocks: a and b (7 tokens) hold 2 each; when a's KV passes 8 tokens, b (2 tokens generated) goes.

    b then computes 7 + 2 tokens, none of which come from elsewhere.
    """
    scheduler = _scheduler(4, role="decode")
    a, b = _requests((7, 4), (7, 4))
    for request in (a, b):
        scheduler.add_remote(request)
    scheduler.admit_remote()
    _arrive(scheduler, a, b)
    assert [_step(scheduler) for _ in range(4)] == [{"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {"b": 9}]
    assert (b.preemptions, b.generated_tokens, b.cached_tokens) == (1, 3, 0)


def test_arrived_requests_that_hold_every_block_do_not_block_each_other_for_ever() -> None:
    """4 blocks, all held by a and b (8 tokens each), both of which need a third one and nothing runs.

    b, the younger, gives its KV up: a decodes to its end, then b computes 8 + 1 tokens itself.
    """
    scheduler = _scheduler(4, role="decode")
    a, b = _requests((8, 3), (8, 3))
    for request in (a, b):
        scheduler.add_remote(request)
    scheduler.admit_remote()
    _arrive(scheduler, a)
    assert scheduler.schedule() is None
    _arrive(scheduler, b)
    assert [_step(scheduler) for _ in range(4)] == [{"a": 1}, {"a": 1}, {"b": 9}, {"b": 1}]
    assert (a.preemptions, b.preemptions, scheduler.used_blocks) == (0, 1, 0)


def test_prompt_blocks_that_the_decode_rank_has_need_no_transfer() -> None:
    """b shares a's 64 tokens; once a's KV has arrived, 48 of b's 64 are there (its last token is not looked up)."""
    pool = PrefixCachingBlockPool(101)
    scheduler = VllmV1Scheduler(pool, max_batched_tokens=1000, max_seqs=8, max_model_len=5000, role="decode")
    a, b = Request(0, "a", 64, 9, 0, (1,)), Request(1, "b", 64, 9, 0, (1,))
    scheduler.add_remote(a)
    scheduler.admit_remote()
    assert a.resident_tokens == 0
    _arrive(scheduler, a)
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == [b]
    assert (b.resident_tokens, scheduler.used_blocks) == (48, 5)


def test_blocks_of_a_transfer_under_way_cannot_be_hit() -> None:
    pool = PrefixCachingBlockPool(101)
    scheduler = VllmV1Scheduler(pool, max_batched_tokens=1000, max_seqs=8, max_model_len=5000, role="decode")
    a, b = Request(0, "a", 64, 9, 0, (1,)), Request(1, "b", 64, 9, 0, (1,))
    scheduler.add_remote(a)
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == [a, b]
    assert (b.resident_tokens, scheduler.used_blocks) == (0, 8)


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
    scheduler = _scheduler(10, role=role)
    (request,) = _requests(lengths)
    assert scheduler.rejection_reason(request) == reason


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(InputError, match=r"engine\.max_seqs: found 0, expected at least 1"):
        _scheduler(seqs=0)
    with pytest.raises(InputError, match=r"engine\.long_prefill_token_threshold: found -1, expected at least 0"):
        _scheduler(threshold=-1)
