#!/usr/bin/env python3
"""Fits what unequal lengths cost FlashAttention-3's paged decode (`aicb.kernels.decode_attention`).

    python scripts/fit_unequal_decodes.py

The time of a batch of unequal lengths is compared with that of equal lengths of as many blocks, interpolated between
measured ones of the same geometry and batch. Least squares over the rows as vLLM captures them, and over those as
SGLang does, in a build of its own; those of the kernel called alone are compared with the first fit, and each geometry
with a fit of the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from aicb.data import FOLDER
from aicb.kernels.decode_attention import (
    SGLANG_DECODES,
    SGLANG_UNEQUAL_SHARES,
    UNEQUAL_FROM_US,
    UNEQUAL_SHARES,
    UNEQUAL_SPREAD,
    UNEQUAL_UNITS,
    block_tokens,
)
from aicb.kernels.point import decode_lengths
from aicb.measurements.gpu import get_gpu

CAPTURED = ("vllm_fa3_captured.parquet", "decode_attention_captured")
OF_SGLANG = ("sglang_attention.parquet", SGLANG_DECODES)
ALONE = ("profile/profile.parquet", "decode_attention")
SMS = get_gpu("h200").sms
Geometry = tuple[int, int, int]
"""Heads, KV heads, dimension of a head."""


@dataclass(frozen=True, slots=True)
class Unequal:
    """A measured batch of unequal lengths."""

    geometry: Geometry
    units: float
    """KV heads of sequences per SM."""
    spread: float
    """Mean absolute deviation of its lengths over their mean."""
    time_us: float
    equal_us: float
    """Of equal lengths of as many blocks."""

    @property
    def share(self) -> float:
        """Part of the equal time that is the full penalty for a share of 1."""
        beyond_us = max(self.equal_us - UNEQUAL_FROM_US, 0.0)
        return min(self.spread / UNEQUAL_SPREAD, 1.0) * beyond_us / self.equal_us


def unequal_rows(file: str, operation: str) -> list[Unequal]:
    """Rows of bf16 whose equal counterparts were measured, operands in turns."""
    table = pq.read_table(FOLDER / "h200" / file).to_pylist()
    rows = [row for row in table if row["op"] == operation and row["dtype"] == "bf16" and row["rotated_us"]]
    equal: defaultdict[tuple[Geometry, int], dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row["distribution"] == "equal":
            equal[_geometry(row), row["batch"]][row["kv_len"]] = row["rotated_us"]
    found = []
    for row in rows:
        times_us = equal.get((_geometry(row), row["batch"]))
        if row["distribution"] == "equal" or not times_us:
            continue
        lengths = np.array(decode_lengths(row["lengths"]), dtype=np.float64)
        block = block_tokens(row["d_qk"], "bf16")
        tokens = float(np.ceil(lengths / block).mean()) * block
        if tokens > max(times_us):
            continue
        equal_us = float(np.interp(tokens, sorted(times_us), [times_us[length] for length in sorted(times_us)]))
        spread = float(np.abs(lengths - lengths.mean()).mean() / lengths.mean())
        units = row["batch"] * row["kv_heads"] / SMS
        found.append(Unequal(_geometry(row), units, spread, row["rotated_us"], equal_us))
    return found


def fitted(rows: Sequence[Unequal]) -> NDArray[np.float64]:
    """Shares at ``UNEQUAL_UNITS``."""
    excess = [row.time_us / row.equal_us - 1.0 for row in rows]
    return np.linalg.lstsq(np.array([_weights(row.units) * row.share for row in rows]), excess, rcond=None)[0]


def errors(rows: Sequence[Unequal], shares: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """[rows] predicted over measured, less 1."""
    penalties = [float(_weights(row.units) @ np.asarray(shares)) * row.share for row in rows]
    return np.array(
        [row.equal_us * (1.0 + more) / row.time_us - 1.0 for row, more in zip(rows, penalties, strict=True)]
    )


def _geometry(row: Mapping[str, int]) -> Geometry:
    return row["heads"], row["kv_heads"], row["d_qk"]


def _weights(units: float) -> NDArray[np.float64]:
    """Of each of ``UNEQUAL_UNITS`` in a share that is linear in their logarithm between them."""
    known = np.log2(UNEQUAL_UNITS)
    return np.array([np.interp(np.log2(units), known, row) for row in np.eye(len(known))])


def _report(name: str, found: NDArray[np.float64]) -> None:
    median, p90 = np.percentile(np.abs(found), [50, 90])
    print(f"{name:32} {len(found):4d} rows: {median:5.1%} median, {p90:5.1%} p90, {np.median(found):+.1%} signed")


def main() -> None:
    captured, alone = unequal_rows(*CAPTURED), unequal_rows(*ALONE)
    print("UNEQUAL_SHARES", *np.round(fitted(captured), 3))
    _report("captured, no penalty", errors(captured, np.zeros(len(UNEQUAL_UNITS))))
    _report("captured", errors(captured, UNEQUAL_SHARES))
    _report("called alone, not fitted", errors(alone, UNEQUAL_SHARES))
    _report_left_out(captured)
    of_sglang = unequal_rows(*OF_SGLANG)
    print("SGLANG_UNEQUAL_SHARES", *np.round(fitted(of_sglang), 3))
    _report("SGLang, vLLM's shares", errors(of_sglang, UNEQUAL_SHARES))
    _report("SGLang", errors(of_sglang, SGLANG_UNEQUAL_SHARES))
    _report_left_out(of_sglang)


def _report_left_out(rows: Sequence[Unequal]) -> None:
    for geometry in sorted({row.geometry for row in rows}):
        rest = [row for row in rows if row.geometry != geometry]
        out = [row for row in rows if row.geometry == geometry]
        _report(f"{geometry} left out", errors(out, fitted(rest)))


if __name__ == "__main__":
    main()
