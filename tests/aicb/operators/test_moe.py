"""Routed experts: rows, active experts, layouts, dispatch and combine."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import (
    Batch,
    Operator,
    Partition,
    expert_operators,
    iteration_operators,
    load_model,
)
from aicb.model.architecture import MoeFfn
from aicb.operators.dispatch import DispatchKind, ExpertDispatch, copies_per_token
from aicb.operators.operator import Communication, TokenExchange
from tests.aicb.operator_rows import BF16, DECODE, FP8, ONE, communication, elementwise, gemm_shape, grouped, listed


def experts(partition: Partition, tokens: int, group_tokens: int, *, is_decode: bool = True) -> dict[str, Operator]:
    model = load_model("deepseek-v3")
    operators = expert_operators(model, partition, FP8, tokens=tokens, group_tokens=group_tokens, is_decode=is_decode)
    return {op.name: op for op in operators}


def test_tensor_parallel_replicas_do_not_multiply_expert_rows() -> None:
    """The same 512 distinct tokens on 16 ranks: 512·8/16 = 256 rows each, however attention is divided."""
    for tp, dp in ((1, 16), (2, 8), (4, 4), (16, 1)):
        operators = experts(Partition(tp=tp, dp=dp, ep=16), tokens=512 // dp, group_tokens=512)
        assert grouped(operators["moe_gate_up"]).rows == 256
        assert grouped(operators["moe_gate_up"]).groups == 16


def test_one_token_has_a_positive_fraction_of_a_row_on_every_rank() -> None:
    """8 of 256 experts over 64 ranks: 1/8 row and 1/8 active expert expected per rank, never zero."""
    up = grouped(experts(Partition(dp=64, ep=64), tokens=1, group_tokens=1)["moe_gate_up"])
    assert up.rows == 0.125
    assert up.active_groups == pytest.approx(0.125)
    assert elementwise(experts(Partition(dp=64, ep=64), tokens=1, group_tokens=1)["moe_permute"]).rows == 1


@given(tokens=st.integers(1, 100_000))
def test_active_experts_grow_with_tokens_up_to_all(tokens: int) -> None:
    """G·(1 − (1 − k/E)^N), checked against the bounds min(G, rows) and the first token's share."""
    up = grouped(experts(Partition(dp=8, ep=8), tokens=1, group_tokens=tokens)["moe_gate_up"])
    assert up.active_groups >= 1.0 - 1e-12
    assert up.active_groups <= min(32.0, up.rows) * (1 + 1e-12)


def test_decode_reads_the_weights_of_active_experts_only() -> None:
    few, many = (experts(ONE, tokens=n, group_tokens=n)["moe_gate_up"] for n in (1, 10_000))
    expert_bytes = 4096 * 7168 + 4 * 32 * 56
    assert few.moved_bytes == pytest.approx(8 * expert_bytes, rel=0.01)
    assert grouped(many).active_groups == pytest.approx(256)
    assert few.weight_elements == many.weight_elements == 256 * 4096 * 7168


def test_expert_rows_are_masked_for_decodes_and_contiguous_otherwise() -> None:
    for is_decode, layout in ((True, "masked"), (False, "contiguous")):
        operators = experts(Partition(dp=8, ep=8), tokens=4, group_tokens=32, is_decode=is_decode)
        assert grouped(operators["moe_gate_up"]).layout == grouped(operators["moe_down"]).layout == layout


def deepep(is_low_latency: bool, *, is_fp8: bool = True) -> TokenExchange:
    """Of DeepSeek-V3: 8 of 256 experts, in 4 of 8 groups."""
    return TokenExchange(is_low_latency, 7168, is_fp8, 256, 8, 8, 4)


@pytest.mark.parametrize("is_decode", [True, False])
def test_deepep_carries_a_ranks_tokens_once_each_by_the_kernels_of_the_phase(is_decode: bool) -> None:
    """128 tokens of 2 · 7168 B, whatever their format on the way; how many copies there are is the collective's."""
    operators = experts(Partition(dp=32, ep=32), tokens=128, group_tokens=32 * 128, is_decode=is_decode)
    for name, op in (("moe_dispatch", "dispatch"), ("moe_combine", "combine")):
        assert communication(operators[name]) == Communication(op, 128 * 14336, "ep", deepep(is_decode))


