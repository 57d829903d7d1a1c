"""Operator lists: complete, with the FLOPs, bytes and weights that shapes imply, per rank and summed over ranks."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import (
    Batch,
    InputError,
    Model,
    Operator,
    Partition,
    PartitionError,
    Phase,
    Precision,
    attention_operators,
    built_in_models,
    expert_operators,
    head_operators,
    iteration_operators,
    load_model,
    token_operators,
)
from aicb.model import GatedDeltaNet, GroupedQueryAttention, LatentAttention, MoeFfn
from aicb.operators import BatchedGemm, Communication, Elementwise, Gemm, GroupedGemm
from aicb.parallelism import MoeLayout

BF16, FP8 = Precision(), Precision(weights="fp8")
ONE = Partition()
DECODE = Batch.decode([1000] * 4)


def listed(name: str, partition: Partition, batch: Batch, precision: Precision = BF16) -> dict[str, Operator]:
    """Operators of the only stage by name."""
    operators = iteration_operators(load_model(name), partition, precision, batch)
    assert len({op.name for op in operators}) == len(operators)
    return {op.name: op for op in operators}


def gemm_shape(operator: Operator) -> tuple[float, int, int]:
    work = operator.work
    assert isinstance(work, Gemm | GroupedGemm)
    return (work.m if isinstance(work, Gemm) else work.rows, work.n, work.k)


def elementwise(operator: Operator) -> Elementwise:
    assert isinstance(operator.work, Elementwise)
    return operator.work


def communication(operator: Operator) -> Communication:
    assert isinstance(operator.work, Communication)
    return operator.work


def grouped(operator: Operator) -> GroupedGemm:
    assert isinstance(operator.work, GroupedGemm)
    return operator.work


def compute(operators: list[Operator]) -> list[tuple[str, float, float]]:
    return [(op.name, op.count * op.flops, op.count * op.moved_bytes) for op in operators]


# ---- weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [BF16, FP8], ids=["bf16", "fp8"])
@pytest.mark.parametrize("name", built_in_models())
def test_weights_of_all_operators_are_the_parameters_of_the_model(name: str, precision: Precision) -> None:
    model = load_model(name)
    operators = iteration_operators(model, ONE, precision, DECODE)
    assert sum(op.count * op.weight_elements for op in operators) == model.parameters


def held_by_all_ranks(model: Model, partition: Partition) -> int | Fraction:
    """Parameters times the number of ranks that hold them, from the sharding rules and independent of the lists.

    Attention data parallelism holds all but the experts dp times. Within a TP group norms, routers, MLA
    down-projections and gates are replicated, and KV heads t/K times where t > K. Dispatch needs the shared expert
    whole on each rank. Weights of routed experts exist once where experts are divided, plus redundant slots.
    """
    h, t = model.hidden, partition.tp
    is_dispatch = partition.moe_layout is MoeLayout.EXPERT_DATA
    replicated: int | Fraction = h  # the final norm
    experts = slots = 0
    for layer in model.layers:
        replicated += 2 * h
        match layer.attention:
            case GroupedQueryAttention() as gqa:
                replicated += 2 * gqa.head_dim if gqa.has_head_norm else 0
                kv_copies = max(t // gqa.kv_heads, 1)
                replicated += Fraction(kv_copies - 1, t - 1 or 1) * h * gqa.kv_elements
            case LatentAttention() as mla:
                assert mla.q_lora_rank is not None
                replicated += (h + 1) * mla.q_lora_rank + h * mla.kv_elements + mla.kv_lora_rank
            case GatedDeltaNet() as gdn:
                replicated += gdn.head_dim
        if isinstance(layer.ffn, MoeFfn):
            moe = layer.ffn
            replicated += moe.experts * (h + (1 if moe.has_correction_bias else 0))
            replicated += h if moe.has_shared_gate else 0
            replicated += 3 * h * moe.shared_intermediate if is_dispatch else 0
            experts += moe.experts * moe.expert_parameters(h)
            slots += (moe.experts + partition.redundant_experts) * moe.expert_parameters(h)
    attention_group = model.parameters - experts + (t - 1) * replicated
    return partition.dp * attention_group + (1 if is_dispatch else partition.dp) * slots


PARTITIONS = [
    Partition(tp=2),
    Partition(tp=8),
    Partition(tp=4, ep=4),
    Partition(dp=4),
    Partition(dp=4, ep=4),
    Partition(tp=2, dp=4, ep=8),
    Partition(tp=2, pp=3),
    Partition(dp=16, ep=16, redundant_experts=32),
    Partition(tp=2, ep=2, pp=4),
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
@pytest.mark.parametrize(
    "name", ["llama-3.1-70b", "qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "qwen3-next-80b-a3b"]
)
def test_weights_summed_over_ranks_are_the_model_and_its_replicas(name: str, partition: Partition) -> None:
    model = load_model(name)
    per_stage = [
        sum(op.count * op.weight_elements for op in iteration_operators(model, partition, FP8, DECODE, stage=stage))
        for stage in range(partition.pp)
    ]
    assert partition.tp * partition.dp * sum(per_stage) == held_by_all_ranks(model, partition)


def test_a_tied_head_is_stored_again_only_on_another_stage() -> None:
    model = load_model("qwen3-0.6b")
    held = [
        op.weight_elements
        for stage in (0, 1)
        for op in iteration_operators(model, Partition(pp=2), BF16, DECODE, stage=stage)
        if op.name in ("embedding", "lm_head")
    ]
    assert held == [151936 * 1024] * 2
    assert listed("qwen3-0.6b", ONE, DECODE)["lm_head"].weight_elements == 0


@pytest.mark.parametrize("name", built_in_models())
def test_gemm_flops_per_decoded_token_are_twice_the_active_matrix_weights(name: str) -> None:
    """Active parameters less norms, router bias, convolution, decay: everything that is not a matrix product."""
    model = load_model(name)
    not_matrices = (2 * len(model.layers) + 1) * model.hidden
    for layer in model.layers:
        match layer.attention:
            case GroupedQueryAttention() as gqa:
                not_matrices += 2 * gqa.head_dim if gqa.has_head_norm else 0
            case LatentAttention() as mla:
                not_matrices += (mla.q_lora_rank or 0) + mla.kv_lora_rank
            case GatedDeltaNet() as gdn:
                not_matrices += gdn.conv_channels * gdn.conv_width + 2 * gdn.value_heads + gdn.head_dim
        if isinstance(layer.ffn, MoeFfn) and layer.ffn.has_correction_bias:
            not_matrices += layer.ffn.experts
    products = (Gemm, BatchedGemm, GroupedGemm)
    operators = iteration_operators(model, ONE, BF16, Batch.decode([2]))
    flops = sum(op.count * op.flops for op in operators if isinstance(op.work, products))
    assert flops == pytest.approx(2 * (model.active_parameters - not_matrices), rel=1e-12)


# ---- lists of section "per-layer operators" ------------------------------------------------------------------------


def test_a_qwen3_dense_layer_lists_every_operator() -> None:
    names = ["input_norm", "qkv", "q_norm", "k_norm", "rope", "kv_write", "o", "attention_all_reduce"]
    names += ["post_attention_norm", "ffn_gate_up", "ffn_silu_mul", "ffn_down", "ffn_all_reduce", "decode_attention"]
    ends = ["embedding", "embedding_all_reduce", "final_norm", "lm_head", "logits_all_gather", "sampling"]
    operators = listed("qwen3-8b", Partition(tp=2), DECODE)
    assert sorted(operators) == sorted(names + ends)
    assert {operators[name].count for name in names} == {36}
    assert {operators[name].count for name in ends} == {1}
    assert set(listed("llama-3.1-8b", Partition(tp=2), DECODE)) == set(operators) - {"q_norm", "k_norm"}


def test_quantisation_is_listed_with_fp8_weights_only() -> None:
    """One before each fp8 GEMM, except the down projections, which the activation kernel quantises for."""
    for name in built_in_models():
        bf16, fp8 = listed(name, ONE, DECODE), listed(name, ONE, DECODE, FP8)
        added = set(fp8) - set(bf16)
        assert set(bf16) <= set(fp8)
        assert added == {op for op in fp8 if op.endswith("quant")}
        assert {"attention_quant"} < added
        assert {elementwise(fp8[op]).kernel for op in added} == {"quant"}
        kernels = {elementwise(op).kernel for op in fp8.values() if op.name.endswith("silu_mul")}
        assert kernels == {"silu_mul_quant"}
    dense = {"attention_quant", "o_quant", "ffn_quant"}
    assert {op for op in listed("llama-2-7b", ONE, DECODE, FP8) if "quant" in op} == dense


def test_router_head_and_small_projections_stay_bf16_in_fp8_models() -> None:
    for name in built_in_models():
        for op in iteration_operators(load_model(name), ONE, FP8, DECODE):
            if isinstance(op.work, Gemm | GroupedGemm):
                expected = "bf16" if op.name in ("router", "lm_head", "shared_gate", "gdn_ba") else "fp8"
                assert op.work.dtype == expected, op.name


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
    assert decode["q_absorb"].work == BatchedGemm(batch=128, m=4, n=512, k=128)
    assert decode["o_unabsorb"].work == BatchedGemm(batch=128, m=4, n=128, k=512)


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


# ---- attention -----------------------------------------------------------------------------------------------------

REQUESTS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 9000)), min_size=1, max_size=6)
ATTENTION_MODELS = st.sampled_from(["qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b"])


def batch_of(requests: list[tuple[int, int]]) -> Batch:
    new = np.array([q for q, _ in requests], dtype=np.int64)
    return Batch(new, new + np.array([past for _, past in requests], dtype=np.int64), len(requests))


@given(name=ATTENTION_MODELS, requests=REQUESTS)
def test_attention_does_not_depend_on_the_order_of_requests(name: str, requests: list[tuple[int, int]]) -> None:
    model = load_model(name)
    there = attention_operators(model, ONE, BF16, batch_of(requests))
    back = attention_operators(model, ONE, BF16, batch_of(requests[::-1]))
    assert compute(there) == compute(back)


@given(name=ATTENTION_MODELS, requests=REQUESTS)
def test_attention_flops_of_a_batch_are_those_of_its_requests(name: str, requests: list[tuple[int, int]]) -> None:
    """Mixed batches too: prefills and decodes are priced each by their phase."""
    model = load_model(name)
    together = attention_operators(model, ONE, BF16, batch_of(requests))
    apart = [op for request in requests for op in attention_operators(model, ONE, BF16, batch_of([request]))]
    assert sum(op.count * op.flops for op in together) == pytest.approx(sum(op.count * op.flops for op in apart))


def test_a_mixed_batch_lists_both_phases() -> None:
    mixed = batch_of([(100, 50), (1, 700), (1, 800)])
    names = {op.name for op in attention_operators(load_model("qwen3-8b"), ONE, BF16, mixed)}
    assert names == {"prefill_attention", "decode_attention"}
    names = {op.name for op in attention_operators(load_model("deepseek-v3"), ONE, BF16, mixed)}
    assert {"mla_decode", "prefill_attention", "kv_b", "past_kv_b", "past_merge"} < names
    names = {op.name for op in attention_operators(load_model("qwen3-next-80b-a3b"), ONE, BF16, mixed)}
    assert {"gdn_prefill", "gdn_decode", "prefill_attention", "decode_attention"} < names


def test_causal_prefill_counts_each_unmasked_pair_once() -> None:
    """q = 3 after 2 past tokens sees 3 + 4 + 5 = 12 keys: 12 · 2 products · 2 FLOP · 32 heads · 128."""
    prefill = attention_operators(load_model("qwen3-8b"), ONE, BF16, Batch.prefill([3], [2]))[0]
    assert prefill.flops == 12 * 2 * 2 * 32 * 128


def test_prefill_attention_has_as_many_query_rows_as_tokens() -> None:
    """4096 causal query rows see on average half of the keys that one decoded token sees: 2048.5 times its FLOPs."""
    model = load_model("qwen3-235b-a22b")
    prefill = attention_operators(model, ONE, BF16, Batch.prefill([4096]))[0]
    decode = attention_operators(model, ONE, BF16, Batch.decode([4096]))[0]
    assert prefill.flops == decode.flops * 2048.5


def test_mla_prefill_flops_grow_with_the_square_of_the_prompt() -> None:
    """Four times the tokens, sixteen times the pairs; heads are 192 wide for keys and 128 for values."""
    model = load_model("deepseek-v3")
    by_length = {
        length: {op.name: op for op in attention_operators(model, ONE, BF16, Batch.prefill([length]))}
        for length in (4096, 16384)
    }
    short, long = by_length[4096]["prefill_attention"], by_length[16384]["prefill_attention"]
    assert short.flops == 2 * 128 * (192 + 128) * 4096 * 4097 / 2
    assert 15.9 < long.flops / short.flops < 16


def test_splitting_a_prompt_in_two_requests_changes_prefill_attention() -> None:
    model = load_model("qwen3-8b")
    whole = attention_operators(model, ONE, BF16, Batch.prefill([8192]))[0]
    halves = attention_operators(model, ONE, BF16, Batch.prefill([4096, 4096]))[0]
    assert 1.99 < whole.flops / halves.flops < 2.0


@pytest.mark.parametrize("name", ["qwen3-8b", "deepseek-v3"])
def test_a_chunk_costs_more_the_longer_its_past(name: str) -> None:
    model = load_model(name)
    costs = []
    for past in (0, 1000, 8000):
        operators = attention_operators(model, ONE, BF16, Batch.prefill([512], [past]))
        costs.append((sum(op.flops for op in operators), sum(op.moved_bytes for op in operators)))
    assert costs == sorted(costs)
    assert len(set(costs)) == 3


def test_latents_of_past_tokens_are_expanded_again() -> None:
    operators = {
        op.name: op
        for op in attention_operators(load_model("deepseek-v3"), ONE, BF16, Batch.prefill([100, 50], [1000, 0]))
    }
    assert gemm_shape(operators["kv_b"]) == (150, 32768, 512)
    assert gemm_shape(operators["past_kv_b"]) == (1000, 32768, 512)
    assert elementwise(operators["past_merge"]).rows == 100


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3"])
def test_decode_reads_the_sum_of_kv_lengths_in_its_format(name: str) -> None:
    """KV bytes follow Σ S_i: doubling the batch doubles them, fp8 halves them."""
    model = load_model(name)
    kv_per_layer = model.kv_bytes_per_token() / len(model.layers)

    def moved(batch: Batch, precision: Precision) -> float:
        operators = attention_operators(model, ONE, precision, batch)
        return next(op for op in operators if op.name in ("mla_decode", "decode_attention")).moved_bytes

    one, two = Batch.decode([3000, 5000]), Batch.decode([3000, 5000] * 2)
    assert moved(two, BF16) == 2 * moved(one, BF16)
    assert moved(Batch.decode([4000, 5000]), BF16) - moved(one, BF16) == 1000 * kv_per_layer
    assert moved(one, BF16) - moved(one, Precision(kv="fp8")) == 8000 * kv_per_layer / 2


def test_gated_delta_decode_moves_one_state_per_sequence_whatever_its_length() -> None:
    """State read and written: 2 · 32 · 128 · 128 · 4 B in fp32, besides the token's own vectors."""
    model, precision = load_model("qwen3-next-80b-a3b"), Precision(state="fp32")

    def decode(lengths: list[int]) -> Operator:
        operators = attention_operators(model, ONE, precision, Batch.decode(lengths))
        return next(op for op in operators if op.name == "gdn_decode")

    assert decode([100] * 8).moved_bytes == 8 * decode([5000]).moved_bytes
    states = 2 * 32 * 128 * 128 * 4
    assert states < decode([100]).moved_bytes < 1.01 * states


