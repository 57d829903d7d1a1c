"""Launches that are counted against those that a host was seen to make."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aicb.iteration.host import HostModel, known_hosts, load_host, slowest_of, slowest_over_fastest
from aicb.iteration.launches import Launches
from aicb.iteration.model import IterationModel
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.hybrid_kernels import HybridKernels
from boundary.errors import InputError

MEASURED = Path(__file__).resolve().parents[2] / "data" / "engine" / "vllm-host-default.json.gz"
MODELS = {
    "qwen3-8b": ("qwen3-8b", None, "bf16"),
    "qwen3-30b-a3b": ("qwen3-30b-a3b", None, "bf16"),
    "deepseek-v3-l8": ("deepseek-v3", 8, "fp8"),
    "qwen3-next-80b-l8": ("qwen3-next-80b-a3b", 8, "bf16"),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    with gzip.open(MEASURED, "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)["models"]
    return found


def counted(name: str, partition: Partition | None = None, hybrid_kernels: HybridKernels = "compiled") -> Launches:
    built_in, layers, weights = MODELS[name]
    model = load_model(built_in)
    cut = replace(model, pattern=model.pattern[:layers])
    kernel = "triton" if weights == "fp8" else "deep_gemm"
    precision = Precision(weights)  # type: ignore[arg-type]
    iterations = IterationModel(
        cut,
        partition or Partition(),
        precision,
        get_gpu("h200"),
        experts_kernel=kernel,  # type: ignore[arg-type]
        hybrid_kernels=hybrid_kernels,
    )
    return iterations.launches(0)


@pytest.mark.parametrize("name", MODELS)
def test_launches_are_those_of_the_engine(name: str, measured: dict[str, Any]) -> None:
    """A step whose layers are all in a graph launches the rest alone: it is taken off."""
    profiles = {profile["label"]: profile["launch_calls"] for profile in measured[name]["profiles"]}
    rest = profiles["decode-B1"]
    launches = counted(name)
    assert launches.eager == pytest.approx(profiles["prefill-1024"] - rest, rel=0.03)
    assert launches.pieces == pytest.approx(profiles["prefill-300"] - rest, rel=0.15)


def test_kernels_that_are_not_listed_are_launched_all_the_same(measured: dict[str, Any]) -> None:
    """An operator list without vLLM's copies stands for launches that make them."""
    profiles = {profile["label"]: profile["launch_calls"] for profile in measured["qwen3-next-80b-l8"]["profiles"]}
    launches = counted("qwen3-next-80b-l8", hybrid_kernels="fused")
    assert launches.eager == pytest.approx(profiles["prefill-1024"] - profiles["decode-B1"], rel=0.03)


def test_collectives_are_launched_too() -> None:
    """Two all-reduces a layer and one of the embedding, each of which keeps the host for 2.5 launches."""
    alone, both = counted("qwen3-8b"), counted("qwen3-8b", Partition(tp=2))
    assert alone.eager_time == alone.eager
    assert both.eager == alone.eager + 2 * 36 + 1
    assert both.eager_time == pytest.approx(alone.eager + 2.5 * 73)


def test_the_slowest_of_two_workers_counts_and_what_they_do_together() -> None:
    """Blom's largest of two normal values is 0.589: 1 + 0.1 · 0.589 = 1.0589 times 20, 100 and 50 us, 3.9 launches of
    20 us to hand over, 10 to agree, 6 to gather logits."""
    host = HostModel(eager_launch_us=20.0, prepare_us=100.0, sample_us=50.0, speed_spread=0.1)
    assert host.of_workers(1, 1) == host
    tensor, data = host.of_workers(2, 1), host.of_workers(1, 2)
    assert tensor.eager_launch_us == pytest.approx(21.178, abs=1e-3)
    assert (tensor.prepare_us, tensor.sample_us) == pytest.approx((105.89 + 78.0, 52.95 + 120.0), abs=0.02)
    assert (data.prepare_us, data.sample_us) == pytest.approx((105.89 + 78.0 + 200.0, 52.95), abs=0.02)
    stated = replace(host, hand_over_us=1.0, agree_us=2.0, logits_us=3.0).of_workers(2, 2)
    assert stated.prepare_us == pytest.approx(100.0 * slowest_of(4, 0.1) + 3.0)
    assert stated.request_latency_us == host.request_latency_us


def test_hosts_are_files_with_a_source(tmp_path: Path) -> None:
    assert known_hosts() == ["xeon-vm-16", "xeon-vm-16-traced", "xeon-vm-32", "xeon-vm-32-h100"]
    assert load_host("xeon-vm-16").eager_launch_us > 1.5 * load_host("xeon-vm-32").eager_launch_us
    own = tmp_path / "own.yaml"
    own.write_text("source: measured\neager_launch_us: 20\n", encoding="utf-8")
    assert load_host(str(own)) == HostModel(eager_launch_us=20.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eager_launch_us: 20\n", "source: found None, expected text that says where the times come from"),
        ("source: x\nlaunches: 20\n", "found field 'launches', expected some of source, launch_us"),
        ("source: x\nstep_us: -1\n", "step_us: found -1, expected microseconds below 1,000,000,000"),
        ("source: x\nstep_us: fast\n", "step_us: found 'fast', expected microseconds below 1,000,000,000"),
    ],
)
def test_wrong_hosts_end_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_host(str(path))


def test_an_unknown_host_is_answered_with_those_there_are() -> None:
    listed = ", ".join(known_hosts())
    with pytest.raises(InputError, match=f"host: found 'mainframe', expected one of {listed}, or a YAML"):
        load_host("mainframe")


def test_measured_hosts_differ_by_what_the_slowest_and_the_fastest_take_for_a_launch() -> None:
    """77.6 us on `xeon-vm-16`, 43.9 on `xeon-vm-32`."""
    assert slowest_over_fastest() == pytest.approx(77.6 / 43.9)
