"""Weights of operator lists: the parameters of the model on one rank, and with replicas summed over ranks."""

from __future__ import annotations

from fractions import Fraction

import pytest

from aicb import (
    Batch,
    Model,
    Partition,
    Precision,
    built_in_models,
    iteration_operators,
    load_model,
)
from aicb.kernels.batched_gemm import BatchedGemm
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.router import Fp32Router
from aicb.model.architecture import GatedDeltaNet, GroupedQueryAttention, LatentAttention, MoeFfn
from aicb.model.partition import MoeLayout
from tests.aicb.operator_rows import BF16, DECODE, FP8, ONE, listed


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
                replicated += gqa.norm_parameters if gqa.qk_norm == "per_head" else 0
                replicated += h if gqa.has_output_bias else 0
                kv_copies = max(t // gqa.kv_heads, 1)
                replicated += Fraction(kv_copies - 1, t - 1 or 1) * h * gqa.kv_elements
            case LatentAttention() as mla:
                assert mla.q_lora_rank is not None
                replicated += (h + 1) * mla.q_lora_rank + h * mla.kv_elements + mla.kv_lora_rank
                replicated += mla.indexer.parameters(h, mla.q_lora_rank) if mla.indexer else 0
            case GatedDeltaNet() as gdn:
                replicated += gdn.head_dim
        if isinstance(layer.ffn, MoeFfn):
            moe = layer.ffn
            replicated += moe.experts * (h + (1 if moe.has_correction_bias else 0))
            replicated += h if moe.has_shared_gate else 0
            if moe.has_biases:  # of a sliced expert, that of the down projection is whole
                replicated += moe.experts * (1 + (h if partition.moe_layout is MoeLayout.TENSOR else 0))
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
    "name",
    [
        *("llama-3.1-70b", "qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "qwen3-next-80b-a3b"),
        *("gpt-oss-20b", "glm-4.5", "minimax-m2", "llama-4-scout"),
    ],
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


def matrices(gqa: GroupedQueryAttention, hidden: int) -> int:
    """Weights of its four projections."""
    queries = gqa.heads * gqa.head_dim * (3 if gqa.has_output_gate else 2)
    return hidden * (queries + 2 * gqa.kv_heads * gqa.head_dim)


@pytest.mark.parametrize("name", built_in_models())
def test_gemm_flops_per_decoded_token_are_twice_the_active_matrix_weights(name: str) -> None:
    """Active parameters less norms, router bias, convolution, decay: everything that is not a matrix product."""
    model = load_model(name)
    not_matrices = (2 * len(model.layers) + 1) * model.hidden
    for layer in model.layers:
        match layer.attention:
            case GroupedQueryAttention() as gqa:
                not_matrices += gqa.parameters(model.hidden) - matrices(gqa, model.hidden)
            case LatentAttention() as mla:
                not_matrices += (mla.q_lora_rank or 0) + mla.kv_lora_rank
                not_matrices += 2 * mla.indexer.head_dim if mla.indexer else 0
            case GatedDeltaNet() as gdn:
                not_matrices += gdn.conv_channels * gdn.conv_width + 2 * gdn.value_heads + gdn.head_dim
        if isinstance(layer.ffn, MoeFfn):
            moe = layer.ffn
            not_matrices += moe.experts * (moe.has_correction_bias + moe.has_biases)
            not_matrices += moe.experts_per_token * (2 * moe.intermediate + model.hidden) if moe.has_biases else 0
    products = (Gemm, BatchedGemm, GroupedGemm, Fp32Router)
    operators = iteration_operators(model, ONE, BF16, Batch.decode([2]))
    flops = sum(op.count * op.flops for op in operators if isinstance(op.kernel, products))
    assert flops == pytest.approx(2 * (model.active_parameters - not_matrices), rel=1e-12)
