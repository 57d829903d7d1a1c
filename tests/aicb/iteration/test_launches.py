"""Launches that are counted against those that a host was seen to make."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from aicb.iteration.host import MEDIAN_HOST, HostModel, known_hosts, load_host, slowest_of, slowest_over_fastest
from aicb.iteration.launches import CALLS, IN_PIECE, IN_PIECE_APART, PIECE, Launches
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
    return cut(built_in, layers, weights, partition, hybrid_kernels)


def cut(
    name: str,
    layers: int | None,
    weights: str | None = None,
    partition: Partition | None = None,
    hybrid_kernels: HybridKernels = "compiled",
) -> Launches:
    model = load_model(name)
    weights = weights or ("fp8" if name == "deepseek-v3" else "bf16")
    kernel = "triton" if weights == "fp8" else "deep_gemm"
    precision = Precision(weights)  # type: ignore[arg-type]
    iterations = IterationModel(
        replace(model, pattern=model.pattern[:layers]),
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
    """Two all-reduces a layer and one of the embedding, each of which keeps the host for 3.5 launches."""
    alone, both = counted("qwen3-8b"), counted("qwen3-8b", Partition(tp=2))
    assert both.eager == alone.eager + 2 * 36 + 1
    assert both.eager_time == pytest.approx(alone.eager_time + 3.5 * 73)


def test_a_layer_of_qwen3_30b_a3b_has_17_launches_by_time_and_four_between_graphs() -> None:
    """A piece (0.35) with six kernels (0.39 each), attention (2.95) and experts (11.5): 17.14; between graphs a graph
    (0.4) and attention (3.6). The forward pass is 10 and 14.5, the first experts 0.3 times 11.5."""
    launches = counted("qwen3-30b-a3b")
    assert (launches.eager_time - 10.0 - 3.45) / 48 == pytest.approx(17.14)
    assert (launches.pieces_time - 14.5) / 48 == pytest.approx(4.0)


def test_a_layer_of_qwen3_8b_has_seven() -> None:
    """A piece with nine kernels and attention: 0.35 + 9 · 0.39 + 2.95 = 6.81."""
    assert (counted("qwen3-8b").eager_time - 10.0) / 36 == pytest.approx(6.81)


def test_layers_of_deepseek_are_latent_attention_and_operators_of_vllm() -> None:
    """Every layer: a piece (0.35), latent attention (6.75), norms and rotary embedding (5 · 0.39), three products with
    what quantises for them (6 · 0.66): 13.01. Three dense ones: two products, quantised, and the activation (0.39 +
    4 · 0.66); five of experts: 18.7, shared ones 1 + 4 · 1.5. The forward pass is 10, first experts 0.3 · 18.7."""
    expected = 10.0 + 0.3 * 18.7 + 8 * 13.01 + 3 * 3.03 + 5 * (18.7 + 7.0)
    assert counted("deepseek-v3-l8").eager_time == pytest.approx(expected)


def test_layers_of_qwen3_next_are_delta_rules_attention_and_experts() -> None:
    """Every layer: a piece (0.35), two norms (0.78), experts (11.5) with six kernels of the shared one. Six of eight:
    the rule (17.5) and nine kernels (3.51); two: attention (2.95), two products, heads with gates in two kernels, the
    output gate (5 · 0.39). The forward pass is 10, first experts and the first rule 0.3 · (11.5 + 17.5)."""
    launches = counted("qwen3-next-80b-l8")
    expected = 10.0 + 0.3 * 29.0 + 8 * 18.63 + 6 * 21.01 + 2 * 4.9
    assert launches.eager_time == pytest.approx(expected)
    assert launches.pieces_time == pytest.approx(14.5 + 0.3 * 31.2 + 8 * 0.4 + 6 * 31.2 + 2 * 3.6)
    assert (launches.preparing, launches.prompt_preparing) == (8.0, 18.0)
    assert counted("qwen3-30b-a3b").preparing == 0.0


CLASSES = Path(__file__).resolve().parents[2] / "data" / "engine" / "vllm-host-classes.json.gz"


def test_calls_take_the_times_of_stamps_inside_engines() -> None:
    """In the unit of the recordings a launch is 86.5 us; of calls from the third layer on, within 12 %."""
    with gzip.open(CLASSES, "rt", encoding="utf-8") as file:
        engines = json.load(file)["engines"]

    def time_us(model: str, what: str, calls: slice) -> float:
        rows = (row for engine in engines if engine["model"] == model for row in engine["steps"])
        times = [row["calls"].get(what, ())[calls] for row in rows if row["mode"] == "eager"]
        return median(time for each in times for time in each)

    steady, operator_us, launch_us = slice(2, None), 31.0, 86.5
    attention_us = [
        time_us(model, "attention", steady) + time_us(model, "kv_write", steady) + 2 * operator_us
        for model in ("qwen3-8b", "qwen3-30b-a3b")
    ]
    assert launch_us * CALLS["attention"] == pytest.approx(sum(attention_us) / 2, rel=0.12)
    rule_us = time_us("qwen3-next-80b-a3b", "delta_rule", steady) + operator_us
    assert launch_us * CALLS["delta_rule"] == pytest.approx(rule_us, rel=0.12)
    around_us = 190.0  # of the piece around the operator
    experts_us = time_us("qwen3-30b-a3b", "experts", steady) + around_us
    assert launch_us * CALLS["experts"] == pytest.approx(experts_us, rel=0.12)
    pieces_us = time_us("qwen3-8b", "piece", slice(2, 6))
    assert launch_us * (PIECE + 9 * IN_PIECE) == pytest.approx(pieces_us, rel=0.12)
    dense_us = time_us("deepseek-v3", "piece", slice(2, 4))
    assert launch_us * (PIECE + 6 * IN_PIECE + 10 * IN_PIECE_APART) == pytest.approx(dense_us, rel=0.12)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("qwen3-8b", 0.04), ("deepseek-v3", 0.08), ("qwen3-next-80b-a3b", 0.05)]
)
def test_forward_passes_of_other_models_follow_from_launches(name: str, tolerance: float) -> None:
    """Of both processes, eager, over those of Qwen3-30B-A3B in the same unit."""
    with gzip.open(CLASSES, "rt", encoding="utf-8") as file:
        engines = json.load(file)["engines"]

    def measured_us(model: str) -> float:
        rows = (row for engine in engines if engine["model"] == model for row in engine["steps"])
        return median(row["launch"] for row in rows if row["mode"] == "eager")

    layers = {engine["model"]: engine["layers"] for engine in engines}
    ratio = cut(name, layers[name]).eager_time / cut("qwen3-30b-a3b", 6).eager_time
    assert ratio == pytest.approx(measured_us(name) / measured_us("qwen3-30b-a3b"), rel=tolerance)


def test_the_slowest_of_two_workers_counts_and_what_they_do_together() -> None:
    """Blom's largest of two normal values is 0.589: 1 + 0.1 · 0.589 = 1.0589 times 20, 100 and 50 us, 4.4 launches of
    20 us to hand over, 11.3 to agree, 6.8 to gather logits."""
    host = HostModel(eager_launch_us=20.0, prepare_us=100.0, sample_us=50.0, speed_spread=0.1)
    assert host.of_workers(1, 1) == replace(host, hand_over_us=0.0)
    tensor, data = host.of_workers(2, 1), host.of_workers(1, 2)
    assert tensor.eager_launch_us == pytest.approx(21.178, abs=1e-3)
    assert (tensor.prepare_us, tensor.sample_us) == pytest.approx((105.89 + 88.0, 52.95 + 136.0), abs=0.02)
    assert tensor.hand_over_us == pytest.approx(88.0)
    assert (data.prepare_us, data.sample_us) == pytest.approx((105.89 + 88.0 + 226.0, 52.95), abs=0.02)
    stated = replace(host, hand_over_us=1.0, agree_us=2.0, logits_us=3.0).of_workers(2, 2)
    assert stated.prepare_us == pytest.approx(100.0 * slowest_of(4, 0.1) + 3.0)
    assert stated.request_latency_us == host.request_latency_us


def test_workers_that_schedule_for_themselves_tell_each_other_of_requests_and_are_handed_nothing() -> None:
    """What they tell each other is as long for all; a host file may say how long."""
    host = HostModel(prepare_us=100.0, speed_spread=0.0, logits_us=0.0)
    told = host.of_workers(2, 1, broadcast_us=30.0)
    assert (told.prepare_us, told.hand_over_us) == (130.0, 0.0)
    assert replace(host, hand_over_us=7.0).of_workers(2, 1, broadcast_us=30.0).prepare_us == 107.0
    assert host.of_workers(1, 1, broadcast_us=30.0).prepare_us == 100.0


def test_hosts_are_files_with_a_source(tmp_path: Path) -> None:
    assert known_hosts() == [MEDIAN_HOST, "xeon-vm-16", "xeon-vm-16-traced", "xeon-vm-32", "xeon-vm-32-h100"]
    assert load_host("xeon-vm-16").eager_launch_us > 1.5 * load_host("xeon-vm-32").eager_launch_us
    own = tmp_path / "own.yaml"
    own.write_text("source: measured\neager_launch_us: 20\n", encoding="utf-8")
    assert load_host(str(own)) == HostModel(eager_launch_us=20.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eager_launch_us: 20\n", "source: found None, expected text that says where the times come from"),
        ("source: x\nlaunches: 20\n", "found field 'launches', expected some of source, launch_us"),
        ("source: x\nstep_us: -1\n", "step_us: found -1, expected microseconds, from 0 to below 1,000,000,000"),
        ("source: x\nstep_us: fast\n", "step_us: found 'fast', expected microseconds, from 0 to below 1,000,000,000"),
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
    """96.5 us on `xeon-vm-16-traced`, 41.7 on `xeon-vm-32`."""
    assert slowest_over_fastest() == pytest.approx(96.5 / 41.7)