def test_bf16_models_dispatch_bf16() -> None:
    operators = expert_operators(
        load_model("qwen3-30b-a3b"), Partition(dp=8, ep=8), BF16, tokens=10, group_tokens=80, is_decode=True
    )
    dispatch = next(op for op in operators if op.name == "moe_dispatch")
    assert communication(dispatch).exchange == TokenExchange(True, 2048, False, 128, 8)


def test_uneven_ranks_are_held_up_by_the_one_with_most_tokens_but_carry_the_mean() -> None:
    """100 tokens here, 400 on all eight ranks: 50 of 100 on average."""
    operators = experts(Partition(dp=8, ep=8), tokens=100, group_tokens=400)
    dispatch = communication(operators["moe_dispatch"])
    assert dispatch.size_bytes == 100 * 14336
    assert dispatch.exchange is not None
    assert dispatch.exchange.mean_share == 0.5


def by(kind: DispatchKind, *, is_decode: bool = False, partition: Partition | None = None) -> dict[str, Operator]:
    """Experts of DeepSeek-V3 for 100 tokens on each of eight ranks."""
    model, dispatch = load_model("deepseek-v3"), ExpertDispatch(kind, kind)
    parallel = partition or Partition(dp=8, ep=8)
    own = 100 * parallel.tp
    operators = expert_operators(
        model, parallel, FP8, tokens=own, group_tokens=own * parallel.dp, is_decode=is_decode, dispatch=dispatch
    )
    return {op.name: op for op in operators}


@pytest.mark.parametrize(("tp", "dp"), [(1, 8), (2, 4)])
def test_all_gathers_carry_quantised_tokens_with_their_choice_and_sums_come_back(tp: int, dp: int) -> None:
    """800 tokens · 7168 B, quantised by their ranks, and behind it scales of 4·56 B, weights and ids of 8 · 4 B; 800 ·
    14336 B are reduced."""
    operators = by("all_gather", partition=Partition(tp=tp, dp=dp, ep=8))
    behind = (224 / 7168, 32 / 7168, 32 / 7168)
    assert communication(operators["moe_dispatch"]) == Communication("all_gather", 800 * 7168, "ep", behind=behind)
    assert communication(operators["moe_combine"]) == Communication("reduce_scatter", 800 * 14336, "ep")
    assert list(operators)[:3] == ["moe_quant", "moe_dispatch", "moe_permute"]
    assert elementwise(operators["moe_quant"]).rows == 100
    assert grouped(operators["moe_gate_up"]).rows == 800


def test_bf16_models_gather_values_weights_and_ids() -> None:
    """80 tokens of 2 · 2048 B; 8 experts of 4 + 4 B each."""
    operators = expert_operators(
        load_model("qwen3-30b-a3b"),
        Partition(dp=8, ep=8),
        BF16,
        tokens=10,
        group_tokens=80,
        is_decode=True,
        dispatch=ExpertDispatch("all_gather", "all_gather"),
    )
    dispatch = next(op for op in operators if op.name == "moe_dispatch")
    behind = (32 / 4096, 32 / 4096)
    assert communication(dispatch) == Communication("all_gather", 80 * 4096, "ep", behind=behind)
    assert "moe_quant" not in {op.name for op in operators}


def test_bf16_experts_that_ranks_share_pass_the_pairs_of_all_ranks_through() -> None:
    """80 tokens of 8 experts, 16 of 128 on each rank: 640 pairs are activated and summed, of which 80 are computed; two
    kernels a layer find the tiles' experts."""
    model, gathers = load_model("qwen3-30b-a3b"), ExpertDispatch("all_gather", "all_gather")
    shared, own = (
        {
            op.name: op
            for op in expert_operators(
                model, partition, BF16, tokens=tokens, group_tokens=80, is_decode=True, dispatch=gathers
            )
        }
        for partition, tokens in ((Partition(dp=8, ep=8), 10), (ONE, 80))
    )
    assert grouped(shared["moe_gate_up"]).rows == 80
    assert grouped(shared["moe_gate_up"]).is_shared
    assert elementwise(shared["moe_silu_mul"]).rows == elementwise(shared["moe_unpermute"]).rows == 640
    assert shared["moe_expert_map"].count == 2 * 48
    assert not grouped(own["moe_gate_up"]).is_shared
    assert "moe_expert_map" not in own


