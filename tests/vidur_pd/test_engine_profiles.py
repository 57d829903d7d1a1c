"""Engine profiles: defaults as vLLM 0.24.0 has them, where a configuration says nothing."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest

from aicb import Partition, Precision, get_gpu, instance_memory, load_model
from aicb.operators.memory import GPU_MEMORY_UTILIZATION
from tests.forked_commands import run_forked
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.config import SCHEDULING_POLICIES, EngineConfig, SimulationConfig, engine_conditions

LOG = "vidur_pd.config.engine_conditions"


def engines(*pools: dict[str, Any], **sections: Any) -> list[EngineConfig]:
    """Engine of each pool."""
    found = config(list(pools), **sections)
    return [found.engine_of(own) for own in found.cluster.pools]


def test_defaults_are_those_of_the_engine() -> None:
    found = config([pool("m", "mixed")])
    engine = found.engine
    assert (engine.framework, engine.version, engine.policy) == ("vllm", "0.24.0", "vllm_v1")
    assert (engine.max_batched_tokens, engine.max_seqs, engine.block_tokens) == (8192, 1024, 16)
    assert (engine.gpu_memory_utilization, engine.prefix_caching, engine.async_scheduling) == (0.92, True, True)
    assert (found.network.collectives, found.kv_transfer.first_token) == ("vllm", "decode_recompute")


def test_plans_of_memory_have_the_share_of_the_gpu_that_runs_have() -> None:
    """By default, in the library, on the command line and in a configuration."""
    (engine,) = engines(pool("m", "mixed"))
    assert engine.gpu_memory_utilization == GPU_MEMORY_UTILIZATION
    commanded = json.loads(run_forked("aicb", "memory", "qwen3-8b", "--json").stdout)
    planned = instance_memory(load_model("qwen3-8b"), Partition(), Precision(), get_gpu("h200"))
    assert commanded["available_kv_bytes"] == planned.available_kv_bytes
    assert "[default: 0.92]" in run_forked("aicb", "memory", "--help").stdout


@pytest.mark.parametrize(
    ("hardware", "limits"),
    [("h200", (8192, 1024)), ("h100", (8192, 1024)), ("h800", (8192, 1024)), ("a100", (2048, 256))],
)
def test_limits_of_an_iteration_are_those_of_the_gpu(hardware: str, limits: tuple[int, int]) -> None:
    alone, beside = engines(pool("m", "mixed"), pool("n", "mixed", hardware="h200"), hardware=hardware)
    assert (alone.max_batched_tokens, alone.max_seqs) == limits
    assert (beside.max_batched_tokens, beside.max_seqs) == (8192, 1024)


def test_what_is_stated_stays() -> None:
    stated = {"max_batched_tokens": 4096, "max_seqs": 7, "prefix_caching": False, "async_scheduling": False}
    [engine] = engines(pool("m", "mixed", hardware="a100"), engine=stated)
    assert stated.items() <= dict(engine).items()
    own = pool("m", "mixed", hardware="a100", engine={"max_seqs": 9})
    assert engines(own, engine=stated)[0].max_seqs == 9


def test_a_default_number_of_requests_is_at_most_that_of_tokens() -> None:
    assert engines(pool("m", "mixed"), engine={"max_batched_tokens": 300})[0].max_seqs == 300


def test_an_iteration_has_room_for_the_longest_prompt_where_none_is_cut() -> None:
    whole = {"chunked_prefill": False}
    assert engines(pool("m", "mixed"), engine=whole)[0].max_batched_tokens == 40960
    assert engines(pool("m", "mixed"), engine=whole | {"max_model_len": 10000})[0].max_batched_tokens == 10000
    assert engines(pool("m", "mixed"), engine=whole | {"max_model_len": 100})[0].max_batched_tokens == 8192


def test_asynchronous_scheduling_is_off_where_it_does_not_go() -> None:
    pools = [pool("p", "prefill"), pool("d", "decode"), pool("m", "mixed", pp=2)]
    assert [engine.async_scheduling for engine in engines(*pools)] == [True, True, False]
    ngrams = {"method": "ngram", "drafts": 2, "acceptance": 0.5}
    for asked, expected in (({}, [True, True, False]), (ngrams, [True, False, False])):
        drafting = engines(*pools, engine={"speculative": asked})
        assert [engine.async_scheduling for engine in drafting] == expected
    for scheduler, does in (("mixed_pool", False), ("kv_jsq", True)):  # in a mixed pool the first one drafts, too
        routing = {"policy": "splitwise", "splitwise": {"scheduler": scheduler}}
        assert engines(*pools[:2], engine={"speculative": ngrams}, routing=routing)[0].async_scheduling is does
    for framework, does in (("vllm", True), ("sglang", False)):
        engine = {"framework": framework, "speculative": {}}
        assert engines(pool("m", "mixed"), engine=engine)[0].async_scheduling is does
    for policy, does in (("sarathi", False), ("vllm_v1", True), ("mine.py:Mine", False)):
        assert engines(pool("m", "mixed"), engine={"policy": policy})[0].async_scheduling is does


@pytest.mark.parametrize(("model", "does"), [("qwen3-8b", True), ("gpt-oss-120b", True), ("qwen3-next-80b-a3b", False)])
def test_prefix_caching_is_off_for_models_with_recurrent_layers(model: str, does: bool) -> None:
    assert engines(pool("m", "mixed"), model=model)[0].prefix_caching is does


def test_prefix_caching_is_off_under_policies_that_come_without() -> None:
    found = {name: engines(pool("m", "mixed"), engine={"policy": name})[0] for name in (*SCHEDULING_POLICIES, "a.py:A")}
    assert [name for name, engine in found.items() if engine.prefix_caching] == [
        "vllm_v1",
        "sglang",
        "trtllm",
        "a.py:A",
    ]


@pytest.mark.parametrize(("hardware", "tp", "warnings"), [("h100", 2, 0), ("a100", 1, 0), ("a100", 2, 1)])
def test_nccl_stands_for_all_reduces_that_were_not_measured(
    hardware: str, tp: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    from vidur_pd.config import engine_conditions

    engine_conditions._warn_of_nccl.cache_clear()
    with caplog.at_level(logging.WARNING, LOG):
        found = config([pool("m", "mixed", tp=tp)], hardware=hardware)
    assert found.network.collectives == ("vllm" if hardware == "h100" else "nccl")
    assert len(caplog.records) == warnings


def test_a_resolved_configuration_reads_as_itself() -> None:
    pools = [pool("p", "prefill", hardware="a100"), pool("d", "decode", pp=2, engine={"speculative": {"drafts": 2}})]
    found = config(pools, hardware="h20")
    assert SimulationConfig.model_validate(found.model_dump(mode="json")) == found


def test_engines_run_tritons_kernel_where_every_rank_has_all_experts() -> None:
    """vLLM, ``oracle/fp8.py``: on SM90 Triton first without expert parallelism, FlashInfer with it; SGLang,
    ``quantization/fp8.py``: Triton without an all-to-all of DeepEP."""
    pools = [
        pool("whole", "mixed"),
        pool("shared", "mixed", tp=2, ep=2),
        pool("old", "mixed", hardware="a100"),
        pool("hopper", "mixed", hardware="h20"),
        pool("sglang", "mixed", engine={"framework": "sglang"}),
        pool("other", "mixed", engine={"framework": "trtllm"}),
    ]
    found = [engine.experts_kernel for engine in engines(*pools, engine={})]
    assert found == ["triton", "flashinfer", "deep_gemm", "triton", "triton_sglang", "deep_gemm"]
    kept = engines(*pools[:1], engine={"experts_kernel": "deep_gemm"})
    assert kept[0].experts_kernel == "deep_gemm"


def test_tokens_travel_to_experts_as_the_engine_lets_them() -> None:
    """vLLM's all2all_backend, SGLang's gathers (``dp_attention.py``), TensorRT-LLM without an all-to-all; DeepEP where
    two batches take turns, or where it is stated, for a phase or both."""
    shared = {"dp": 2, "ep": 2}
    pools = [
        pool("plain", "mixed", **shared),
        pool("halved", "mixed", **shared, engine={"overlap": {"two_batch": True}}),
        pool("sglang", "mixed", **shared, engine={"framework": "sglang"}),
        pool("trtllm", "mixed", **shared, engine={"framework": "trtllm"}),
        pool("word", "mixed", **shared, engine={"framework": "sglang", "expert_dispatch": "deepep"}),
        pool("phase", "mixed", **shared, engine={"expert_dispatch": {"decode": "all_to_all"}}),
        pool("one", "mixed", **shared, engine={"overlap": {"two_batch": True}, "expert_dispatch": "broadcast"}),
    ]
    found = [engine.expert_dispatch for engine in engines(*pools, engine={})]
    assert [(each.prefill, each.decode) for each in found] == [
        ("all_gather", "all_gather"),
        ("deepep_normal", "deepep_low_latency"),
        ("all_reduce", "all_gather_bf16"),
        ("all_gather", "all_gather"),
        ("deepep_normal", "deepep_low_latency"),
        ("all_gather", "all_to_all"),
        ("broadcast", "broadcast"),
    ]
    stated = engines(pools[1], pools[2], engine={"expert_dispatch": "all_to_all"})
    assert [engine.expert_dispatch.prefill for engine in stated] == ["all_to_all", "all_to_all"]


def test_the_kernel_of_experts_is_in_the_resolved_configuration() -> None:
    found = config([pool("whole", "mixed"), pool("shared", "mixed", tp=2, ep=2)], engine={})
    again = SimulationConfig.model_validate(found.model_dump(mode="json"))
    assert [again.engine_of(own).experts_kernel for own in again.cluster.pools] == ["triton", "flashinfer"]


def test_engines_decode_latents_by_flash_attention_on_hopper() -> None:
    """vLLM's ``platforms/cuda.py``: FLASH_ATTN_MLA comes first on SM90; SGLang's ``model_override_base.py``: fa3."""
    pools = [
        pool("hopper", "mixed", tp=2, ep=2),
        pool("old", "mixed", hardware="a100"),
        pool("sglang", "mixed", engine={"framework": "sglang"}),
        pool("other", "mixed", engine={"framework": "trtllm"}),
    ]
    found = engines(*pools, engine={})
    assert [engine.mla_kernel for engine in found] == ["fa3_chunks", "flash_mla", "fa3_sglang", "flash_mla"]
    assert [engine.dense_kernel for engine in found] == ["flashinfer", "deep_gemm", "deep_gemm", "deep_gemm"]
    assert [engine.rope_kernel for engine in found] == ["compiled", "compiled", "sglang", "in_place"]
    assert [engine.hybrid_kernels for engine in found] == ["compiled", "compiled", "fused", "fused"]
    assert [engine.moe_kernels for engine in found] == ["vllm", "vllm", "sglang", "generic"]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, "flashinfer"),
        ({"hardware": "h100"}, "flashinfer"),
        ({"hardware": "h20"}, "apart"),
        ({"hardware": "a100"}, "apart"),
        ({"network": {"collectives": "nccl"}}, "apart"),
        ({"network": {"collectives": "vllm"}}, "flashinfer"),
        ({"engine": {"framework": "sglang"}}, "apart"),
        ({"engine": {"norm_kernel": "apart"}}, "apart"),
        ({"network": {"collectives": "nccl"}, "engine": {"norm_kernel": "flashinfer"}}, "flashinfer"),
    ],
)
def test_norms_run_with_all_reduces_where_vllm_has_kernels_of_its_own(sections: dict[str, Any], expected: str) -> None:
    [engine] = engines(pool("m", "mixed", tp=2), **sections)
    assert engine.norm_kernel == expected


def test_a_run_normalises_where_it_reduces() -> None:
    """Its collectives are FlashInfer's kernel, which takes 5.2 us and a norm's less of compute."""
    times_s = {}
    for kernel in ("apart", "flashinfer"):
        result = simulate(config([pool("m", "mixed", tp=2)], engine={"norm_kernel": kernel}), [(0, 200, 40)])
        columns = result.iterations.columns()
        decodes = columns["prefill_tokens"] == 0
        times_s[kernel] = {name: np.median(columns[name][decodes]) for name in ("communication_s", "compute_s")}
    more_s = {name: times_s["flashinfer"][name] - times_s["apart"][name] for name in ("communication_s", "compute_s")}
    assert 73 * 0.7e-6 < more_s["communication_s"] < 73 * 0.85e-6
    assert -72 * 3.0e-6 < more_s["compute_s"] < -72 * 1.9e-6


@pytest.mark.parametrize(("tp", "is_said"), [(1, False), (2, False), (4, False), (8, True)])
def test_an_estimated_kernel_is_said_to_be_one(caplog: pytest.LogCaptureFixture, tp: int, is_said: bool) -> None:
    """It was measured among two and four ranks; with one there is none."""
    engine_conditions._warn_of_ranks.cache_clear()
    with caplog.at_level(logging.WARNING, logger=LOG):
        engines(pool("m", "mixed", tp=tp), topology={"kind": "rail_optimized", "gpus_per_node": 8})
    expected = [f"engine.norm_kernel: FlashInfer's all-reduce was not measured among {tp} ranks: estimated"]
    assert [record.getMessage() for record in caplog.records] == (expected if is_said else [])
