#!/usr/bin/env python3
"""Fits `PowerLoad` of kinds of kernels to the SM clocks counted while they were measured on the H200.

    python scripts/fit_power_loads.py

Attention ran until its clock had settled (``aicb/data/h200/attention_clocks.csv``), and so did vLLM's kernel of experts
(``tests/data/kernels/vllm-h200-experts-clocks.csv``), whose loads are not set from it yet: those of fp8 are from rows
of the table of at least 1.5 ms a call, of which replays last 11 ms and more after others like them, so that they are
least ones. Robust least squares (soft L1, 60 MHz) of the law's clock against the counted one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from aicb.data import FOLDER
from aicb.measurements.clock import (
    DECODE_ATTENTION,
    DENSE_PRODUCTS,
    FP8_EXPERTS,
    LATENT_DECODES,
    PROMPT_ATTENTION,
    STREAMED_SHARE,
    PowerLoad,
)
from aicb.measurements.gpu import get_gpu

GPU = get_gpu("h200")
H200 = FOLDER / "h200"
ATTENTION = H200 / "attention_clocks.csv"
EXPERTS = Path(__file__).resolve().parent.parent / "tests" / "data" / "kernels" / "vllm-h200-experts-clocks.csv"
LEAST_US = 1500.0
SPREAD_MHZ = 60.0
STARTS = {"base": (0.2,), "slope": (0.4, 0.7, 1.0, 1.5), "memory": (0.2, 0.4, 0.6)}


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured kernels."""

    tensor_share: NDArray[np.float64]
    """[rows] of the tensor cores' nominal peak."""
    streamed_share: NDArray[np.float64]
    """[rows] of the time: large streams of as many bytes."""
    mhz: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of a table, and the load that the simulator has for them."""

    load: PowerLoad
    fitted: tuple[str, ...]
    """Parts of the load that are fitted; the others are as set."""
    settled: tuple[str, str] | None = None
    """Column and its value in a file of settled clocks; none: rows of a table."""
    file: Path = ATTENTION
    operation: str = "grouped_gemm_gathered"
    dtype: str = "bf16"


KINDS = {
    "attention over prompts": Kind(PROMPT_ATTENTION, ("slope",), ("kind", "prompts")),
    "expanded latents": Kind(DENSE_PRODUCTS, ("slope",), ("kind", "latent prompts")),
    "decodes": Kind(DECODE_ATTENTION, ("memory",), ("kind", "decodes")),
    "decodes of latents": Kind(LATENT_DECODES, ("slope", "memory"), ("kind", "latent decodes")),
    "fp8 experts": Kind(FP8_EXPERTS, ("slope", "base"), file=H200 / "vllm_experts_fp8.parquet", dtype="fp8"),
    "bf16 experts, settled": Kind(DENSE_PRODUCTS, ("slope", "memory"), ("dtype", "bf16"), EXPERTS),
    "fp8 experts, settled": Kind(FP8_EXPERTS, ("slope", "memory"), ("dtype", "fp8"), EXPERTS, dtype="fp8"),
}


def rows_of(kind: Kind) -> Rows:
    if kind.settled is not None:
        table = pd.read_csv(kind.file)
        rows = table[table[kind.settled[0]] == kind.settled[1]]
        flops, moved, mhz = rows["tflops"] * 1e12, rows["tb_per_s"] * 1e12, rows["sm_clock_mhz"]
    else:
        table = pd.read_parquet(kind.file)
        is_own = (table["op"] == kind.operation) & (table["dtype"] == kind.dtype) & table["rotated_clock_mhz"].notna()
        rows = table[is_own & (table["rotated_us"] >= LEAST_US)]
        flops, moved = (rows[name] / (rows["rotated_us"] * 1e-6) for name in ("flops", "bytes"))
        mhz = rows["rotated_clock_mhz"]
    peak = GPU.peak_flops["fp8" if kind.dtype == "fp8" else "bf16"]
    columns = (flops / peak, moved / (STREAMED_SHARE * GPU.hbm_bytes_per_s), mhz)
    return Rows(*(values.to_numpy(float) for values in columns))


def errors_mhz(kind: Kind, load: PowerLoad) -> NDArray[np.float64]:
    """[rows] clock of the law under this load, less the counted one."""
    rows, law = rows_of(kind), GPU.clock
    assert law is not None
    shares = load.base + load.slope * rows.tensor_share + load.memory * rows.streamed_share
    return np.asarray(law.mhz(shares) - rows.mhz)


def fitted(kind: Kind) -> PowerLoad:
    """The best of several starts: the law is flat at ends."""

    def load_of(values: NDArray[np.float64]) -> PowerLoad:
        return replace(kind.load, **dict(zip(kind.fitted, values.tolist(), strict=True)))

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return errors_mhz(kind, load_of(values))

    starts = product(*(STARTS[name] for name in kind.fitted))
    found = [least_squares(residuals, start, loss="soft_l1", f_scale=SPREAD_MHZ) for start in starts]
    return load_of(min(found, key=lambda each: float(each.cost)).x)


def main() -> None:
    for name, kind in KINDS.items():
        load = fitted(kind)
        spread = [float(np.sqrt((errors_mhz(kind, each) ** 2).mean())) for each in (load, kind.load, DENSE_PRODUCTS)]
        print(
            f"{name:24s} rows {len(rows_of(kind).mhz):3d}  base {load.base:.3f}  slope {load.slope:.3f}  memory "
            f"{load.memory:.3f}  root mean square {spread[0]:.0f} MHz (as set {spread[1]:.0f}, as dense products "
            f"{spread[2]:.0f})"
        )


if __name__ == "__main__":
    main()