def test_ranks_that_gather_all_tokens_sum_into_all_of_them() -> None:
    """DeepEP's receivers sum 800 rows into those of distinct tokens; here all 800 tokens have a sum, wanted or not."""
    gathered, dispatched = by("all_gather"), by("deepep_normal")
    assert gathered["moe_unpermute"].moved_bytes == 2 * 7168 * (800 + 800)
    assert "moe_reduce" not in gathered
    assert grouped(dispatched["moe_gate_up"]).rows == grouped(gathered["moe_gate_up"]).rows


def test_engines_that_gather_bf16_quantise_rows_afterwards() -> None:
    reduced, gathered = by("all_reduce"), by("all_gather_bf16", is_decode=True)
    for name, op in (("moe_dispatch", "all_gather"), ("moe_combine", "reduce_scatter")):
        assert communication(gathered[name]) == Communication(op, 800 * 14336, "ep")
        assert communication(reduced[name]) == Communication("all_reduce", 800 * 14336, "ep")
    for operators in (reduced, gathered):
        names = list(operators)
        assert names.index("moe_dispatch") < names.index("moe_quant")
        assert elementwise(operators["moe_quant"]).rows == 800


def test_every_data_parallel_rank_broadcasts_in_turn() -> None:
    """8 times 100 tokens · 2 B · (7168 values + 256 router logits), in each of 58 layers."""
    dispatch = by("broadcast")["moe_dispatch"]
    assert communication(dispatch) == Communication("broadcast", 100 * 2 * (7168 + 256), "ep")
    assert dispatch.count == 8 * 58


def test_an_all_to_all_carries_one_copy_per_distinct_rank_in_both_phases() -> None:
    """8 ranks with one of DeepSeek's 8 groups each: a token's 8 experts lie in 4 groups of 32, of which it then meets
    4 · (1 − C(96, 8)/C(128, 8)) = 3.6290."""
    for is_decode in (True, False):
        operators = by("all_to_all", is_decode=is_decode)
        dispatch, combine = communication(operators["moe_dispatch"]), communication(operators["moe_combine"])
        assert dispatch.size_bytes == pytest.approx(100 * 3.629011 * 7392, rel=1e-6)
        assert combine.size_bytes == pytest.approx(100 * 3.629011 * 14336, rel=1e-6)


def test_copies_of_ungrouped_experts_follow_from_drawing_without_repetition() -> None:
    """8 ranks: 8·(1 − C(224, 8)/C(256, 8)); one rank of 128 experts, 8 chosen: 1. With two groups per rank, one chosen:
    the token's rank is the only one."""
    (moe,) = {kind.ffn for kind in load_model("qwen3-30b-a3b").kinds if isinstance(kind.ffn, MoeFfn)}
    ungrouped = replace(moe, experts=256)
    assert copies_per_token(ungrouped, 8) == pytest.approx(8 * (1 - math.comb(224, 8) / math.comb(256, 8)))
    assert copies_per_token(moe, 1) == 1
    assert copies_per_token(replace(ungrouped, groups=8, groups_per_token=1), 4) == pytest.approx(1)


def test_an_idle_rank_computes_for_the_others_and_sends_nothing() -> None:
    operators = experts(Partition(dp=8, ep=8), tokens=0, group_tokens=700)
    assert communication(operators["moe_dispatch"]).size_bytes == 0
    assert grouped(operators["moe_gate_up"]).rows == 700
    assert "moe_reduce" not in operators
    idle = iteration_operators(load_model("deepseek-v3"), Partition(dp=8, ep=8), FP8, Batch.empty(), group_tokens=700)
    assert {op.name for op in idle} == set(operators)


def test_without_dispatch_the_tokens_of_other_replicas_do_not_count() -> None:
    """ep = 1 with dp = 4: four independent replicas of all experts."""
    operators = experts(Partition(dp=4), tokens=10, group_tokens=40)
    assert grouped(operators["moe_gate_up"]).rows == 80
    assert not any(isinstance(op.kernel, Communication) for op in operators.values())


def test_redundant_slots_are_stored_and_share_the_rows() -> None:
    """288 slots on 32 ranks: 9 weights per rank, routing still 8 of 256 experts."""
    operators = experts(Partition(dp=32, ep=32, redundant_experts=32), tokens=64, group_tokens=2048)
    assert grouped(operators["moe_gate_up"]).groups == 9
    assert grouped(operators["moe_gate_up"]).rows == 512
    router = listed("deepseek-v3", Partition(dp=32, ep=32, redundant_experts=32), DECODE)["router"]
    assert gemm_shape(router)[1] == 256


