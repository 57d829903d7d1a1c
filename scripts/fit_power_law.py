#!/usr/bin/env python3
"""Fits the joules of `aicb.measurements.power` to the power that was measured on an H100.

    python scripts/fit_power_law.py

Least squares over matrix products that leave 40 W and more to the limit; what they draw beyond the power of running
kernels is joules per byte and per FLOP. All other loads are compared with the law, fitted ones marked.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aicb.data import FOLDER
from aicb.measurements.power import H100, PowerLaw

FILE = FOLDER / "h100" / "power.csv"
LEFT_W = 40.0
DTYPES = ("bf16", "fp8")


def measured() -> pd.DataFrame:
    """Rows of the file, with ``is_fitted``."""
    rows = pd.read_csv(FILE, keep_default_na=False)
    return rows.assign(is_fitted=(rows["load"] == "product") & (rows["power_w"] <= H100.limit_w - LEFT_W))


def fitted(rows: pd.DataFrame) -> PowerLaw:
    """The law with joules that fit the rows."""
    rates = np.column_stack([rows["tb_per_s"], *(rows["tflops"] * (rows["dtype"] == dtype) for dtype in DTYPES)])
    joules = np.linalg.lstsq(rates * 1e12, rows["power_w"] - H100.ready_w - H100.kernels_w, rcond=None)[0]
    return replace(H100, j_per_byte=joules[0], j_per_flop=dict(zip(DTYPES, joules[1:].tolist(), strict=True)))


def powers_w(law: PowerLaw, rows: pd.DataFrame) -> NDArray[np.float64]:
    """[rows] what the law says of loads that keep the GPU busy."""
    columns = (rows[name].tolist() for name in ("tb_per_s", "dtype", "tflops"))
    each = zip(*columns, strict=True)
    return np.array([law.computing_w(tb * 1e12, {dtype or "bf16": tflops * 1e12}) for tb, dtype, tflops in each])


def main() -> None:
    rows = measured()
    law = fitted(rows[rows["is_fitted"]])
    print(f"j_per_byte {law.j_per_byte:.3e}", *(f"j_per_flop {name} {of:.3e}" for name, of in law.j_per_flop.items()))
    said = powers_w(H100, rows)
    table = rows[["load", "dtype", "m", "n", "power_w", "is_fitted"]].assign(
        law_w=said.round(), error=(said / rows["power_w"] - 1).round(3)
    )
    print(table.to_string())


if __name__ == "__main__":
    main()
