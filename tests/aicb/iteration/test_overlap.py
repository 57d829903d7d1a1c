"""Work beside other work: the shared expert's stream and two half batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import Batch, InputError, IterationCost, Partition, Precision, get_gpu, load_model
from aicb.iteration.model import PHASES, IterationModel
from aicb.iteration.overlap import Overlap, StreamWork, halve, side_by_side_ps
from aicb.operators.operator import Communication, Phase

H200, FP8 = get_gpu("h200"), Precision("fp8")
WIDE = Partition(dp=32, ep=32)
COLLECTIVE = Communication("all_to_all", 1000, "ep")


STEADY = replace(H200, clock=None)
"""Without clocks that move with the load, equal kernels take equal times."""


def model(overlap: Overlap | None = None) -> IterationModel:
    return IterationModel(load_model("deepseek-v3"), WIDE, FP8, STEADY, overlap=overlap)


def half(compute_ps: int, pieces: int, host_ps: int = 0) -> IterationCost:
    return IterationCost(compute_ps + host_ps, host_ps, (), ((COLLECTIVE, pieces),), 0, ())


def test_streams_last_as_long_as_the_longer_and_what_the_other_adds_to_it() -> None:
    """The other adds its roofline and a quarter of the rest: 20 + 5 of 40, where 20 of it are memory's."""
    main, second = StreamWork(100, 30), StreamWork(40, 20)
    assert side_by_side_ps(main, second) == side_by_side_ps(second, main) == 125
    assert side_by_side_ps(main, second, 0.1) == 136
    assert side_by_side_ps(main, second, 0.5) == 140  # never longer than one after the other
    assert side_by_side_ps(StreamWork(100, 100), StreamWork(40, 40)) == 140  # nothing hides where memory binds both
    assert side_by_side_ps(StreamWork(100, 95), second) == 136  # 40, and 95 + 1.25 of the stream that memory binds


def test_overlap_is_off_by_default() -> None:
    batch = [Batch.decode([4000] * 64)] * 32
    assert model().price(batch) == model(Overlap()).price(batch)


def test_the_shared_expert_hides_behind_the_routed_experts() -> None:
    """The second stream takes time off DENSE and NORM only; all of the shared expert can go, never more."""
    batch = [Batch.decode([4000] * 64)] * 32
    alone, beside = model().price(batch), model(Overlap(shared_expert_stream=True)).price(batch)
    less = {phase: a - b for phase, a, b in zip(PHASES, alone.phase_ps, beside.phase_ps, strict=True)}
    assert less[Phase.DENSE] > 0
    assert {phase for phase, saved in less.items() if saved} <= {Phase.DENSE, Phase.NORM}
    assert sum(beside.phase_ps) + beside.host_ps == beside.compute_ps < alone.compute_ps
    assert beside.communications == alone.communications


def test_the_shared_expert_of_many_tokens_stays_where_it_is() -> None:
    """With a limit of 32 tokens of a rank, of which graphs are padded to captured sizes: 20 requests are 24 tokens."""
    limited = Overlap(shared_expert_stream=True, shared_expert_tokens=32)
    for requests, other in ((20, Overlap(shared_expert_stream=True)), (33, Overlap())):
        batch = [Batch.decode([4000] * requests)] * 32
        assert model(limited).price(batch) == model(other).price(batch)


def test_sms_taken_from_the_routed_experts_cost_time() -> None:
    batch = [Batch.decode([4000] * 64)] * 32
    times = [model(Overlap(True, share)).price(batch).compute_ps for share in (0.0, 0.05, 0.1)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_decode_steps_overlap_as_single_iterations_do() -> None:
    overlapped = model(Overlap(shared_expert_stream=True))
    kv = [np.array([3000, 500])] * 32
    assert overlapped.decode_steps(kv, 2).tolist() == [
        overlapped.price([Batch.decode(lengths + step) for lengths in kv]).compute_ps for step in range(2)
    ]


def test_decodes_are_halved_by_requests() -> None:
    first, second = halve(Batch.decode([10, 20, 30, 40, 50]))
    assert first.kv_tokens.tolist() == [10, 20, 30]
    assert second.kv_tokens.tolist() == [40, 50]
    assert (first.logit_rows, second.logit_rows) == (3, 2)


def test_prefills_are_halved_by_tokens_and_a_long_one_is_cut() -> None:
    """500 + 500 part at the border; 900 + 100 are cut at 500: the second piece has the first as its past."""
    even = halve(Batch.prefill([500, 500]))
    assert [part.new_tokens.tolist() for part in even] == [[500], [500]]
    first, second = halve(Batch.prefill([900, 100], [50, 0]))
    assert (first.new_tokens.tolist(), first.kv_tokens.tolist()) == ([500], [550])
    assert (second.new_tokens.tolist(), second.kv_tokens.tolist()) == ([400, 100], [950, 100])
    assert (first.logit_rows, second.logit_rows) == (0, 2)


@given(prompts=st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_halves_lose_no_token(prompts: list[int]) -> None:
    batch = Batch.prefill(prompts)
    first, second = halve(batch)
    assert first.tokens + second.tokens == batch.tokens
    assert first.logit_rows + second.logit_rows == batch.logit_rows
    assert second.kv_tokens.tolist() == batch.kv_tokens[len(prompts) - len(second.kv_tokens) :].tolist()
    if batch.tokens > 1:
        assert min(first.tokens, second.tokens) >= 0.48 * batch.tokens - 1


def test_two_half_batches_cost_more_compute_than_one_whole() -> None:
    whole = [Batch.decode([4000] * 64)] * 32
    halves = list(zip(*(halve(batch) for batch in whole), strict=True))
    first, second = (model().price(list(part)) for part in halves)
    assert first.compute_ps + second.compute_ps > model().price(whole).compute_ps


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(InputError, match=r"Overlap\.shared_expert_sm_share: found"):
        Overlap(True, share)
