"""Routed experts: rows, active experts, layouts, dispatch and combine."""

from __future__ import annotations

import math

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
from aicb.operators.operator import Communication
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


def test_low_latency_dispatch_sends_one_message_per_chosen_expert() -> None:
    """128 tokens · 8 · (16 + 7168 + 4·56) B there, 128 · 8 · 2·7168 B back."""
    operators = experts(Partition(dp=32, ep=32), tokens=128, group_tokens=32 * 128)
    assert communication(operators["moe_dispatch"]) == Communication("all_to_all", 128 * 8 * 7408, "ep")
    assert communication(operators["moe_combine"]) == Communication("all_to_all", 128 * 8 * 14336, "ep")


def test_normal_dispatch_sends_one_copy_per_distinct_rank() -> None:
    """8 ranks: 8·(1 − C(224, 8)/C(256, 8)) ranks expected; fp8 takes 0.515625 of the bytes of bf16."""
    operators = experts(Partition(dp=8, ep=8), tokens=4096, group_tokens=8 * 4096, is_decode=False)
    ranks = 8 * (1 - math.comb(224, 8) / math.comb(256, 8))
    dispatch, combine = communication(operators["moe_dispatch"]), communication(operators["moe_combine"])
    assert dispatch.size_bytes == math.ceil(4096 * ranks * (7168 + 4 * 56))
    assert combine.size_bytes == math.ceil(4096 * ranks * 14336)
    assert dispatch.size_bytes / combine.size_bytes == pytest.approx(0.515625, rel=1e-6)


def test_bf16_models_dispatch_bf16() -> None:
    operators = expert_operators(
        load_model("qwen3-30b-a3b"), Partition(dp=8, ep=8), BF16, tokens=10, group_tokens=80, is_decode=True
    )
    dispatch = next(op for op in operators if op.name == "moe_dispatch")
    assert communication(dispatch).size_bytes == 10 * 8 * (2 * 2048 + 16)


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
