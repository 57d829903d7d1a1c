#!/usr/bin/env python3
"""Fits the H200's `ClockLaw` and the `PowerLoad` of kinds of kernels to SM clocks that were counted under each alone.

    python scripts/fit_power_loads.py

Of ``aicb/data/h200/clocks.csv`` and ``expert_clocks.csv``: a law of bursts and one of settled clocks, and loads that
hold for both. Shares are those at the reference clock, as the law is asked. Robust least squares (soft L1, 60 MHz) of
the law's clock against the counted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from aicb.data import FOLDER
from aicb.measurements.clock import (
    BF16_EXPERTS,
    DECODE_ATTENTION,
    DENSE_PRODUCTS,
    FILLING,
    FP8_EXPERTS,
    LATENT_DECODES,
    PROMPT_ATTENTION,
    STREAMED_SHARE,
    TILED_FP8_EXPERTS,
    WIDE_DECODE_ATTENTION,
    ClockLaw,
    PowerLoad,
    at_reference_us,
)
from aicb.measurements.gpu import get_gpu

H200 = FOLDER / "h200"
GPU = get_gpu("h200")
SPREAD_MHZ = 60.0
DTYPES = ("bf16", "fp8")
STARTS = (0.1, 0.3, 0.6, 1.0, 1.5)
LAW_STARTS = tuple(product((1800.0,), (1340.0,), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7, 0.8)))
REGIMES = {"burst": ("burst_us", "burst_mhz"), "settled": ("time_us", "sm_clock_mhz")}
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of one kind of kernel, and the load that the simulator has for them."""

    load: PowerLoad
    kind: str
    dtype: str = "bf16"
    fitted: tuple[str, ...] = ("slope",)
    """Parts of the load that are fitted; the others are as set."""
    is_wide: bool = False
    """Heads of 256."""
    has_tiles: bool = False
    """The rows that only fill tiles count, too."""


KINDS = {
    "bf16 experts": Kind(BF16_EXPERTS, "experts", fitted=("slope", "memory")),
    "fp8 experts": Kind(FP8_EXPERTS, "experts", "fp8", ("slope", "memory")),
    "fp8 experts, tiled": Kind(TILED_FP8_EXPERTS, "experts", "fp8", ("slope", "memory"), has_tiles=True),
    "prompts": Kind(PROMPT_ATTENTION, "prompts"),
    "latent prompts": Kind(DENSE_PRODUCTS, "latent prompts"),
    "decodes": Kind(DECODE_ATTENTION, "decodes", fitted=("memory",)),
    "decodes, heads of 256": Kind(WIDE_DECODE_ATTENTION, "decodes", fitted=("memory",), is_wide=True),
    "latent decodes": Kind(LATENT_DECODES, "latent decodes", fitted=("slope", "memory")),
}


def table(regime: str) -> pd.DataFrame:
    """All rows with ``mhz``, and ``tensor``, ``padded_tensor`` and ``streamed`` shares at the reference clock."""
    rows = pd.concat(
        [pd.read_csv(H200 / "clocks.csv"), pd.read_csv(H200 / "expert_clocks.csv").assign(kind="experts")],
        ignore_index=True,
    )
    time, rows["mhz"] = (rows[name] for name in REGIMES[regime])
    flops, moved = (rows[name] * 1e6 * rows["time_us"] for name in ("tflops", "tb_per_s"))
    law = GPU.clock
    assert law is not None
    measured = (each.to_numpy() for each in (time, rows["mhz"], moved))
    reference_s = at_reference_us(law, *measured, GPU.hbm_bytes_per_s) * 1e-6
    rows["tensor"] = flops / rows["dtype"].map(dict(GPU.peak_flops)) / reference_s
    rows["padded_tensor"] = rows["tensor"] * rows["padded"]
    rows["streamed"] = moved / (STREAMED_SHARE * GPU.hbm_bytes_per_s) / reference_s
    return rows


def fitted_law(rows: pd.DataFrame) -> ClockLaw:
    """Of dense products."""
    products = rows[rows["kind"] == "products"]

    def law_of(values: Values) -> ClockLaw:
        return ClockLaw(1600.0, *values.tolist())

    def residuals(values: Values) -> Values:
        return law_of(values).mhz(products["tensor"].to_numpy()) - products["mhz"].to_numpy()

    found = [least_squares(residuals, start, loss="soft_l1", f_scale=SPREAD_MHZ) for start in LAW_STARTS]
    return law_of(min(found, key=lambda each: float(each.cost)).x)


@dataclass(frozen=True, slots=True)
class Regime:
    """All rows at the clocks of one regime, and the law of dense products in it."""

    law: ClockLaw
    rows: pd.DataFrame

    def errors_mhz(self, kind: Kind, load: PowerLoad) -> Values:
        """Clock of the law under this load, less the counted one."""
        rows = self.rows
        own = rows[(rows["kind"] == kind.kind) & (rows["dtype"] == kind.dtype)]
        own = own[(own["d_qk"] == 256) == kind.is_wide] if kind.kind == "decodes" else own
        loads = load.slope * own["tensor"] + load.memory * own["streamed"]
        if kind.has_tiles:
            loads += FILLING * own["padded_tensor"]
        return np.asarray(self.law.mhz(loads.to_numpy()) - own["mhz"])


def fitted_load(kind: Kind, regimes: list[Regime]) -> PowerLoad:
    """Of all regimes together, the best of several starts: the laws are flat at ends."""

    def load_of(values: Values) -> PowerLoad:
        parts = dict(zip(kind.fitted, values.tolist(), strict=True))
        return PowerLoad(parts.get("slope", kind.load.slope), parts.get("memory", kind.load.memory))

    def residuals(values: Values) -> Values:
        return np.concatenate([each.errors_mhz(kind, load_of(values)) for each in regimes])

    starts = product(STARTS, repeat=len(kind.fitted))
    found = [least_squares(residuals, start, loss="soft_l1", f_scale=SPREAD_MHZ) for start in starts]
    return load_of(min(found, key=lambda each: float(each.cost)).x)


def main() -> None:
    regimes = []
    for name in REGIMES:
        rows = table(name)
        regimes.append(Regime(fitted_law(rows), rows))
        products = [regimes[-1].errors_mhz(Kind(DENSE_PRODUCTS, "products", dtype), DENSE_PRODUCTS) for dtype in DTYPES]
        print(f"{name}: {regimes[-1].law}, {_rms(np.concatenate(products)):.0f} MHz root mean square")
    for name, kind in KINDS.items():
        load = fitted_load(kind, regimes)
        print(f"{name}: slope {load.slope:.3f} memory {load.memory:.3f}; MHz, root mean square:", *REGIMES)
        for label, each in (("fitted", load), ("as set", kind.load), ("as dense products", DENSE_PRODUCTS)):
            print(f"  {label:18s}", *(f"{_rms(regime.errors_mhz(kind, each)):4.0f}" for regime in regimes))


def _rms(errors: Values) -> float:
    return float(np.sqrt((errors**2).mean()))


if __name__ == "__main__":
    main()
