"""Memory plans against KV block counts of a running engine and against hand-computed weights."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import InputError, Partition, Precision, built_in_models, load_model
from aicb.measurements.gpu import get_gpu, known_gpus
from aicb.model.architecture import MoeFfn
from aicb.operators.dispatch import ExpertDispatch
from aicb.operators.memory import InstanceMemory, MemoryLimits, instance_memory, planned_memory, resident_weight_bytes

H200 = get_gpu("h200")
SGLANG = {"max_batched_tokens": 8192, "max_seqs": 2048, "block_tokens": 1, "cuda_graphs": True, "largest_graph": 256}
"""SGLang 0.5.23 on a GPU of 80 GB where its user says nothing."""
MIB = 2**20
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


def static_plan(
    model: str, gpu: str, share: float, partition: Partition | None = None, weights: str = "bf16", **limits: int
) -> InstanceMemory:
    """A plan in which the share is of weights and KV alone."""
    stated = MemoryLimits(gpu_memory_utilization=share, is_static=True, **(SGLANG | limits))
    return planned_memory(load_model(model), partition or Partition(), Precision(weights=weights), get_gpu(gpu), stated)


def test_a_static_share_is_of_weights_and_kv_alone() -> None:
    """Qwen3-32B on one H100: ⌊(0.83 · (81,559 − 1,247) MiB − 65,524,246,528 B) / (64 · 2 · 8 · 128 · 2 B)⌋."""
    plan = static_plan("qwen3-32b", "h100", 0.83)
    assert plan.weights_bytes == 65_524_246_528
    assert plan.available_kv_bytes == int(0.83 * 80_312 * MIB) - 65_524_246_528
    assert plan.num_kv_blocks == 16_680
    assert plan.runtime_bytes == (1_247 + 2 * 256) * MIB


def test_communicators_are_there_before_weights() -> None:
    """Two ranks lack 1,126 MiB more, of which the share is as much less; neither has more than half of the heads."""
    plan = static_plan("qwen3-32b", "h100", 0.83, Partition(tp=2))
    assert plan.available_kv_bytes == int(0.83 * (80_312 - 1_126) * MIB) - plan.weights_bytes
    assert plan.num_kv_blocks == plan.available_kv_bytes // (64 * 2 * 4 * 128 * 2)


def test_what_a_static_share_does_not_cover_leaves_kv_alone() -> None:
    usual = static_plan("qwen3-8b", "h100", 0.83)
    for limits in ({"max_seqs": 256}, {"max_batched_tokens": 16_384}, {"largest_graph": 512}, {"cuda_graphs": False}):
        assert static_plan("qwen3-8b", "h100", 0.83, **limits).num_kv_blocks == usual.num_kv_blocks


def test_state_comes_off_a_static_share() -> None:
    plan = static_plan("qwen3-next-80b-a3b", "h200", 0.9, Partition(tp=2, ep=2), max_seqs=100)
    states = 100 * plan.state_bytes_per_request_per_rank
    free = 143_771 - 1_247 - 1_126
    assert plan.weights_bytes + states + plan.available_kv_bytes == int(0.9 * free * MIB)


def test_what_a_static_share_leaves_may_be_too_little() -> None:
    """1 % of 80,312 MiB are 803 MiB, of which graphs of 256 requests take 512 and a chunk's activations more."""
    plan = static_plan("qwen3-8b", "h100", 0.99)
    assert plan.lacking_bytes == pytest.approx(plan.activation_bytes + (512 - 803.12) * MIB, abs=MIB)
    assert plan.activation_bytes > 2 * 2**30
    small = static_plan("qwen3-8b", "h100", 0.99, max_batched_tokens=128, max_seqs=16)
    assert (small.lacking_bytes, small.num_kv_blocks) == (0, plan.num_kv_blocks)


def test_weights_beyond_a_static_share_are_refused() -> None:
    """65.5 GB are 77.8 % of what is free; with less than 77.9 there is no room for two tokens of KV."""
    with pytest.raises(
        InputError, match=r"bytes of weights and state \(65\.5 GB\) .* room for 2 KV blocks of 1 tokens"
    ):
        static_plan("qwen3-32b", "h100", 0.778)
    with pytest.raises(InputError, match=r"bytes of bf16 weights .* at gpu_memory_utilization 0\.7\)"):
        static_plan("qwen3-32b", "h100", 0.7)


def test_a_share_of_all_knows_no_largest_graph() -> None:
    """vLLM's graphs count for all requests that there may be."""
    limits = SGLANG | {"gpu_memory_utilization": 0.9, "block_tokens": 16}
    with_graph = planned_memory(load_model("qwen3-8b"), Partition(), Precision(), H200, MemoryLimits(**limits))
    assert with_graph.runtime_bytes == (512 + 2 * 2048) * MIB
    without = planned_memory(
        load_model("qwen3-8b"), Partition(), Precision(), H200, MemoryLimits(**(limits | {"largest_graph": None}))
    )
    assert with_graph == without


@pytest.mark.parametrize(
    ("model", "weights", "gpu", "partition", "share", "tokens"),
    [
        ("llama-3.1-8b", "bf16", "h100", Partition(), 0.88, 444_500),
        ("qwen3-30b-a3b", "fp8", "h100", Partition(), 0.83, 392_920),
        ("qwen3-8b", "bf16", "b200", Partition(), 0.854, 992_896),
        ("qwen3-235b-a22b", "fp8", "h100", Partition(tp=4), 0.93, 367_404),
        ("qwen3-30b-a3b", "bf16", "h200", Partition(dp=4, ep=4), 0.8, 1_029_388),
        ("deepseek-r1", "fp8", "h20", Partition(tp=16), 0.93, 712_400),
    ],
)
def test_tokens_are_those_in_logs_of_sglang(
    model: str, weights: str, gpu: str, partition: Partition, share: float, tokens: int
) -> None:
    """``max_total_num_tokens`` of public logs, of which no constant was taken: SGLang's documentation of its OpenAI
    interface of 2025-01-23, which names no GPU; a run of 2026-08-27, whose share is the default; SGLang's reference log
    of start-ups of 2026-04-27, likewise; vllm-project/vllm issue 21348; sgl-project/sglang pull request 17392, whose
    share follows from what was free; SGLang's documentation of Kubernetes of 2025-02-17."""
    plan = static_plan(model, gpu, share, partition, weights, max_seqs=50)
    assert plan.num_kv_blocks == pytest.approx(tokens, rel=0.025)


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
