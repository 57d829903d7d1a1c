"""What kinds of kernels add to the load that lowers the SM clock."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from aicb.data import FOLDER
from aicb.estimators.selection import select_estimator
from aicb.iteration.pricing import Pricing
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.measurements.clock import DENSE_PRODUCTS, FP8_EXPERTS, PowerLoad
from aicb.measurements.gpu import get_gpu
from aicb.model.precision import Precision

H200, FP8 = get_gpu("h200"), Precision("fp8")
UP = GroupedGemm(32768, 256, 256, 4096, 7168, "fp8", "gathered")


def test_clocks_under_fp8_experts_are_those_that_the_sms_counted() -> None:
    """Calls of 1.5 ms and more of vLLM's kernel: within 125 MHz (root mean square), as dense products 220 above."""
    table = pd.read_parquet(FOLDER / "h200" / "vllm_experts_fp8.parquet")
    rows = table[(table["rotated_us"] >= 1500) & table["rotated_clock_mhz"].notna()]
    share = (rows["flops"] / (rows["rotated_us"] * 1e-6) / H200.peak_flops["fp8"]).to_numpy(float)
    assert H200.clock is not None
    assert len(share) == 63

    def spread_mhz(load: PowerLoad) -> float:
        errors = H200.clock.mhz(load.base + load.slope * share) - rows["rotated_clock_mhz"].to_numpy(float)
        return float(np.sqrt((errors**2).mean()))

    assert spread_mhz(FP8_EXPERTS) < 125
    assert spread_mhz(DENSE_PRODUCTS) > 200


def test_a_load_is_time_at_the_nominal_peak() -> None:
    """Experts that take 100 µs, 20 of them at the peak: 32 + 0.43 · 20."""
    assert FP8_EXPERTS.time_us(100.0, 20.0) == pytest.approx(40.6)
    assert DENSE_PRODUCTS.time_us(100.0, 20.0) == 20.0


def test_only_fused_fp8_experts_load_more_than_their_products() -> None:
    dense, others = Gemm(4096, 4096, 7168, "fp8"), [GroupedGemm(8192, 128, 128, 1536, 2048, "bf16", "contiguous")]
    pricing = Pricing(select_estimator("auto", H200, FP8), H200, FP8)
    for kernel in (dense, *others):
        cost = kernel.cost(FP8)
        assert pricing.load(kernel, 500.0)[1] == cost.flops / H200.peak_flops[cost.dtype] * 1e6
    tensor_us = UP.cost(FP8).flops / H200.peak_flops["fp8"] * 1e6
    assert pricing.load(UP, 3737.0)[1] == pytest.approx(0.32 * 3737.0 + 0.43 * tensor_us)
