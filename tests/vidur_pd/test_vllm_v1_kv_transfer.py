"""vLLM V1 on prefill and decode ranks, traced by hand. KV blocks have 4 tokens unless stated."""

from __future__ import annotations

import pytest

from tests.vidur_pd.one_rank import OneRank
from tests.vidur_pd.vllm_v1_steps import add, new_tokens, requests_of, scheduler_of, step
from tests.vidur_pd.whole_runs import WholeRun, scenario_of
from vidur_pd.scheduling.kv_blocks import PrefixCachingBlockPool
from vidur_pd.scheduling.vllm_v1_python import VllmV1Python
from vidur_pd.workload.request import Request, RequestStatus


def test_a_prefill_rank_ends_with_the_first_token_and_holds_the_kv_until_it_is_released() -> None:
    """5 blocks: a (12 tokens, 3 blocks) is done after one step; b (12 tokens) has to wait for its transfer to end."""
    scheduler = scheduler_of(5, role="prefill")
    a, b = add(scheduler, (12, 50), (12, 1))
    batch = scheduler.schedule()
    assert batch is not None
    outcome = scheduler.finish(batch)
    assert outcome.produced == outcome.prefill_done == outcome.finished == [a]
    assert (a.status, a.generated_tokens, scheduler.used_blocks) == (RequestStatus.PREFILLED, 1, 3)
    assert scheduler.schedule() is None
    scheduler.release(a)
    assert step(scheduler) == {"b": 12}
    assert (b.status, scheduler.used_blocks) == (RequestStatus.COMPLETED, 3)
    scheduler.release(b)
    assert scheduler.used_blocks == 0


def test_held_kv_does_not_stop_a_chunked_prompt_for_ever() -> None:
    """6 blocks, chunks of 8. b (8 tokens, 2 blocks) is held after step 1, when a (20 tokens) has 8, after step 2 16.

    Then a lacks a fifth block and preempts itself; the step that follows at once has 4 blocks, too few to admit it
    again. After the release it starts anew.
    """
    scheduler = scheduler_of(6, threshold=8, role="prefill")
    a, b = add(scheduler, (20, 2), (8, 2))
    assert step(scheduler) == {"a": 8, "b": 8}
    assert step(scheduler) == {"a": 8}
    assert (scheduler.schedule(), a.preemptions, scheduler.used_blocks) == (None, 1, 2)
    scheduler.release(b)
    batch = scheduler.schedule()
    assert batch is not None
    assert (new_tokens(batch), batch.preempted) == ({"a": 8}, [a])


def _arrive(scheduler: OneRank, *requests: Request, recompute: int = 0) -> None:
    for request in requests:
        scheduler.remote_arrived(request, request.prompt_tokens - recompute)


def test_a_decode_rank_reserves_whole_prompts_in_order_and_stops_at_the_first_that_does_not_fit() -> None:
    """10 blocks: a (16 tokens, 4 blocks) and b (12, 3) leave 3; c (16) does not fit, and d (4) waits behind it."""
    scheduler = scheduler_of(10, role="decode")
    a, b, c, d = requests_of((16, 3), (12, 3), (16, 3), (4, 3))
    for request in (a, b, c, d):
        scheduler.add_remote(request)
    assert scheduler.admit_remote() == [a, b]
    assert (a.status, c.status) == (RequestStatus.TRANSFERRING, RequestStatus.WAITING)
    assert (scheduler.used_blocks, scheduler.waiting_requests, scheduler.running_requests) == (7, 4, 0)
    assert (scheduler.has_work, scheduler.schedule(), scheduler.admit_remote()) == (False, None, [])


def test_a_prompt_keeps_its_blocks_while_a_decode_rank_queues_it() -> None:
    """5 blocks, chunks of 8: with the first 8 tokens in 2 blocks, the next 8 lack 2 of the 3 that are free."""
    prefill, decode = scheduler_of(5, threshold=8, role="prefill"), scheduler_of(role="decode")
    (a,) = add(prefill, (20, 3))
    assert step(prefill) == {"a": 8}
    decode.add_remote(a)
    assert step(prefill) == {"a": 8}
    assert (a.preemptions, prefill.used_blocks) == (0, 4)


def test_a_remote_request_decodes_from_its_second_token_on_when_prefill_gave_the_first() -> None:
    """P = 16, D = 3: KV of 16 tokens arrives; two decode steps see 17 and 18 tokens, in 5 blocks."""
    scheduler = scheduler_of(role="decode")
    (a,) = requests_of((16, 3))
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
    scheduler = scheduler_of(role="decode")
    (a,) = requests_of((16, 1))
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
    scheduler = scheduler_of(role="decode", seqs=2)
    a, b, c = requests_of((16, 3), (16, 3), (5, 2))
    scheduler.add_remote(a)
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == [a, b]
    scheduler.add(c)
    _arrive(scheduler, b, a)
    assert step(scheduler) == {"b": 1, "a": 1}