def test_experts_are_not_listed_for_dense_models() -> None:
    dense = load_model("qwen3-8b")
    assert expert_operators(dense, ONE, BF16, tokens=5, group_tokens=5, is_decode=True) == []


def test_vllms_kernel_gathers_rows_of_tokens_that_are_quantised_once() -> None:
    """10 tokens of 8 experts each: DeepGEMM's layout copies and quantises 80 rows, vLLM's kernel needs 10."""
    model, tokens = load_model("deepseek-v3"), 10
    for is_decode in (True, False):
        operators = {
            op.name: op
            for op in expert_operators(
                model, ONE, FP8, tokens=tokens, group_tokens=tokens, is_decode=is_decode, experts_kernel="triton"
            )
        }
        assert list(operators) == [
            "moe_quant",
            "moe_align",
            "moe_gate_up",
            "moe_silu_mul",
            "moe_down_quant",
            "moe_down",
            "moe_unpermute",
        ]
        assert elementwise(operators["moe_quant"]).rows == tokens
        assert grouped(operators["moe_gate_up"]).layout == grouped(operators["moe_down"]).layout == "gathered"
        assert grouped(operators["moe_gate_up"]).rows == 80


def test_the_kernel_of_fp8_experts_leaves_bf16_ones_alone() -> None:
    model = load_model("qwen3-30b-a3b")
    deep_gemm, triton = (
        [
            (op.name, op.kernel, op.count)
            for op in expert_operators(
                model, ONE, BF16, tokens=9, group_tokens=9, is_decode=True, experts_kernel=kernel
            )
        ]
        for kernel in ("deep_gemm", "triton")
    )
    assert deep_gemm == triton


def test_vllms_kernel_takes_few_pairs_as_they_come() -> None:
    """``naive_block_assignment``: 8 tokens of 8 experts are 64 pairs, a quarter of 256 experts; 9 tokens are more."""
    model = load_model("deepseek-v3")

    def sorts(tokens: int) -> bool:
        listed = expert_operators(
            model, ONE, FP8, tokens=tokens, group_tokens=tokens, is_decode=True, experts_kernel="triton"
        )
        return "moe_align" in {op.name for op in listed}

    assert [sorts(tokens) for tokens in (1, 8, 9)] == [False, False, True]


@pytest.mark.parametrize(
    ("tp", "dp", "own", "group", "one_way"),
    [
        (1, 2, 100, 100, 100),  # one sends 100 to an idle one
        (1, 2, 100, 140, 100),  # and gets 40 from the other at the same time
        (1, 2, 100, 150, None),
        (1, 2, 100, 200, None),
        (1, 4, 100, 100, None),  # 100 to three: a gather has 75 in each direction, which takes as long
        (2, 2, 100, 100, None),
        (1, 4, 100, 400, None),
    ],
)
def test_ranks_broadcast_where_one_has_most_of_the_tokens(
    tp: int, dp: int, own: int, group: int, one_way: int | None
) -> None:
    """``one_way``: tokens of the broadcast; a gather has those of all ranks."""
    gathers = ExpertDispatch("all_gather", "all_gather")
    partition = Partition(tp=tp, dp=dp, ep=tp * dp)
    found = expert_operators(
        load_model("deepseek-v3"), partition, FP8, tokens=own, group_tokens=group, is_decode=False, dispatch=gathers
    )
    operators = {op.name: op for op in found}
    there, back = communication(operators["moe_dispatch"]), communication(operators["moe_combine"])
    assert (there.op, back.op) == (("broadcast", "reduce") if one_way else ("all_gather", "reduce_scatter"))
    assert (there.size_bytes, back.size_bytes) == ((one_way or group) * 7168, (one_way or group) * 14336)
    assert len(there.behind) == 3
    assert grouped(operators["moe_gate_up"]).rows == pytest.approx(group * 8 / (tp * dp))


def test_sglangs_gather_carries_the_tokens_of_all() -> None:
    kinds = ExpertDispatch("all_gather_bf16", "all_gather_bf16")
    found = expert_operators(
        load_model("deepseek-v3"), Partition(dp=2, ep=2), FP8, tokens=9, group_tokens=12, is_decode=True, dispatch=kinds
    )
    dispatch = next(op for op in found if op.name == "moe_dispatch")
    assert communication(dispatch).size_bytes == 12 * 14336
