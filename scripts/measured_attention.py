"""Measured calls of FlashAttention-3 that are not in the table: ``tests/data/kernels/vllm-h200-*.json.gz``."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.point import decode_lengths
from aicb.measurements.clock import clocked_share
from aicb.measurements.gpu import Gpu
from aicb.model.precision import GemmDtype

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "kernels"
MIXED, CHUNKS, WINDOWS = "vllm-h200-mixed-attention", "vllm-h200-prompt-chunks", "vllm-h200-sliding-prompts"


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCall:
    """One call."""

    dtype: GemmDtype
    heads: int
    kv_heads: int
    head_dim: int
    new_tokens: NDArray[np.int64]
    """[requests]"""
    kv_tokens: NDArray[np.int64]
    """[requests]"""
    time_us: float
    """At the reference clock of the GPU."""
    window: int | None = None
    """Keys that a query sees at most."""

    @property
    def geometry(self) -> tuple[GemmDtype, int, int, int]:
        return self.dtype, self.heads, self.kv_heads, self.head_dim


def measured_calls(name: str, gpu: Gpu) -> list[MeasuredCall]:
    """Calls of a file; ``gpu``: what they ran on."""
    content = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return [_call(dict(zip(content["columns"], row, strict=True)), gpu) for row in content["rows"]]


def _call(row: dict[str, object], gpu: Gpu) -> MeasuredCall:
    assert gpu.clock is not None
    time_us, clock_mhz, moved = (float(str(row[name])) for name in ("rotated_us", "rotated_clock_mhz", "bytes"))
    share = clocked_share(time_us, moved, gpu.hbm_bytes_per_s)
    heads, kv_heads, head_dim = (int(str(row[name])) for name in ("heads", "kv_heads", "d_qk"))
    new, kv = (np.array(decode_lengths(str(row[name])), dtype=np.int64) for name in ("queries", "lengths"))
    at_reference_us = time_us * (clock_mhz / gpu.clock.reference_mhz) ** share
    window = int(str(row["window"])) if "window" in row else None
    dtype: GemmDtype = "fp8" if row["dtype"] == "fp8" else "bf16"
    return MeasuredCall(dtype, heads, kv_heads, head_dim, new, kv, at_reference_us, window)
