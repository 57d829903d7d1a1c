"""Engine profiles: what a configuration gets that names little more than a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import vidur_pd
from aicb import load_model
from boundary.errors import InputError
from tests.vidur_pd.test_config_file import MINIMAL
from vidur_pd.config import SimulationConfig
from vidur_pd.config.engine_conditions import _warn_of_nccl
from vidur_pd.config.file import load_config
from vidur_pd.simulation.pools import pool_model


def sglang(**sections: Any) -> SimulationConfig:
    return SimulationConfig.model_validate(MINIMAL | {"engine": {"framework": "sglang"}} | sections)


def static_shares(pools: list[dict[str, Any]], engine: dict[str, Any] | None = None, **sections: Any) -> list[float]:
    """The share of memory of each of the pools, which are mixed where they say nothing."""
    roles = {pool.get("role", "mixed") for pool in pools}
    others = [{"role": role} for role in {"prefill": ["decode"], "decode": ["prefill"]}.get(min(roles), [])]
    named = [{"name": f"p{place}", "role": "mixed"} | pool for place, pool in enumerate([*pools, *others])]
    cluster = {"topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps"}, "pools": named}
    config = sglang(cluster=cluster, engine={"framework": "sglang"} | (engine or {}), **sections)
    return [config.engine_of(pool).gpu_memory_utilization for pool in config.cluster.pools[: len(pools)]]


@pytest.mark.parametrize(
    ("hardware", "chunk"), [("a100", 8192), ("h100", 8192), ("h200", 8192), ("b200", 16384), ("unknown", 2048)]
)
def test_the_chunk_of_sglang_follows_from_the_memory_of_the_gpu(hardware: str, chunk: int) -> None:
    assert sglang(hardware=hardware).engine.max_batched_tokens == chunk


@pytest.mark.parametrize(
    ("pool", "engine", "tokens", "conservativeness"),
    [
        ({"dp": 8, "ep": 8}, {}, 1024, 0.3),
        ({"dp": 8, "ep": 8}, {"max_seqs": 1500}, 1500, 0.3),
        ({"dp": 8, "ep": 8}, {"max_batched_tokens": 4096}, 4096, 0.3),
        ({"dp": 8, "ep": 8, "role": "decode"}, {}, 8192, 0.3),
        ({"dp": 8, "ep": 8}, {"policy_options": {"schedule_conservativeness": 0.5}}, 1024, 0.5),
        ({"tp": 8, "ep": 8}, {}, 8192, None),
        ({"dp": 2}, {}, 8192, None),
    ],
)
def test_ranks_of_data_parallel_attention_have_their_part_of_a_chunk(
    pool: dict[str, Any], engine: dict[str, Any], tokens: int, conservativeness: float | None
) -> None:
    """8,192 tokens of a GPU of 141 GB, over eight ranks; what is stated is that of a rank."""
    pools = [{"name": "p", "role": "mixed"} | pool]
    if "role" in pool:
        pools.append({"name": "q", "role": "prefill"})
    cluster = {"topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps"}, "pools": pools}
    config = sglang(cluster=cluster, model="deepseek-v3", engine={"framework": "sglang"} | engine)
    found = config.engine_of(config.cluster.pools[0])
    assert found.max_batched_tokens == tokens
    assert found.policy_options.get("schedule_conservativeness") == conservativeness
    makes_schedules = conservativeness is not None
    assert found.gqa_kernel == ("fa3" if makes_schedules else "fa3_sglang"), "of attention in each layer, or of a step"


@pytest.mark.parametrize(
    ("hardware", "pool", "engine", "reserve_mib", "memory_mib"),
    [
        ("h100", {}, {}, 512 + 12288 + 128 + 2 * 256 + 8 * 58, 81_559),
        ("h200", {}, {}, 512 + 12288 + 128 + 2 * 256 + 8 * 58, 143_771),
        ("b200", {}, {}, 512 + 24576 + 128 + 2 * 512 + 8 * 74, 183_359),
        ("l40s", {}, {}, 512 + 6144 + 128 + 2 * 32 + 8 * 50, 46_068),
        ("h100", {"tp": 8}, {}, 512 + 12288 + 8 * 128 + 2 * 512 + 8 * 58, 81_559),
        ("h100", {"tp": 4, "pp": 2}, {}, 512 + 12288 + 8 * 128 + 2 * 512, 81_559),
        ("h100", {}, {"cuda_graphs": False}, 512 + 12288 + 128, 81_559),
        ("h100", {}, {"max_batched_tokens": 2048}, 10_240, 81_559),
        ("h100", {}, {"max_seqs": 40}, 512 + 12288 + 128 + 2 * 40 + 8 * 58, 81_559),
        ("h200", {"role": "decode"}, {}, 10_240, 143_771),
        ("h200", {"role": "decode"}, {"max_seqs": 8192}, 512 + 12288 + 128 + 2 * 256, 143_771),
        ("h200", {"role": "prefill"}, {}, 512 + 12288 + 128 + 8 * 58, 143_771),
    ],
)
def test_what_sglang_leaves_of_memory_to_activations_and_graphs(
    hardware: str, pool: dict[str, Any], engine: dict[str, Any], reserve_mib: int, memory_mib: int
) -> None:
    """512 MiB, 1.5 per token of a chunk, 128 per GPU, 2 per request of the largest graph, 8 per graph of prefills: 50
    up to 4,096 tokens, one more for every 512."""
    [found] = static_shares([pool], hardware=hardware, engine=engine)
    assert found == round(1 - reserve_mib / memory_mib, 3)


def test_what_sglang_leaves_with_latent_and_data_parallel_attention_and_deepep() -> None:
    """1,536 MiB for graphs of prefills; per rank and request of the largest graph 4.5 MiB, 3 up to 300 requests; DeepEP
    1,024 and 2,048. Ranks have 1,024 tokens of a chunk, which count as 2,048, and at least 10 GiB are left. Over two
    servers the profile's 0.85 stands."""
    ranks, deep_ep = {"dp": 8, "ep": 8}, {"engine": {"expert_dispatch": "deepep"}}
    pools = [{"tp": 8}, ranks, ranks | {"engine": {"max_seqs": 16}}, {"tp": 2, "ep": 2} | deep_ep, {"dp": 16, "ep": 16}]
    whole = 512 + 8 * 128 + 2 * 512 + 1536
    reserves = [
        whole + 12288,
        whole + 3072 + 4.5 * 512 * 8,
        10 * 1024,  # of 9,472
        512 + 12288 + 256 + 512 + 1536 + 1024 + 2048,
    ]
    expected = [*(round(1 - reserve / 143_771, 3) for reserve in reserves), 0.85]
    assert static_shares(pools, model="deepseek-v3", hardware="h200") == expected


