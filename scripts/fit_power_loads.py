#!/usr/bin/env python3
"""Fits `PowerLoad` of kinds of kernels to the SM clocks counted while they were measured on the H200.

    python scripts/fit_power_loads.py

Rows of at least 1.5 ms a call: replays last 11 ms and more, after others like them, and dense products have the clock
of `ClockLaw` in them. Robust least squares (soft L1, 60 MHz) of the law's clock against the counted one. A counted
clock that has not settled is above the sustained one: a fitted load is a least one, and one below that of dense
products says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from aicb.data import FOLDER
from aicb.measurements.clock import DENSE_PRODUCTS, FP8_EXPERTS, PowerLoad
from aicb.measurements.gpu import get_gpu

LEAST_US = 1500.0
SPREAD_MHZ = 60.0


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of a table, and the load that the simulator has for them."""

    file: str
    operations: tuple[str, ...]
    dtype: str
    load: PowerLoad


KINDS = {
    "attention over prompts": Kind("profile/profile.parquet", ("prefill_attention",), "bf16", DENSE_PRODUCTS),
    "FlashMLA": Kind("profile/profile.parquet", ("mla_decode",), "bf16", DENSE_PRODUCTS),
    "bf16 experts": Kind("vllm_experts.parquet", ("grouped_gemm_gathered",), "bf16", DENSE_PRODUCTS),
    "fp8 experts": Kind("vllm_experts_fp8.parquet", ("grouped_gemm_gathered",), "fp8", FP8_EXPERTS),
}


def rows_of(kind: Kind) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """([rows] share of the tensor cores' nominal peak, [rows] MHz)."""
    table = pd.read_parquet(FOLDER / "h200" / kind.file)
    chosen = table["op"].isin(kind.operations) & (table["dtype"] == kind.dtype) & table["rotated_clock_mhz"].notna()
    rows = table[chosen & (table["rotated_us"] >= LEAST_US)]
    peak = get_gpu("h200").peak_flops["fp8" if kind.dtype == "fp8" else "bf16"]
    return (rows["flops"] / (rows["rotated_us"] * 1e-6) / peak).to_numpy(float), rows["rotated_clock_mhz"].to_numpy(
        float
    )


def errors_mhz(kind: Kind, load: PowerLoad) -> NDArray[np.float64]:
    """[rows] clock of the law under this load, less the counted one."""
    share, mhz = rows_of(kind)
    law = get_gpu("h200").clock
    assert law is not None
    return np.asarray(law.mhz(load.base + load.slope * share) - mhz)


def fitted(kind: Kind) -> PowerLoad:
    """Without a base where the simulator has none for the kind; the best of several starts: the law is flat at ends."""

    def load_of(values: NDArray[np.float64]) -> PowerLoad:
        return PowerLoad(slope=values[0]) if len(values) == 1 else PowerLoad(base=values[1], slope=values[0])

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return errors_mhz(kind, load_of(values))

    starts = [[slope, 0.2] if kind.load.base else [slope] for slope in (0.4, 0.7, 1.0, 1.5)]
    found = [least_squares(residuals, start, loss="soft_l1", f_scale=SPREAD_MHZ) for start in starts]
    return load_of(min(found, key=lambda each: each.cost).x)


def main() -> None:
    for name, kind in KINDS.items():
        load = fitted(kind)
        spread = [float(np.sqrt((errors_mhz(kind, each) ** 2).mean())) for each in (load, kind.load, DENSE_PRODUCTS)]
        print(
            f"{name:24s} rows {len(rows_of(kind)[0]):3d}  base {load.base:.3f}  slope {load.slope:.3f}  "
            f"root mean square {spread[0]:.0f} MHz (as set {spread[1]:.0f}, as dense products {spread[2]:.0f})"
        )


if __name__ == "__main__":
    main()
