"""Two half batches within a layer: what hides which collective, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import Batch, Partition, Precision, get_gpu, load_model
from aicb.iteration.layer_schedule import (
    Exchange,
    HalfBatch,
    LayerParts,
    LayerSchedule,
    Piece,
    layered_overlap,
    piece_of,
)
from aicb.iteration.model import IterationModel
from aicb.operators.lists import token_operators
from boundary.errors import InputError

SCHEDULES: tuple[LayerSchedule, ...] = ("whole", "split")
A = HalfBatch(LayerParts(20, 60, 10, 30, 5), Exchange(40, 50))
B = HalfBatch(LayerParts(22, 66, 12, 33, 6), Exchange(44, 55))


def lasting_ps(layers: int, schedule: LayerSchedule, **options: float) -> float:
    return layered_overlap((A, B), layers, schedule, **options).lasting_ps()


def test_split_attention_hides_dispatch_behind_projections_and_combine_behind_attention() -> None:
    """Two layers: P_a and K_a of the first alone, (20 + 60) / 2 = 40; experts 30 + 33 and others 5 + 6 beside nothing.
    D_a 40 beside S_a + P_b = 32 → 40. C_a 50 beside K_b 66 → 66. D_b 44 beside S_b + P_a = 32 → 44, in the last layer
    beside S_b 12 → 44. C_b 55 beside K_a 60 → 30 for one of the layers, 27.5 alone after the other."""
    assert lasting_ps(2, "split") == round(40 + 63 + 11 + 40 + 66 + 44 + 30 + 27.5)


def test_whole_attention_hides_one_dispatch_and_experts_the_other() -> None:
    """Two layers: P + K + S of a, 90, alone in the first: 45; others 11. D_a 40 beside 100 of b. D_b 44 beside E_a 30.
    C_a 50 beside E_b 33. C_b 55 beside 90 of a: 45 for one layer, 27.5 alone after the other."""
    assert lasting_ps(2, "whole") == round(45 + 11 + 100 + 44 + 50 + 45 + 27.5)


def test_nothing_hides_the_part_of_a_collective_that_has_all_sms() -> None:
    """A quarter of each: K_b 66 + 12.5 lasts longer than C_a, S_a + P_b 32 + 10 longer than D_a 40, S_b + P_a 32 + 11
    not longer than D_b 44, and K_a 60 + 13.75 longer than C_b."""
    busy = lasting_ps(2, "split", communication_busy_share=0.25)
    assert busy == round(40 + 63 + 11 + 42 + 78.5 + 44 + 36.875 + 27.5)


def test_compute_beside_collectives_loses_their_sms_and_other_compute_does_not() -> None:
    """A fifth of them: 1.25 times as long. D_a 40 and D_b 44 last as long, K_b 66 → 82.5, K_a 60 → 75."""
    assert lasting_ps(2, "split", communication_sm_share=0.2) == round(40 + 63 + 11 + 40 + 82.5 + 44 + 37.5 + 27.5)


def test_the_host_is_paid_once() -> None:
    for schedule in SCHEDULES:
        assert lasting_ps(4, schedule, host_ps=9.0) == lasting_ps(4, schedule) + 9


parts = st.builds(LayerParts, *[st.floats(0, 1e9)] * 5)
halves = st.builds(HalfBatch, parts, st.builds(Exchange, st.floats(0, 1e9), st.floats(0, 1e9)))


@given(a=halves, b=halves, layers=st.integers(1, 61), schedule=st.sampled_from(SCHEDULES))
def test_halves_take_at_least_the_longer_resource_and_at_most_both(
    a: HalfBatch, b: HalfBatch, layers: int, schedule: LayerSchedule
) -> None:
    compute, communication = (sum(part) for part in ((a.parts.total_ps, b.parts.total_ps), (*a.exchange, *b.exchange)))
    found = layered_overlap((a, b), layers, schedule).lasting_ps()
    assert max(compute, communication) - 1 <= found <= compute + communication + 1


def test_every_operator_of_tokens_has_a_piece() -> None:
    """DeepSeek-V3: three norms and the projections up to the attention before it, router and output behind."""
    listed = token_operators(load_model("deepseek-v3"), Partition(dp=32, ep=32), Precision("fp8"), tokens=64)
    names = {piece: {each.name for each in listed if piece_of(each) is piece} for piece in Piece}
    assert names[Piece.ATTEND] == {"post_attention_norm", "o_quant", "o", "router", "topk"}
    assert {"input_norm", "qkv_a", "q_b", "rope", "kv_write"} <= names[Piece.PREPARE]
    assert names[Piece.SHARED] == {name for name in names[Piece.SHARED] if name.startswith("shared_")} != set()
    assert names[Piece.OTHER] == {"embedding", "ffn_quant", "ffn_gate_up", "ffn_silu_mul", "ffn_down"}


@pytest.mark.parametrize(("queries", "kv"), [(1, 500), (1, 4000), (2, 500), (2, 4000)])
def test_the_parts_of_an_iteration_are_its_compute(queries: int, kv: int) -> None:
    steady = replace(get_gpu("h200"), clock=None)
    model = IterationModel(
        load_model("deepseek-v3"), Partition(dp=32, ep=32), Precision("fp8"), steady, queries=queries
    )
    cost = model.price_device([Batch.decode([kv] * 64)] * 32, queries=queries)
    found = model.layer_parts(cost, model.graph_sizes.padded(64 * queries, has_prompts=False))
    assert found.total_ps == pytest.approx(cost.compute_ps - cost.host_ps, rel=1e-9)
    assert min(found) > 0
    more = model.price_device([Batch.decode([kv + 1000] * 64)] * 32, queries=queries)
    longer = model.layer_parts(more, model.graph_sizes.padded(64 * queries, has_prompts=False))
    assert longer.attend_ps > 1.02 * found.attend_ps
    assert longer[2:4] == pytest.approx(found[2:4], rel=1e-6), "attention alone has grown"


@pytest.mark.parametrize("name", ["communication_sm_share", "communication_busy_share"])
@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_impossible_shares_are_refused(name: str, share: float) -> None:
    with pytest.raises(InputError, match=f"{name}: found"):
        lasting_ps(2, "split", **{name: share})