def test_a_stated_share_stays_and_one_without_an_answer_is_the_profiles() -> None:
    """1.5 MiB for each of 60,000 tokens are more than an H100 has."""
    pools = [{}, {"engine": {"gpu_memory_utilization": 0.7}}, {"engine": {"max_batched_tokens": 60_000}}]
    assert static_shares(pools, hardware="h100") == [0.83, 0.7, 0.85]
    assert static_shares([{}], hardware="h100", engine={"gpu_memory_utilization": 0.6}) == [0.6]
    assert static_shares([{}], hardware="unknown") == [0.85]


def test_a_model_that_sglang_serves_on_one_gpu_is_served() -> None:
    """Qwen3-32B in bf16 on an H100, of which 4.07 GiB are left for KV: 16,680 tokens."""
    config = sglang(model="qwen3-32b", hardware="h100")
    [pool, _] = config.cluster.pools
    assert pool_model(config, pool, load_model("qwen3-32b"), {}).num_kv_blocks == 16_680


def test_the_framework_alone_brings_policy_cache_kernels_and_first_token() -> None:
    config = sglang()
    engine = config.engine
    assert (engine.policy, engine.block_tokens) == ("sglang", 1)
    assert engine.prefix_caching is engine.async_scheduling is True
    assert (config.network.collectives, config.kv_transfer.first_token) == ("sglang", "decode_after_transfer")


def test_nccl_stands_for_kernels_that_were_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    """Said once in a process, in which other tests may have been told."""
    _warn_of_nccl.cache_clear()
    pools = [{"name": "a", "role": "mixed", "tp": 2}]
    config = sglang(hardware="h20", cluster={"topology": {"kind": "single_switch"}, "pools": pools})
    assert config.network.collectives == "nccl"
    assert "NCCL's all-reduce stands for that of sglang" in caplog.text


