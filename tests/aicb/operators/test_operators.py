"""Operator lists are complete, with the shapes and bytes that the layers and the partition imply."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from aicb import (
    Batch,
    InputError,
    Partition,
    PartitionError,
    Phase,
    built_in_models,
    head_operators,
    iteration_operators,
    load_model,
    token_operators,
)
from aicb.kernels.batched_gemm import BatchedGemm
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.operators.operator import Communication
from tests.aicb.operator_rows import BF16, DECODE, FP8, ONE, communication, elementwise, gemm_shape, grouped, listed


def test_a_qwen3_dense_layer_lists_every_operator() -> None:
    names = ["input_norm", "qkv", "q_norm", "k_norm", "rope", "kv_write", "o", "attention_all_reduce"]
    names += ["post_attention_norm", "ffn_gate_up", "ffn_silu_mul", "ffn_down", "ffn_all_reduce", "decode_attention"]
    ends = [
        "embedding",
        "embedding_all_reduce",
        "final_norm",
        "lm_head",
        "logits_all_gather",
        "logits_join",
        "sampling",
    ]
    operators = listed("qwen3-8b", Partition(tp=2), DECODE)
    assert sorted(operators) == sorted(names + ends)
    assert {operators[name].count for name in names} == {36}
    assert {operators[name].count for name in ends} == {1}
    assert set(listed("llama-3.1-8b", Partition(tp=2), DECODE)) == set(operators) - {"q_norm", "k_norm"}


def test_quantisation_is_listed_with_fp8_weights_only() -> None:
    """One before each fp8 GEMM, except the down projections, which the activation kernel quantises for."""
    for name in built_in_models():
        bf16, fp8 = listed(name, ONE, DECODE), listed(name, ONE, DECODE, FP8)
        gathered = {"moe_align": "moe_permute"}  # bf16 experts gather rows by sorted indices instead of copying them
        same = {gathered.get(op, op) for op in bf16}
        added = set(fp8) - same
        assert same <= set(fp8)
        assert added == {op for op in fp8 if op.endswith("quant")}
        assert {"attention_quant"} < added
        assert {elementwise(fp8[op]).name for op in added} == {"quant"}
        kernels = {elementwise(op).name for op in fp8.values() if op.name.endswith("silu_mul")}
        assert kernels == {"silu_mul_quant"}
    dense = {"attention_quant", "o_quant", "ffn_quant"}
    assert {op for op in listed("llama-2-7b", ONE, DECODE, FP8) if "quant" in op} == dense


def test_router_head_and_small_projections_stay_bf16_in_fp8_models() -> None:
    for name in built_in_models():
        for op in iteration_operators(load_model(name), ONE, FP8, DECODE):
            if isinstance(op.kernel, Gemm | GroupedGemm):
                is_small = op.name in ("router", "lm_head", "shared_gate", "gdn_ba", "index_weights")
                expected = "bf16" if is_small else "fp8"
                assert op.kernel.dtype == expected, op.name


def test_qwen3_moe_shapes_follow_the_layout() -> None:
    """Qwen3-235B: qkv (T, 9216/t), o (4096, 8192/t), router 128, experts (3072, 4096) and (4096, 1536)."""
    batch = Batch.decode([500] * 10)
    for tp in (1, 2, 4):
        operators = listed("qwen3-235b-a22b", Partition(tp=tp), batch)
        assert gemm_shape(operators["qkv"]) == (10, 9216 // tp, 4096)
        assert gemm_shape(operators["o"]) == (10, 4096, 8192 // tp)
        assert gemm_shape(operators["router"]) == (10, 128, 4096)
        assert gemm_shape(operators["moe_gate_up"]) == (80, 3072 // tp, 4096)
        assert gemm_shape(operators["moe_down"]) == (80, 4096, 1536 // tp)
    replicated = listed("qwen3-235b-a22b", Partition(tp=8), batch)
    assert gemm_shape(replicated["qkv"]) == (10, (64 + 2 * 8) * 128 // 8, 4096)
    whole = listed("qwen3-235b-a22b", Partition(tp=4, ep=4), batch)
    assert gemm_shape(whole["moe_gate_up"]) == (20, 3072, 4096)
    assert grouped(whole["moe_down"]).groups == 32


def test_deepseek_decode_is_absorbed_and_prefill_expanded() -> None:
    names = ["embedding", "input_norm", "attention_quant", "qkv_a", "q_a_norm", "q_b_quant", "q_b", "kv_a_norm", "rope"]
    names += ["kv_write", "o_quant", "o", "post_attention_norm", "ffn_quant", "ffn_gate_up", "ffn_silu_mul", "ffn_down"]
    names += ["router", "topk", "shared_quant", "shared_gate_up", "shared_silu_mul", "shared_down", "shared_add"]
    names += ["moe_permute", "moe_quant", "moe_gate_up", "moe_silu_mul", "moe_down", "moe_unpermute"]
    names += ["final_norm", "lm_head", "sampling"]
    decode = listed("deepseek-v3", ONE, DECODE, FP8)
    prefill = listed("deepseek-v3", ONE, Batch.prefill([100]), FP8)
    assert sorted(decode) == sorted([*names, "q_absorb", "mla_decode", "o_unabsorb"])
    assert sorted(prefill) == sorted([*names, "kv_b_quant", "kv_b", "kv_b_assemble_k", "prefill_attention"])
    assert gemm_shape(prefill["qkv_a"]) == (100, 2112, 7168)
    assert gemm_shape(prefill["q_b"]) == (100, 24576, 1536)
    assert gemm_shape(prefill["kv_b"]) == (100, 32768, 512)
    assert gemm_shape(prefill["o"]) == (100, 7168, 16384)
    assert decode["q_absorb"].kernel == BatchedGemm(batch=128, m=4, n=512, k=128)
    assert decode["o_unabsorb"].kernel == BatchedGemm(batch=128, m=4, n=128, k=512)


def test_latent_projections_are_whole_on_every_tensor_parallel_rank() -> None:
    operators = listed("deepseek-v3", Partition(tp=8), Batch.prefill([100]))
    assert gemm_shape(operators["qkv_a"]) == (100, 2112, 7168)
    assert gemm_shape(operators["q_b"]) == (100, 3072, 1536)
    assert elementwise(operators["kv_write"]).cols == 576


def test_dense_ffn_of_deepseek_is_nine_shared_experts_wide() -> None:
    """Layers 0–2 have an intermediate of 18432, a shared expert 2048."""
    operators = listed("deepseek-v3", ONE, DECODE, FP8)
    dense = operators["ffn_gate_up"].weight_elements + operators["ffn_down"].weight_elements
    shared = operators["shared_gate_up"].weight_elements + operators["shared_down"].weight_elements
    assert dense == 9 * shared
    assert (operators["ffn_down"].count, operators["shared_down"].count) == (3, 58)


def test_qwen3_next_layers_have_gated_queries_and_linear_attention() -> None:
    """Full attention: q, gate, k, v of 9216 columns; linear: qkvz 12288, ba 64, out 4096, conv of 8192 channels."""
    batch = Batch.prefill([100])
    for tp in (1, 2):
        operators = listed("qwen3-next-80b-a3b", Partition(tp=tp), batch)
        assert gemm_shape(operators["qkv"]) == (100, 9216 // tp, 2048)
        assert gemm_shape(operators["o"]) == (100, 2048, 4096 // tp)
        assert gemm_shape(operators["gdn_qkvz"]) == (100, 12288 // tp, 2048)
        assert gemm_shape(operators["gdn_ba"]) == (100, 64 // tp, 2048)
        assert gemm_shape(operators["gdn_out"]) == (100, 2048, 4096 // tp)
        assert elementwise(operators["gdn_conv"]).cols == 8192 // tp
        assert elementwise(operators["rope"]).cols == (16 + 2) * 64 // tp
        assert gemm_shape(operators["shared_gate"]) == (100, 1, 2048)
        assert (operators["qkv"].count, operators["gdn_qkvz"].count, operators["router"].count) == (12, 36, 48)


def test_hidden_norms_act_on_hidden_columns_and_head_norms_on_head_dim() -> None:
    operators = listed("qwen3-30b-a3b", ONE, Batch.prefill([100]))
    assert (elementwise(operators["input_norm"]).rows, elementwise(operators["input_norm"]).cols) == (100, 2048)
    assert operators["input_norm"].moved_bytes == 100 * 2048 * 2 * 4 + 2048 * 2
    assert (elementwise(operators["q_norm"]).rows, elementwise(operators["q_norm"]).cols) == (3200, 128)
    assert (elementwise(operators["k_norm"]).rows, elementwise(operators["k_norm"]).cols) == (400, 128)


def test_removing_permutation_activation_or_quantisation_changes_an_moe_layer() -> None:
    operators = listed("deepseek-v3", Partition(dp=8, ep=8), Batch.prefill([100]), FP8)
    for name in ("moe_quant", "moe_permute", "moe_silu_mul", "moe_unpermute", "moe_reduce"):
        assert operators[name].moved_bytes > 0


def test_fp8_weights_take_one_byte_and_block_scales() -> None:
    """(9216, 4096): 4 B for each of 72·32 blocks; 10 rows of 4096 activations with 32 scales each; bf16 output."""
    qkv = listed("qwen3-235b-a22b", ONE, Batch.decode([9] * 10), FP8)["qkv"]
    weight, activations, output = 9216 * 4096 + 4 * 72 * 32, 10 * (4096 + 4 * 32), 10 * 9216 * 2
    assert qkv.moved_bytes == weight + activations + output
    assert qkv.flops == 2 * 10 * 9216 * 4096


def test_a_partial_scale_block_counts_as_one() -> None:
    """qkv_a has 2112 = 16.5·128 rows: 17 blocks."""
    qkv_a = listed("deepseek-v3", ONE, Batch.decode([9]), FP8)["qkv_a"]
    assert qkv_a.moved_bytes == 2112 * 7168 + 4 * 17 * 56 + (7168 + 4 * 56) + 2112 * 2


@pytest.mark.parametrize("name", ["llama-2-13b", "qwen3-8b", "deepseek-v3"])
def test_tensor_parallelism_adds_two_all_reduces_per_layer(name: str) -> None:
    """Payloads of T·h·2 B: two per layer and one after the embedding."""
    model, batch = load_model(name), Batch.decode([50] * 24)
    payload = 24 * model.hidden * 2
    for tp, expected in ((1, 0), (2, 2 * len(model.layers) + 1)):
        operators = iteration_operators(model, Partition(tp=tp), BF16, batch)
        reduces = [op for op in operators if isinstance(op.kernel, Communication) and op.kernel.op == "all_reduce"]
        assert sum(op.count for op in reduces) == expected
        assert all(communication(op) == Communication("all_reduce", payload, "tp") for op in reduces)


def test_tensor_parallel_ranks_divide_the_tokens_they_dispatch() -> None:
    """tp 2, dp 4: 10 tokens are routed as 5 by each rank, and gathered again; there is no all-reduce after experts."""
    operators = listed("deepseek-v3", Partition(tp=2, dp=4, ep=8), Batch.decode([50] * 10), FP8)
    assert gemm_shape(operators["router"])[0] == gemm_shape(operators["shared_down"])[0] == 5
    assert gemm_shape(operators["shared_down"]) == (5, 7168, 2048)
    assert communication(operators["moe_all_gather"]) == Communication("all_gather", 10 * 7168 * 2, "tp")
    assert communication(operators["moe_dispatch"]).size_bytes == 5 * 14336
    assert "moe_all_reduce" not in operators


def test_stages_pass_hidden_states_and_only_the_ends_have_embedding_and_head() -> None:
    model, partition = load_model("deepseek-v3"), Partition(pp=4)
    names = [
        {op.name: op for op in iteration_operators(model, partition, BF16, DECODE, stage=stage)} for stage in range(4)
    ]
    assert ["embedding" in stage for stage in names] == [True, False, False, False]
    assert ["lm_head" in stage for stage in names] == [False, False, False, True]
    assert ["stage_send" in stage for stage in names] == [True, True, True, False]
    assert ["ffn_down" in stage for stage in names] == [True, False, False, False]
    assert [stage["qkv_a"].count for stage in names] == [15, 15, 16, 15]
    assert communication(names[0]["stage_send"]) == Communication("send_recv", 4 * 7168 * 2, "pp")


def test_logits_are_computed_for_the_rows_that_need_them() -> None:
    chunk = Batch(np.array([500]), np.array([500]), logit_rows=0)
    assert "lm_head" not in listed("qwen3-8b", ONE, chunk)
    head = listed("qwen3-8b", ONE, Batch.prefill([500, 20]))["lm_head"]
    assert gemm_shape(head) == (2, 151936, 4096)
    assert head.moved_bytes == 2 * (151936 * 4096 + 2 * 4096 + 2 * 151936)


def test_head_rows_of_another_stage_are_not_listed() -> None:
    assert head_operators(load_model("qwen3-8b"), Partition(pp=2), BF16, rows=3, stage=0) == []


@pytest.mark.parametrize(
    ("name", "partition", "message"),
    [
        ("qwen3-8b", Partition(tp=5), "tp: found 5, expected a divisor of the 32 attention heads"),
        ("llama-3.1-70b", Partition(tp=3), "tp: found 3, expected a divisor of the 64 attention heads"),
        ("deepseek-v3", Partition(tp=6), "tp: found 6, expected a divisor of the 128 attention heads"),
        ("qwen3-next-80b-a3b", Partition(tp=32), "tp: found 32, expected a divisor of the 16 key heads"),
        ("llama-2-13b", Partition(tp=40), "tp: found 40, expected a divisor of the 13824 ffn intermediate columns"),
        ("deepseek-v3", Partition(dp=3, ep=3), "ep: found 3, expected a divisor of the 256 expert slots"),
        ("deepseek-v3", Partition(dp=32, ep=32, redundant_experts=1), "ep: found 32, .* the 257 expert slots"),
    ],
)
def test_a_partition_that_does_not_divide_the_model_is_refused_with_both_numbers(
    name: str, partition: Partition, message: str
) -> None:
    with pytest.raises(PartitionError, match=message):
        iteration_operators(load_model(name), partition, BF16, DECODE)


def test_kv_heads_that_neither_divide_nor_are_divided_are_refused() -> None:
    """96 query heads divide by 12, its 8 KV heads do not."""
    with pytest.raises(PartitionError, match="tp: found 12, expected a multiple of the 8 KV heads"):
        token_operators(load_model("qwen3-coder-480b-a35b"), Partition(tp=12), BF16, tokens=1)


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(InputError, match="stage: found 1, expected 0…0"):
        token_operators(load_model("qwen3-8b"), ONE, BF16, tokens=1, stage=1)


def test_no_work_lists_nothing() -> None:
    model = load_model("qwen3-30b-a3b")
    assert iteration_operators(model, ONE, BF16, Batch.empty()) == []


def test_flops_bytes_and_weights_are_finite_and_not_negative() -> None:
    for name in built_in_models():
        for batch in (DECODE, Batch.prefill([70, 3], [5, 0]), Batch.prefill([1])):
            for op in iteration_operators(load_model(name), ONE, FP8, batch):
                assert math.isfinite(op.flops)
                assert math.isfinite(op.moved_bytes)
                assert min(op.flops, op.moved_bytes, op.weight_elements, op.count - 1) >= 0
                assert (op.phase is Phase.COMMUNICATION) == isinstance(op.kernel, Communication)


def test_listing_an_iteration_of_deepseek_takes_under_a_millisecond() -> None:
    model, partition, batch = load_model("deepseek-v3"), Partition(dp=32, ep=32), Batch.decode([4096] * 128)
    seconds = []
    for _ in range(50):
        start = time.process_time()
        iteration_operators(model, partition, FP8, batch)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1e-3
