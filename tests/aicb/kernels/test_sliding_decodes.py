"""Decodes that vLLM captures in models whose layers differ in their windows (gpt-oss), and of layers that slide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aicb.estimators.interpolation import InterpolationEstimator
from aicb.kernels.decode_attention import (
    CapturedDecodeAttention,
    DecodeAttention,
    PagedTimes,
    SlidingDecodeAttention,
    UnscheduledDecodeAttention,
)
from aicb.measurements.gpu import get_gpu
from aicb.model.architecture import GroupedQueryAttention, Model
from aicb.model.catalog import load_model
from aicb.model.key_span import KeySpan
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.gqa import GqaKernel
from aicb.operators.lists import attention_operators
from aicb.profiling.sweep import Plan, plan_points

H200 = InterpolationEstimator(get_gpu("h200"))
GPT_OSS = load_model("gpt-oss-120b")


def priced_us(kernel: type[DecodeAttention], tokens: int, requests: int, heads: tuple[int, int, int]) -> float:
    return H200.price(kernel(np.full(requests, tokens), *heads)).time_us


def kernels_of(model: Model, kernel: GqaKernel = "fa3_captured", kv: str = "bf16") -> dict[str, type]:
    batch = Batch(np.array([1, 1]), np.array([4096, 64]), logit_rows=2)
    precision = Precision(kv="fp8" if kv == "fp8" else "bf16")
    listed = attention_operators(model, Partition(), precision, batch, gqa_kernel=kernel)
    return {operator.name: type(operator.kernel) for operator in listed}


def sliding(model: Model, window: int) -> Model:
    """The model with that window in all its layers."""
    kinds = []
    for kind in model.kinds:
        assert isinstance(kind.attention, GroupedQueryAttention)
        kinds.append(replace(kind, attention=replace(kind.attention, span=KeySpan("sliding", window))))
    return replace(model, kinds=tuple(kinds))


def test_vllm_makes_no_schedule_ahead_where_windows_differ() -> None:
    assert kernels_of(GPT_OSS) == {
        "decode_attention": UnscheduledDecodeAttention,
        "sliding_decode_attention": SlidingDecodeAttention,
    }
    llama = load_model("llama-3.1-8b")
    assert not llama.windows_differ
    assert kernels_of(llama) == {"decode_attention": CapturedDecodeAttention}
    every = sliding(llama, 4096)
    assert not every.windows_differ
    assert kernels_of(every) == {"sliding_decode_attention": SlidingDecodeAttention}
    chunked = load_model("llama-4-scout")
    assert not chunked.windows_differ
    assert set(kernels_of(chunked).values()) == {CapturedDecodeAttention}


def test_layers_that_slide_are_priced_so_under_sglang() -> None:
    """Its other layers, of heads of 64, have the kernel that is called alone."""
    assert kernels_of(GPT_OSS, "fa3_sglang") == {
        "decode_attention": DecodeAttention,
        "sliding_decode_attention": SlidingDecodeAttention,
    }


@pytest.mark.parametrize(("kernel", "kv"), [("fa3", "bf16"), ("fa3_captured", "fp8"), ("fa3_sglang", "fp8")])
def test_other_caches_and_engines_have_the_kernel_that_is_called_alone(kernel: GqaKernel, kv: str) -> None:
    assert set(kernels_of(GPT_OSS, kernel, kv).values()) == {DecodeAttention}


def test_a_sliding_decode_takes_longer_than_reading_its_window() -> None:
    """Measured, 64 query heads, window of 128: 14.4 us for one request and 119 for 256; as many keys without a window
    take 8.1 and 68."""
    heads = (64, 8, 64)
    assert priced_us(SlidingDecodeAttention, 128, 1, heads) == pytest.approx(14.4, abs=0.1)
    assert priced_us(SlidingDecodeAttention, 128, 256, heads) == pytest.approx(118.9, abs=0.5)
    assert priced_us(CapturedDecodeAttention, 128, 1, heads) < 8.5
    assert priced_us(CapturedDecodeAttention, 128, 256, heads) < 70.0


def test_a_schedule_in_each_call_takes_a_microsecond() -> None:
    for requests, tokens in ((1, 512), (8, 512), (32, 512), (1, 4096), (8, 4096)):
        times = [
            priced_us(kernel, tokens, requests, (64, 8, 64))
            for kernel in (UnscheduledDecodeAttention, CapturedDecodeAttention)
        ]
        assert 0.3 < times[0] - times[1] < 2.0


@pytest.mark.parametrize(
    ("kernel", "points", "median", "p90"),
    [(UnscheduledDecodeAttention, 1257, 0.025, 0.09), (SlidingDecodeAttention, 388, 0.042, 0.1)],
)
def test_numbers_of_requests_left_out_follow_from_the_others(
    kernel: type[DecodeAttention], points: int, median: float, p90: float
) -> None:
    times = H200.fitted(kernel, "bf16")
    assert isinstance(times, PagedTimes)
    shapes = times.surface.shapes
    assert len(shapes) == points
    errors = np.abs(times.surface.hold_out([shape[3] for shape in shapes.tolist()]).relative)
    assert np.median(errors) < median
    assert np.quantile(errors, 0.9) < p90


def test_layers_that_slide_are_swept_over_whole_windows() -> None:
    plan = Plan(models=(GPT_OSS, load_model("llama-3.1-8b")), weights=("bf16",), kv=("bf16",), tp=(1, 8), ep=(1,))
    points = [point for point in plan_points(plan) if point.op == "decode_attention_sliding"]
    assert {point["kv_len"] for point in points} == {128}
    assert {(point["heads"], point["kv_heads"]) for point in points} == {(64, 8), (8, 1)}
    assert all(point.lengths == (128,) * point["batch"] for point in points)
