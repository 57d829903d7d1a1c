"""Engine profiles: what a configuration gets that names little more than a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import vidur_pd
from boundary.errors import InputError
from tests.vidur_pd.test_config_file import MINIMAL
from vidur_pd.config import SimulationConfig
from vidur_pd.config.engine_conditions import _warn_of_nccl
from vidur_pd.config.file import load_config


def sglang(**sections: Any) -> SimulationConfig:
    return SimulationConfig.model_validate(MINIMAL | {"engine": {"framework": "sglang"}} | sections)


@pytest.mark.parametrize(
    ("hardware", "chunk"), [("a100", 8192), ("h100", 8192), ("h200", 8192), ("b200", 16384), ("unknown", 2048)]
)
def test_the_chunk_of_sglang_follows_from_the_memory_of_the_gpu(hardware: str, chunk: int) -> None:
    assert sglang(hardware=hardware).engine.max_batched_tokens == chunk


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
