"""TensorRT-LLM's profile: what a configuration gets that names little more than the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import vidur_pd
from boundary.errors import InputError
from tests.integration.small_runs import config, pool, simulate
from tests.vidur_pd.test_config_file import MINIMAL
from vidur_pd.config import SimulationConfig

TRTLLM = {"framework": "trtllm"}


def trtllm(**sections: Any) -> SimulationConfig:
    return SimulationConfig.model_validate(MINIMAL | {"engine": TRTLLM} | sections)


def test_the_framework_alone_brings_policy_cache_kernels_and_first_token() -> None:
    found = trtllm()
    engine = found.engine
    assert (engine.version, engine.policy, engine.block_tokens) == ("1.2.1", "trtllm", 32)
    assert (engine.max_batched_tokens, engine.max_seqs, engine.gpu_memory_utilization) == (8192, 2048, 0.9)
    assert (engine.chunked_prefill, engine.prefix_caching, engine.async_scheduling) == (False, True, True)
    assert (found.network.collectives, found.kv_transfer.first_token) == ("trtllm", "decode_after_transfer")


@pytest.mark.parametrize(("hardware", "stack"), [("h100", "trtllm"), ("h200", "trtllm"), ("h20", "nccl")])
def test_its_all_reduces_are_those_that_were_measured(hardware: str, stack: str) -> None:
    assert config([pool("m", "mixed", tp=2)], hardware=hardware, engine=TRTLLM).network.collectives == stack


def test_a_run_with_nothing_but_the_framework_serves_all_and_shows_all_options(tmp_path: Path) -> None:
    result = vidur_pd.simulate(trtllm())
    assert result.summary.completed == 2
    vidur_pd.write_result(result, tmp_path / "out")
    shown = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["engine"]
    assert shown["policy_options"] == {
        "capacity_scheduler_policy": "guaranteed_no_evict",
        "context_chunking_policy": "first_come_first_served",
    }
    assert SimulationConfig.model_validate(yaml.safe_load((tmp_path / "out" / "config.yaml").read_text()))


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({}, "rejected: its 9000 tokens exceed the 8192 of an iteration, and prompts are not split"),
        ({"chunked_prefill": True}, None),
        ({"max_batched_tokens": 9000}, None),
    ],
)
def test_a_prompt_beyond_an_iteration_is_refused_unless_prompts_are_cut(
    engine: dict[str, Any], reason: str | None
) -> None:
    long, short = simulate(config([pool("m", "mixed")], engine=TRTLLM | engine), [(0, 9000, 4), (0, 100, 4)]).requests
    assert short.status_reason is None
    assert (long.completed_ps is None) is (reason is not None)
    assert reason is None or reason.endswith(str(long.status_reason))


def test_whole_prompts_are_stated_without_room_for_the_longest() -> None:
    """As it is TensorRT-LLM's default anyhow; vLLM makes room."""
    stated = {"chunked_prefill": False}
    assert config([pool("m", "mixed")], engine=TRTLLM | stated).engine.max_batched_tokens == 8192
    assert config([pool("m", "mixed")], engine=stated).engine.max_batched_tokens == 40960


@pytest.mark.parametrize("policy", ["vllm_v1", "sarathi"])
def test_another_policy_cuts_prompts(policy: str) -> None:
    assert config([pool("m", "mixed")], engine=TRTLLM | {"policy": policy}).engine.chunked_prefill is True


def test_pools_of_two_engines_hand_over() -> None:
    pools = [pool("p", "prefill", engine=TRTLLM), pool("d", "decode", engine={"framework": "vllm"})]
    found = config(pools, engine=TRTLLM)
    engines = [found.engine_of(own) for own in found.cluster.pools]
    assert [(engine.policy, engine.block_tokens, engine.chunked_prefill) for engine in engines] == [
        ("trtllm", 32, False),
        ("vllm_v1", 16, True),
    ]


@pytest.mark.parametrize("mode", ["pull", "layerwise"])
def test_prefill_and_decode_apart_serve_all(mode: str) -> None:
    pools = [pool("p", "prefill"), pool("d", "decode")]
    engine = TRTLLM | {"num_kv_blocks": 120}
    result = simulate(
        config(pools, engine=engine, kv_transfer={"mode": mode}), [(2000 * i, 700, 40) for i in range(40)]
    )
    assert result.summary.completed == 40


def test_models_with_windows_are_refused() -> None:
    with pytest.raises(InputError, match="found trtllm, expected another for this model: 2 groups"):
        vidur_pd.simulate(trtllm(model="gpt-oss-20b"))
