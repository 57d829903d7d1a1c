"""What kinds of kernels add to the load that lowers the SM clock."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from aicb.data import FOLDER
from aicb.estimators.estimator import CostTable
from aicb.kernels.gemm import Gemm
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import Kernel
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


def test_only_fused_fp8_experts_load_more_than_their_products() -> None:
    dense, others = Gemm(4096, 4096, 7168, "fp8"), [GroupedGemm(8192, 128, 128, 1536, 2048, "bf16", "contiguous")]
    for kernel in (dense, *others):
        cost = kernel.cost(FP8)
        assert load_us(kernel, 500.0) == cost.flops / H200.peak_flops[cost.dtype] * 1e6
    tensor_us = UP.cost(FP8).flops / H200.peak_flops["fp8"] * 1e6
    assert load_us(UP, 3737.0) == pytest.approx(0.32 * 3737.0 + 0.43 * tensor_us)


def load_us(kernel: Kernel, time_us: float) -> float:
    """Time at the nominal peak that loads the power budget as a kernel that takes ``time_us``."""
    _, _, (load,) = CostTable.of([kernel], FP8).loads_us(H200, np.array([time_us]))
    return float(load)