def test_no_transfer_starts_while_the_running_list_is_full_or_a_local_request_waits() -> None:
    scheduler = scheduler_of(role="decode", seqs=1)
    a, b, c = requests_of((16, 3), (16, 3), (4, 1))
    scheduler.add_remote(a)
    assert scheduler.admit_remote() == [a]
    _arrive(scheduler, a)
    assert step(scheduler) == {"a": 1}
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == []
    assert step(scheduler) == {"a": 1}
    scheduler.add(c)
    assert scheduler.admit_remote() == []
    assert step(scheduler) == {"c": 4}
    assert scheduler.admit_remote() == [b]


@pytest.mark.parametrize(("prompt", "is_admitted"), [(16, True), (17, False)])
def test_a_reservation_leaves_what_running_prefills_still_need(prompt: int, is_admitted: bool) -> None:
    """10 blocks, chunks of 8: a local prompt of 24 tokens holds 2 of its 6 blocks; 8 are free, 4 of them promised."""
    scheduler = scheduler_of(10, threshold=8, role="decode")
    a, b = requests_of((24, 2), (prompt, 2))
    scheduler.add(a)
    assert step(scheduler) == {"a": 8}
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == [b] * is_admitted


def test_a_request_preempted_on_the_decode_rank_is_recomputed_there() -> None:
    """4 blocks: a and b (7 tokens) hold 2 each; when a's KV passes 8 tokens, b (2 tokens generated) goes.

    b then computes 7 + 2 tokens, none of which come from elsewhere.
    """
    scheduler = scheduler_of(4, role="decode")
    a, b = requests_of((7, 4), (7, 4))
    for request in (a, b):
        scheduler.add_remote(request)
    scheduler.admit_remote()
    _arrive(scheduler, a, b)
    assert [step(scheduler) for _ in range(4)] == [{"a": 1, "b": 1}, {"a": 1}, {"a": 1}, {"b": 9}]
    assert (b.preemptions, b.generated_tokens, b.cached_tokens) == (1, 3, 0)


def test_arrived_requests_that_hold_every_block_do_not_block_each_other_for_ever() -> None:
    """4 blocks, all held by a and b (8 tokens each), both of which need a third one and nothing runs.

    b, the younger, gives its KV up: a decodes to its end, then b computes 8 + 1 tokens itself.
    """
    scheduler = scheduler_of(4, role="decode")
    a, b = requests_of((8, 3), (8, 3))
    for request in (a, b):
        scheduler.add_remote(request)
    scheduler.admit_remote()
    _arrive(scheduler, a)
    assert scheduler.schedule() is None
    _arrive(scheduler, b)
    assert [step(scheduler) for _ in range(4)] == [{"a": 1}, {"a": 1}, {"b": 9}, {"b": 1}]
    assert (a.preemptions, b.preemptions, scheduler.used_blocks) == (0, 1, 0)


def test_prompt_blocks_that_the_decode_rank_has_need_no_transfer() -> None:
    """b shares a's 64 tokens; once a's KV has arrived, 48 of b's 64 are there (its last token is not looked up)."""
    pool = PrefixCachingBlockPool(101)
    scheduler = OneRank(pool, max_batched_tokens=1000, max_seqs=8, max_model_len=5000, role="decode")
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
    scheduler = OneRank(pool, max_batched_tokens=1000, max_seqs=8, max_model_len=5000, role="decode")
    a, b = Request(0, "a", 64, 9, 0, (1,)), Request(1, "b", 64, 9, 0, (1,))
    scheduler.add_remote(a)
    scheduler.add_remote(b)
    assert scheduler.admit_remote() == [a, b]
    assert (b.resident_tokens, scheduler.used_blocks) == (0, 8)


@pytest.mark.parametrize(("watermark_blocks", "first_batch"), [(2, [0, 1]), (3, [0])])
def test_the_watermark_holds_for_requests_whose_kv_has_come(watermark_blocks: int, first_batch: list[int]) -> None:
    """2 of 7 blocks each, and one for token 9 of request 0: 2 are free. Request 1 needs none."""
    scenario = scenario_of((0, 8, 6), (0, 8, 5), role="decode", usable_blocks=7, watermark_blocks=watermark_blocks)
    for policy in (None, VllmV1Python):
        run = WholeRun(scenario, policy).serve()
        assert run.left_undone() == []
        assert [row[0] for row in run.batches[0][0]] == first_batch