def test_decode_graphs_of_sglang_pad_nine_requests_to_twelve() -> None:
    """vLLM's next size is 16."""
    sizes = sglang().engine.graph_sizes
    assert sizes is not None
    assert next(size for size in sizes if size >= 9) == 12
    assert (sizes[:6], sizes[-1]) == ((1, 2, 4, 8, 12, 16), 256)


def test_a_run_with_nothing_but_the_framework_serves_all_and_shows_all_options(tmp_path: Path) -> None:
    result = vidur_pd.simulate(sglang())
    assert result.summary.completed == 2
    vidur_pd.write_result(result, tmp_path / "out")
    shown = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["engine"]
    assert shown["policy_options"] == {
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "mixed_chunk": False,
        "max_prefill_tokens": 16384,
        "eviction_policy": "lru",
    }
    assert (shown["version"], shown["max_seqs"]) == ("0.5.23", 2048)


def test_sizes_of_graphs_make_a_difference() -> None:
    """A decode of one request costs more where it is padded to 256."""
    engines = [{"framework": "sglang", "graph_sizes": sizes} for sizes in ([1, 16], [256])]
    exact, padded = (vidur_pd.simulate(sglang(engine=engine)).summary.tpot_s for engine in engines)
    assert exact is not None
    assert padded is not None
    assert exact.mean < padded.mean


def test_models_with_windows_are_refused_with_and_without_the_tree() -> None:
    for caching in (True, False):
        config = sglang(model="gpt-oss-20b", engine={"framework": "sglang", "prefix_caching": caching})
        with pytest.raises(InputError, match="found sglang, expected another for this model: 2 groups"):
            vidur_pd.simulate(config)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("framework: tgi", "engine.framework: found 'tgi', expected one of sglang, trtllm, vllm"),
        ("framework: sglang, graph_sizes: [2, 1]", "engine.graph_sizes: found sizes out of order"),
    ],
)
def test_what_no_profile_knows_is_refused(tmp_path: Path, engine: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(MINIMAL) + f"engine: {{{engine}}}\n")
    with pytest.raises(InputError, match=message):
        load_config(path)


@pytest.mark.parametrize(
    ("model", "pool", "engine", "graphs", "largest"),
    [
        ("qwen3-8b", {}, {}, 58, 8192),  # as SGLang 0.5.17 said of the same chunk: tests/data/engine/sglang-h200-*
        ("qwen3-8b", {}, {"max_batched_tokens": 2048}, 42, 2048),
        ("qwen3-8b", {}, {"max_batched_tokens": 16384}, 74, 16384),
        ("deepseek-v3", {"tp": 8}, {"max_batched_tokens": 16384}, 58, 8192),
        ("qwen3-8b", {}, {"cuda_graphs": False}, 0, 0),
        ("qwen3-8b", {"tp": 2, "pp": 2}, {}, 0, 0),
        ("qwen3-8b", {"role": "decode"}, {}, 0, 0),
        ("qwen3-8b", {"role": "prefill"}, {}, 58, 8192),
        ("qwen3-8b", {}, {"prompt_graph_sizes": [512]}, 1, 512),
    ],
)
def test_sglang_replays_prompts_of_a_chunk(
    model: str, pool: dict[str, Any], engine: dict[str, Any], graphs: int, largest: int
) -> None:
    roles = {"prefill": "decode", "decode": "prefill"}
    pools = [{"name": "p", "role": "mixed"} | pool]
    pools += [{"name": "q", "role": roles[pool["role"]]}] if "role" in pool else []
    cluster = {"topology": {"kind": "rail_optimized", "gpus_per_node": 8, "nic": "400Gbps"}, "pools": pools}
    config = sglang(cluster=cluster, model=model, hardware="h200", engine={"framework": "sglang"} | engine)
    sizes = config.engine_of(config.cluster.pools[0]).prompt_graph_sizes
    assert sizes is not None
    assert (len(sizes), max(sizes, default=0)) == (graphs, largest)
    assert list(sizes) == sorted(set(sizes))
