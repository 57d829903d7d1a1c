"""The SM clock under load and what of a time follows it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from aicb import (
    Batch,
    InputError,
    MoeLayout,
    Partition,
    PartitionError,
    Precision,
    built_in_models,
    get_gpu,
    iteration_operators,
    known_gpus,
    load_model,
)
from aicb.estimators.estimator import CostTable, Estimator
from aicb.estimators.selection import select_estimator
from aicb.iteration.host import HostModel
from aicb.iteration.model import IterationModel
from aicb.kernels.gemm import Gemm
from aicb.measurements.clock import ClockLaw, clocked_share, steady_us
from aicb.model.precision import GemmDtype
from aicb.operators.operator import Communication

H200 = get_gpu("h200")
LAW = ClockLaw(1600, 1800, 1400, 0.25, 0.75)
FLAT = ClockLaw(1600, 1600, 1600, 0.1, 0.2)


def test_the_clock_falls_linearly_between_a_light_and_a_heavy_load() -> None:
    assert LAW.mhz(np.array([0.0, 0.25, 0.5, 0.75, 1.0])).tolist() == [1800, 1800, 1600, 1400, 1400]
    assert LAW.slowdown(np.array([0.5, 1.0])).tolist() == [1.0, 1600 / 1400]


def test_only_what_the_sms_bound_follows_the_clock() -> None:
    """8 MB at 0.83 of 1 TB/s take 9.64 µs: all of a kernel of 9 µs, half of one of 19.28 µs (β = 1 − 1/4)."""
    assert clocked_share(9.0, 8e6, 1e12) == 0.0
    assert clocked_share(19.277, 8e6, 1e12) == pytest.approx(0.75, abs=1e-4)
    assert clocked_share(100.0, 0.0, 1e12) == 1.0


def test_long_prefills_run_at_the_heavy_clock_and_decodes_at_the_light_one() -> None:
    """Against a GPU without the law a prefill of 16,384 tokens takes nearly 1600 / 1365 as long; decode of one request,
    bound by memory, gains less than 1600 / 1794 would give."""
    silent = HostModel(eager_launch_us=0.0, step_us=0.0)
    found, plain = (
        IterationModel(load_model("qwen3-8b"), Partition(), Precision(), gpu, host=silent)
        for gpu in (H200, replace(H200, clock=FLAT))
    )
    ratios = [
        found.price([batch]).compute_ps / plain.price([batch]).compute_ps
        for batch in (Batch.prefill([16384]), Batch.decode([1000]))
    ]
    assert 1.10 < ratios[0] < 1600 / 1365
    assert 1600 / 1794 < ratios[1] < 1.0


BATCHES = {
    "one decode": Batch.decode([1000]),
    "64 decodes": Batch.decode([300 + 100 * i for i in range(64)]),
    "256 decodes": Batch.decode([3000] * 256),
    "short prompt": Batch.prefill([200]),
    "prompts": Batch.prefill([700, 3000, 90]),
    "chunk": Batch.prefill([8192], [8192]),
}


def partitions(name: str) -> list[Partition]:
    """Ways to divide a model: whole, over a TP group, and with experts over data-parallel ranks."""
    tried = [Partition(), Partition(tp=8, ep=8), Partition(dp=16, ep=16)]
    model, divided = load_model(name), []
    for partition in tried:
        try:
            operators = iteration_operators(model, partition, Precision(), BATCHES["one decode"])
        except PartitionError:
            continue
        has_experts = any(operator.name == "router" for operator in operators)
        if has_experts or partition.moe_layout is MoeLayout.TENSOR:
            divided.append(partition)
    return divided


@cache
def estimators(weights: GemmDtype) -> tuple[Estimator, Estimator]:
    """Of the H100 and the H200."""
    precision = Precision(weights)
    return select_estimator("auto", get_gpu("h100"), precision), select_estimator("auto", H200, precision)


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
@pytest.mark.parametrize("name", built_in_models())
def test_no_kernel_takes_less_time_on_an_h100_than_on_an_h200(name: str, weights: GemmDtype) -> None:
    """The same SMs, tensor cores and power, and less memory bandwidth."""
    precision = Precision(weights)
    for partition in partitions(name):
        for label, batch in BATCHES.items():
            operators = iteration_operators(load_model(name), partition, precision, batch)
            works = [operator.kernel for operator in operators if not isinstance(operator.kernel, Communication)]
            demands = CostTable.of(works, precision)
            h100_us, h200_us = (estimator.times(demands).time_us for estimator in estimators(weights))
            assert (h100_us >= h200_us * (1 - 1e-12)).all(), (partition, label)


@pytest.mark.parametrize(
    ("name", "weights"), [("qwen3-8b", "bf16"), ("deepseek-v3", "fp8"), ("qwen3-next-80b-a3b", "bf16")]
)
def test_no_iteration_takes_less_time_on_an_h100_than_on_an_h200(name: str, weights: GemmDtype) -> None:
    """Under load both run at the clock that 700 W leave."""
    for partition in partitions(name):
        models = [
            IterationModel(load_model(name), partition, Precision(weights), gpu, estimator=estimator)
            for gpu, estimator in zip((get_gpu("h100"), H200), estimators(weights), strict=True)
        ]
        for label, batch in BATCHES.items():
            h100_ps, h200_ps = (each.price([batch] * partition.dp).compute_ps for each in models)
            assert h100_ps >= h200_ps, (partition, label)


@pytest.mark.parametrize(
    ("gpu", "dtype", "best"),
    [
        ("h100", "bf16", 0.803),
        ("b200", "bf16", 0.776),
        ("b200", "fp8", 0.763),
        ("a100", "bf16", 0.869),
        ("h20", "fp8", 0.952),
        ("gb200", "bf16", 0.729),
        ("gb200", "fp8", 0.723),
        ("mi300x", "bf16", 0.514),
    ],
)
def test_no_large_product_beats_the_best_published_of_a_gpu(gpu: str, dtype: GemmDtype, best: float) -> None:
    """Shares of the nominal peak, back to back: mamf-finder's best shape (ml-engineering 744d01e; H20: InferSim
    f2293da). What was not measured is not estimated to be faster than what was."""
    target, precision = get_gpu(gpu), Precision()
    works = [Gemm(m, n, k, dtype) for m, n, k in ((8192, 8192, 8192), (4096, 8192, 8192), (16384, 4096, 12288))]
    demands = CostTable.of(works, precision)
    time_us = select_estimator("auto", target, precision).times(demands).time_us
    tensor_us = demands.flops / target.peak_flops[dtype] * 1e6
    assert target.clock is not None
    assert (tensor_us / steady_us(target.clock, time_us, time_us, tensor_us) <= best).all()


def test_a_gpu_without_law_and_table_has_the_law_of_the_measured_one(tmp_path: Path) -> None:
    """With times of its own these are taken as they stand; a law of its own is kept."""
    assert (get_gpu("h800").clock, get_gpu("h800").clock_as) == (H200.clock, "h200")
    assert H200.clock_as is None
    text = (files("aicb") / "data" / "gpus" / "h800.yaml").read_text()
    (tmp_path / "gpu.yaml").write_text(text)
    (tmp_path / "kernels.csv").write_text("")
    assert (get_gpu(str(tmp_path)).clock, get_gpu(str(tmp_path)).clock_as) == (None, None)


def test_a_law_on_other_peaks_and_power() -> None:
    """Twice the clock and twice the power per FLOP/s: four times the energy per FLOP, so that the clock falls at half
    the share. Half the clock is not credited."""
    assert LAW.on(clocks=2.0, watts=2.0) == ClockLaw(3200, 3600, 2800, 0.125, 0.375)
    assert LAW.on(clocks=0.5, watts=2.0) == ClockLaw(800, 900, 700, 0.5, 1.5)


def test_power_does_not_bind_an_h20_and_binds_a_b200_more_than_an_h200() -> None:
    """400 W for 148 TFLOPS, 1000 for 2250, 700 for 989.5."""
    half = np.array([0.5])
    clocks = {name: (get_gpu(name).clock, get_gpu(name).boost_mhz) for name in ("h20", "b200", "h200")}
    shares = {name: float(law.mhz(half)[0]) / boost for name, (law, boost) in clocks.items() if law and boost}
    assert shares["b200"] == pytest.approx(1365 / 1830)
    assert shares["b200"] < shares["h200"] < shares["h20"] == pytest.approx(1804 / 1830)


@pytest.mark.parametrize("name", known_gpus())
def test_every_gpu_states_what_its_law_rests_on(name: str) -> None:
    """Peaks are stated at the boost clock: FLOP per clock and SM are a power of two, but for rounding."""
    gpu = get_gpu(name)
    assert gpu.boost_mhz is not None
    assert gpu.power_w is not None
    assert gpu.architecture is not None
    per_clock = np.log2(gpu.peak_bf16_flops / gpu.sms / gpu.boost_mhz / 1e6)
    assert per_clock == pytest.approx(round(per_clock), abs=0.01)


@pytest.mark.parametrize(
    "clock",
    ["7", "{reference_mhz: 1}", "{reference_mhz: 1600, light_mhz: 1, heavy_mhz: 2, light_share: 0, heavy_share: 1}"],
)
def test_a_wrong_law_is_refused_in_one_line(tmp_path: Path, clock: str) -> None:
    text = (files("aicb") / "data" / "gpus" / "h200.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("clock:")]
    (tmp_path / "gpu.yaml").write_text("\n".join([*lines, f"clock: {clock}"]))
    with pytest.raises(InputError, match=r"gpu\.yaml: clock: found .*expected"):
        get_gpu(str(tmp_path))


@pytest.mark.parametrize(
    "settled",
    [
        "7",
        "{}",
        "{light_mhz: 1}",
        "{reference_mhz: 1600, light_mhz: 2, heavy_mhz: 1, light_share: 0, heavy_share: 1}",
        "{light_mhz: 1, heavy_mhz: 2, light_share: 0, heavy_share: 1}",
    ],
)
def test_a_wrong_settled_law_is_refused_in_one_line(tmp_path: Path, settled: str) -> None:
    text = (files("aicb") / "data" / "gpus" / "h200.yaml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("clock:")]
    law = "reference_mhz: 1600, light_mhz: 1800, heavy_mhz: 1400, light_share: 0.2, heavy_share: 0.5"
    (tmp_path / "gpu.yaml").write_text("\n".join([*lines, f"clock: {{{law}, settled: {settled}}}"]))
    with pytest.raises(InputError, match=r"gpu\.yaml: clock\.settled: found .*expected"):
        get_gpu(str(tmp_path))


def test_decodes_alone_run_at_the_settled_clock_and_prompts_at_that_of_a_burst() -> None:
    """A slow settled clock prolongs decodes, a slow one of bursts what has prompts."""
    slow, law = ClockLaw(1600, 800, 800, 0.1, 0.2), H200.clock
    assert law is not None
    usual, settled, burst = (
        IterationModel(load_model("qwen3-8b"), Partition(), Precision(), gpu)
        for gpu in (
            H200,
            replace(H200, clock=replace(law, settled=slow)),
            replace(H200, clock=replace(slow, settled=law.settled)),
        )
    )
    decode, prompt = Batch.decode([1000] * 128), Batch.prefill([2048])
    times = {
        name: [each.price([batch]).compute_ps for each in (usual, settled, burst)]
        for name, batch in (("decode", decode), ("prompt", prompt))
    }
    assert times["decode"][1] > 1.2 * times["decode"][0] == 1.2 * times["decode"][2]
    assert times["prompt"][2] > 1.5 * times["prompt"][0] == 1.5 * times["prompt"][1]
    without = replace(H200, clock=replace(law, settled=None))
    found = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), without).price([decode]).compute_ps
    assert found < times["decode"][0]