def test_gated_delta_prefill_processes_every_token() -> None:
    model = load_model("qwen3-next-80b-a3b")
    flops = [
        next(op for op in attention_operators(model, ONE, BF16, Batch.prefill([n])) if op.name == "gdn_prefill").flops
        for n in (1000, 4000)
    ]
    assert flops[1] == 4 * flops[0]


# ---- experts -------------------------------------------------------------------------------------------------------


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
    assert not any(isinstance(op.work, Communication) for op in operators.values())


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


# ---- communication and pipeline ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-2-13b", "qwen3-8b", "deepseek-v3"])
def test_tensor_parallelism_adds_two_all_reduces_per_layer(name: str) -> None:
    """Payloads of T·h·2 B: two per layer and one after the embedding."""
    model, batch = load_model(name), Batch.decode([50] * 24)
    payload = 24 * model.hidden * 2
    for tp, expected in ((1, 0), (2, 2 * len(model.layers) + 1)):
        operators = iteration_operators(model, Partition(tp=tp), BF16, batch)
        reduces = [op for op in operators if isinstance(op.work, Communication) and op.work.op == "all_reduce"]
        assert sum(op.count for op in reduces) == expected
        assert all(communication(op) == Communication("all_reduce", payload, "tp") for op in reduces)


def test_tensor_parallel_ranks_divide_the_tokens_they_dispatch() -> None:
    """tp 2, dp 4: 10 tokens are routed as 5 by each rank, and gathered again; there is no all-reduce after experts."""
    operators = listed("deepseek-v3", Partition(tp=2, dp=4, ep=8), Batch.decode([50] * 10), FP8)
    assert gemm_shape(operators["router"])[0] == gemm_shape(operators["shared_down"])[0] == 5
    assert gemm_shape(operators["shared_down"]) == (5, 7168, 2048)
    assert communication(operators["moe_all_gather"]) == Communication("all_gather", 10 * 7168 * 2, "tp")
    assert communication(operators["moe_dispatch"]).size_bytes == 5 * 8 * 7408
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


# ---- refusals and cost of listing ----------------------------------------------------------------------------------


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
                assert (op.phase is Phase.COMMUNICATION) == isinstance(op.work, Communication)


def test_listing_an_iteration_of_deepseek_takes_under_a_millisecond() -> None:
    model, partition, batch = load_model("deepseek-v3"), Partition(dp=32, ep=32), Batch.decode([4096] * 128)
    seconds = []
    for _ in range(50):
        start = time.perf_counter()
        iteration_operators(model, partition, FP8, batch)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1e-3
