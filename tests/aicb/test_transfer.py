"""Times of GPUs without measurements, by the utilisation of the H200."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import Batch, InputError, Partition, Precision, get_gpu, load_model
from aicb.estimators import InterpolationEstimator
from aicb.iteration import IterationModel
from aicb.operators import DecodeAttention, Elementwise, Gemm, PrefillAttention, Work
from aicb.transfer import TransferEstimator

FP8 = Precision("fp8")
MEASURED = InterpolationEstimator(get_gpu("h200"))
BIG = Gemm(8192, 4096, 7168, "fp8")
SMALL = Gemm(64, 7168, 16384, "fp8")


def transferred(gpu: str, work: Work) -> float:
    return TransferEstimator(get_gpu(gpu)).price(work).time_us


def test_compute_bound_kernels_scale_with_the_peak() -> None:
    """The H20 has 296 of 1979 fp8 TFLOPS: 6.69 times as long, a µs of launch apart; the H100 is equal."""
    measured = MEASURED.price(BIG).time_us
    assert transferred("h20", BIG) == pytest.approx(measured * 1979 / 296, rel=0.02)
    assert transferred("h100", BIG) == pytest.approx(measured, rel=1e-9)


def test_weight_bound_kernels_scale_with_the_bandwidth() -> None:
    """4.8 / 3.35 TB/s of 117 MB of weights."""
    assert transferred("h100", SMALL) == pytest.approx(MEASURED.price(SMALL).time_us * 4.8 / 3.35, rel=0.03)


def test_launches_do_not_shrink_with_the_bandwidth() -> None:
    """A kernel that moves a kilobyte takes launch time on every GPU."""
    tiny = Elementwise("add", 1, 512, 1024)
    assert transferred("b200", tiny) > 0.7 * MEASURED.price(tiny).time_us


def test_every_transferred_time_is_flagged_with_its_origin() -> None:
    found = TransferEstimator(get_gpu("h100")).price(BIG)
    assert found.is_estimate
    assert found.source.startswith("estimate: transferred from h200: ")


def test_the_measured_gpu_keeps_its_times() -> None:
    for work in (BIG, SMALL, Elementwise("add", 64, 4096, 10**6)):
        assert transferred("h200", work) == pytest.approx(MEASURED.price(work).time_us, rel=1e-12)


@pytest.mark.parametrize("gpu", ["h100", "h800", "h20", "a100", "b200"])
def test_decode_functions_equal_single_prices(gpu: str) -> None:
    estimator = TransferEstimator(get_gpu(gpu))
    kv = np.array([1000, 5000, 300])
    work = DecodeAttention(kv, 32, 8, 128)
    steps, is_estimate = estimator.decode_times(work, 3)(kv, 3)
    assert is_estimate
    assert steps[0] == pytest.approx(estimator.price(work).time_us)
    assert steps[2] >= steps[0]


def test_no_transferred_time_is_below_the_roofline() -> None:
    """A100, bf16: 2·m·n·k / 312 TFLOPS, and the KV bytes of a prefill's FLOPs likewise."""
    dense = Gemm(8192, 4096, 7168, "bf16")
    assert transferred("a100", dense) >= 2 * 8192 * 4096 * 7168 / 312e12 * 1e6
    prefill = PrefillAttention(np.array([4096]), np.array([4096]), 32, 8, 128, 128)
    assert transferred("a100", prefill) >= 2 * 32 * 256 * 4096 * 4097 / 2 / 312e12 * 1e6


def test_fp8_on_an_a100_is_refused() -> None:
    with pytest.raises(InputError, match="a100 has no fp8"):
        TransferEstimator(get_gpu("a100"), FP8)
    with pytest.raises(InputError, match=r"Gemm\.dtype: found fp8, expected bf16"):
        TransferEstimator(get_gpu("a100")).price(BIG)
    with pytest.raises(InputError, match="a100 has no fp8"):
        IterationModel(load_model("qwen3-8b"), Partition(), FP8, get_gpu("a100"))


@pytest.mark.parametrize("gpu", ["h100", "h20", "b200", "a100"])
def test_iterations_of_unmeasured_gpus_are_estimates_as_a_whole(gpu: str) -> None:
    cost = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), get_gpu(gpu)).price(
        [Batch.decode([900] * 8)]
    )
    assert cost.estimated_ps == sum(cost.phase_ps) > 0


def test_decodes_follow_the_bandwidth_of_the_device() -> None:
    """Qwen3-8B at batch 8 is bound by its weights: A100 (2.04 TB/s) over H200 (4.8) lies between 1.8 and 2.5."""
    times = [
        sum(
            IterationModel(load_model("qwen3-8b"), Partition(), Precision(), get_gpu(gpu))
            .price([Batch.decode([900] * 8)])
            .phase_ps
        )
        for gpu in ("a100", "h200")
    ]
    assert 1.8 < times[0] / times[1] < 2.5
