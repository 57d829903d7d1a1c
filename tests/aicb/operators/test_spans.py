"""Operators of attention within a span, of norms and biases of the models that have them, and of mxfp4 experts."""

from __future__ import annotations

import pytest

from aicb import Batch, Partition, Precision, get_gpu, instance_memory, load_model
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.operators.memory import resident_weight_bytes
from tests.aicb.operator_rows import DECODE, FP8, ONE, elementwise, gemm_shape, listed

MXFP4 = Precision("mxfp4")


def test_a_window_bounds_what_decodes_read() -> None:
    """gpt-oss: 8 KV heads of 64 dimensions, keys and values of 2 bytes; 50 and 1000 tokens, of which 128 are seen."""
    found = listed("gpt-oss-20b", ONE, Batch.decode([50, 1000]), MXFP4)
    token_bytes = 2 * 8 * 64 * 2
    windowed, full = found["sliding_decode_attention"], found["decode_attention"]
    assert (windowed.count, full.count) == (12, 12)
    assert windowed.cost.cold_bytes == (50 + 128) * token_bytes
    assert full.cost.cold_bytes == (50 + 1000) * token_bytes


def test_a_window_bounds_the_pairs_of_prompts() -> None:
    """Tokens 0 to 127 see 1 to 128 keys, the 1872 others 128 each; 4 FLOPs per pair and dimension of 64 heads."""
    found = listed("gpt-oss-20b", ONE, Batch.prefill([2000]), MXFP4)
    flops_per_pair = 4 * 64 * 64
    assert found["sliding_prefill_attention"].flops == flops_per_pair * (128 * 129 // 2 + 1872 * 128)
    assert found["prefill_attention"].flops == flops_per_pair * 2000 * 2001 // 2


def test_chunks_of_llama_4_are_read_and_computed_alone() -> None:
    """A decode at token 10,000 sees 10,000 − 8192 keys; a prompt of 10,000 is one of 8192 and one of 1808."""
    token_bytes, flops_per_pair = 2 * 8 * 128 * 2, 4 * 40 * 128
    decode = listed("llama-4-scout", ONE, Batch.decode([10_000]))
    assert decode["chunked_decode_attention"].cost.cold_bytes == (10_000 - 8192) * token_bytes
    assert decode["chunked_decode_attention"].count == 36
    prefill = listed("llama-4-scout", ONE, Batch.prefill([10_000]))
    assert prefill["chunked_prefill_attention"].flops == flops_per_pair * (8192 * 8193 + 1808 * 1809) // 2


def test_layers_that_differ_in_their_span_share_the_operators_of_tokens() -> None:
    """Twelve NoPE layers of Scout neither turn nor normalise queries and keys; all 48 project them."""
    scout, oss = listed("llama-4-scout", ONE, DECODE), listed("gpt-oss-20b", ONE, DECODE)
    assert [scout[name].count for name in ("qkv", "o", "kv_write", "rope", "q_norm", "k_norm")] == [
        48,
        48,
        48,
        36,
        36,
        36,
    ]
    assert scout["q_norm"].weight_elements == 0
    assert [oss[name].count for name in ("qkv", "o", "kv_write", "rope")] == [24] * 4


def test_a_norm_over_all_heads_adds_its_squares_over_the_ranks() -> None:
    """MiniMax-M2: 48 query and 8 KV heads of 128; two fp32 sums per token cross the group."""
    found = listed("minimax-m2", Partition(tp=4), DECODE, FP8)
    assert (elementwise(found["query_norm"]).cols, elementwise(found["key_norm"]).cols) == (12 * 128, 2 * 128)
    assert found["qk_norm_all_reduce"].kernel.size_bytes == 4 * 2 * 4  # type: ignore[union-attr]
    assert "qk_norm_all_reduce" not in listed("minimax-m2", ONE, DECODE, FP8)


def test_half_of_a_head_of_glm_is_turned() -> None:
    assert elementwise(listed("glm-4.5-air", ONE, DECODE)["rope"]).cols == (96 + 8) * 64


def test_llama_4_has_a_shared_expert_beside_one_routed() -> None:
    found = listed("llama-4-maverick", ONE, Batch.decode([100] * 2))
    assert found["shared_gate_up"].count == found["moe_gate_up"].count == 24
    assert gemm_shape(found["shared_gate_up"]) == (2, 2 * 8192, 5120)
    assert gemm_shape(found["moe_gate_up"]) == (2, 2 * 8192, 5120)
    assert gemm_shape(found["ffn_gate_up"]) == (2, 2 * 16384, 5120)


def test_mxfp4_experts_have_half_a_byte_and_a_scale_per_32_elements_and_bf16_biases() -> None:
    """gpt-oss-20b, one expert: rows of 2880 elements take 1440 + 90 bytes."""
    found = listed("gpt-oss-20b", ONE, DECODE, MXFP4)
    up, down = found["moe_gate_up"].kernel, found["moe_down"].kernel
    assert isinstance(up, GroupedGemm)
    assert isinstance(down, GroupedGemm)
    assert up.weight_bytes(1) == 32 * 5760 * (1440 + 90 + 2)
    assert down.weight_bytes(1) == 32 * 2880 * (1440 + 90 + 2)
    assert up.cost(MXFP4).cold_bytes == up.active_groups * 5760 * (1440 + 90 + 2)
    assert up.cost(MXFP4).dtype == "bf16"
    assert found["qkv"].kernel.dtype == "bf16"  # type: ignore[union-attr]
    assert "moe_quant" not in found


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_mxfp4_weights_are_those_of_the_checkpoint(name: str, gib: float) -> None:
    """Checkpoint sizes of the model card (arXiv 2508.10925, table 1)."""
    assert round(resident_weight_bytes(load_model(name), ONE, MXFP4) / 2**30, 1) == gib


def test_blocks_of_a_model_with_windows_hold_one_group_of_layers() -> None:
    """gpt-oss-120b: 18 of its 36 layers, 2048 bytes per token each."""
    plan = instance_memory(load_model("gpt-oss-120b"), ONE, MXFP4, get_gpu("h200"))
    assert plan.num_kv_blocks == plan.available_kv_bytes // (16 * 18 * 2048)
    assert plan.kv_bytes_per_token_per_rank == 36 * 2048
