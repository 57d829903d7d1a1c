"""Memory plans against KV block counts of a running engine and against hand-computed weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import InputError, Partition, Precision, built_in_models, load_model
from aicb.measurements.gpu import get_gpu, known_gpus
from aicb.model.architecture import MoeFfn
from aicb.operators.dispatch import ExpertDispatch
from aicb.operators.memory import instance_memory, resident_weight_bytes

H200 = get_gpu("h200")
ABSORBED_BYTES = 61 * 2 * 128 * 256 * 512
"""bf16 copies of W_UK and W_UV of DeepSeek-V3 that decodes use, beside kv_b."""


@pytest.mark.parametrize(("name", "blocks"), [("qwen3-8b", 49_626), ("qwen3-30b-a3b", 45_781)])
def test_kv_blocks_are_those_of_vllm_on_one_h200(name: str, blocks: int) -> None:
    """vLLM 0.24.0, bf16, 8192 batched tokens, 256 sequences, 16-token blocks, utilisation 0.9, CUDA graphs on."""
    plan = instance_memory(load_model(name), Partition(), Precision(), H200, gpu_memory_utilization=0.9)
    assert plan.num_kv_blocks == pytest.approx(blocks, rel=0.03)


@pytest.mark.parametrize("name", [name for name in built_in_models() if not name.startswith(("deepseek", "kimi"))])
def test_bf16_weights_take_two_bytes_per_parameter(name: str) -> None:
    """Routers in fp32 take four."""
    model = load_model(name)
    networks = [layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn)]
    in_fp32 = sum(moe.experts * model.hidden for moe in networks if moe.has_fp32_router)
    assert resident_weight_bytes(model, Partition(), Precision()) == 2 * (model.parameters + in_fp32)


def test_fp8_weights_take_one_byte_and_scales_for_matrices_and_two_for_the_rest() -> None:
    """Qwen3-8B: per layer 192,937,984 matrix weights in 128·128 blocks; embedding, head, norms in bf16."""
    model = load_model("qwen3-8b")
    matrices = 36 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 12288)
    expected = matrices + 4 * matrices // 128**2 + 2 * (model.parameters - matrices)
    assert resident_weight_bytes(model, Partition(), Precision(weights="fp8")) == expected


@pytest.mark.parametrize(("redundant", "gigabytes"), [(0, 39.5), (32, 42.1)])
def test_deepseek_weights_with_data_parallel_attention_on_32_gpus(redundant: int, gigabytes: float) -> None:
    """fp8 attention 11.41 GB, 8 or 9 experts in 58 layers, shared 2.55, dense 1.19; bf16 ends 3.71, router 0.21."""
    partition = Partition(dp=32, ep=32, redundant_experts=redundant)
    weights = resident_weight_bytes(load_model("deepseek-v3"), partition, Precision(weights="fp8"))
    assert round((weights - ABSORBED_BYTES) / 1e9, 1) == gigabytes


def test_bytes_add_up_to_the_share_of_memory() -> None:
    plan = instance_memory(load_model("qwen3-next-80b-a3b"), Partition(tp=2, ep=2), Precision(), H200, max_seqs=100)
    states = 100 * plan.state_bytes_per_request_per_rank
    parts = plan.weights_bytes + plan.activation_bytes + plan.runtime_bytes + states + plan.available_kv_bytes
    assert plan.state_bytes_per_request_per_rank == 39_518_208 // 2
    assert parts == int(0.92 * 143_771 * 2**20)
    block_bytes = 16 * plan.kv_bytes_per_token_per_rank
    assert 0 <= plan.available_kv_bytes - plan.num_kv_blocks * block_bytes < block_bytes


def test_the_fullest_stage_limits_the_blocks() -> None:
    """Llama-3.1-70B on three stages of 27, 27 and 26 layers: the first also holds the embedding."""
    model, partition = load_model("llama-3.1-70b"), Partition(pp=3)
    plan = instance_memory(model, partition, Precision(), H200)
    weights = [resident_weight_bytes(model, partition, Precision(), stage) for stage in range(3)]
    assert plan.weights_bytes == max(weights) == weights[0]
    assert plan.kv_bytes_per_token_per_rank == 27 * 2 * 8 * 128 * 2


def test_fp8_kv_doubles_the_blocks_and_leaves_weights_alone() -> None:
    model = load_model("qwen3-8b")
    bf16 = instance_memory(model, Partition(), Precision(), H200)
    fp8 = instance_memory(model, Partition(), Precision(kv="fp8"), H200)
    assert fp8.weights_bytes == bf16.weights_bytes
    assert fp8.num_kv_blocks == pytest.approx(2 * bf16.num_kv_blocks, rel=1e-3)


@given(tokens=st.integers(1, 30_000), seqs=st.integers(1, 1000), utilization=st.floats(0.5, 1.0))
def test_more_of_anything_else_leaves_less_for_kv(tokens: int, seqs: int, utilization: float) -> None:
    model = load_model("qwen3-8b")

    def blocks(tokens: int, seqs: int, utilization: float) -> int:
        return instance_memory(
            model,
            Partition(),
            Precision(),
            H200,
            gpu_memory_utilization=utilization,
            max_batched_tokens=tokens,
            max_seqs=seqs,
        ).num_kv_blocks

    here = blocks(tokens, seqs, utilization)
    assert blocks(tokens + 1000, seqs, utilization) <= here
    assert blocks(tokens, seqs + 100, utilization) < here
    assert blocks(tokens, seqs, utilization * 0.99) < here


def test_expert_dispatch_buffers_are_booked() -> None:
    """256 experts · 128 tokens · 4 buffers · (2·7168 + 4·56) B = 1.91 GB, besides context, NCCL and graphs."""
    model, precision = load_model("deepseek-v3"), Precision(weights="fp8")
    plan = instance_memory(model, Partition(dp=32, ep=32), precision, H200, max_seqs=128, cuda_graphs=False)
    assert plan.runtime_bytes - (512 + 392) * 2**20 == 4 * 256 * 128 * (2 * 7168 + 4 * 56)
    gathered = ExpertDispatch("deepep_normal", "all_gather")
    without = instance_memory(
        model, Partition(dp=32, ep=32), precision, H200, max_seqs=128, cuda_graphs=False, dispatch=gathered
    )
    assert without.runtime_bytes == (512 + 392) * 2**20


def test_weights_that_do_not_fit_are_refused_with_both_sizes() -> None:
    model = load_model("llama-3.1-70b")
    expected = f"found {2 * model.parameters} bytes of bf16 weights .* expected at most 138694434488 bytes available"
    with pytest.raises(InputError, match=expected):
        instance_memory(model, Partition(), Precision(), H200)


def test_weights_that_leave_no_room_for_kv_are_refused() -> None:
    """Qwen3-8B has 16.38 GB of weights; 11 % of an H200 are 16.58 GB."""
    with pytest.raises(InputError, match=r"weights, activations, state and runtime .* expected room for 2 KV blocks"):
        instance_memory(load_model("qwen3-8b"), Partition(), Precision(), H200, gpu_memory_utilization=0.11)


def test_blocks_of_which_memory_holds_one_are_refused() -> None:
    """Qwen3-8B has 147,456 bytes of KV per token: room for some 750,000 tokens on an H200."""
    with pytest.raises(InputError, match=r"expected room for 2 KV blocks of 500000 tokens \(147\.5 GB\) within 138694"):
        instance_memory(load_model("qwen3-8b"), Partition(), Precision(), H200, block_tokens=500_000)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization: found 1.5, expected above 0 and at most 1"),
        ({"max_seqs": 0}, "max_seqs: found 0, expected at least 1"),
        ({"block_tokens": -16}, "block_tokens: found -16, expected at least 1"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        instance_memory(load_model("qwen3-8b"), Partition(), Precision(), H200, **limits)


def test_fp8_weights_are_refused_on_a_gpu_without_fp8() -> None:
    with pytest.raises(InputError, match=r"weights: found fp8, expected bf16 \(a100 has no fp8\)"):
        instance_memory(load_model("qwen3-8b"), Partition(), Precision(weights="fp8"), get_gpu("a100"))


def test_known_gpus_have_peaks_and_an_unknown_one_is_refused() -> None:
    assert known_gpus() == ["a100", "b200", "gb200", "h100", "h20", "h200", "h800", "l40s", "mi300x"]
    for name in known_gpus():
        gpu = get_gpu(name)
        assert gpu.name == name
        twice = 2 * gpu.peak_flops["bf16"]  # the L40S's data sheet has 733 and 362.05 TFLOPS
        assert gpu.peak_flops.get("fp8", twice) == pytest.approx(twice, rel=0.013 if name == "l40s" else 1e-4)
        assert gpu.source
    with pytest.raises(
        InputError, match=r"found 'h201', expected one of a100, b200, gb200, h100, h20, h200, h800, l40s, mi300x, or a"
    ):
        get_gpu("h201")
