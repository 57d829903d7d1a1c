"""Grid of batches and KV lengths at which decode attention is profiled, and rows of a table over a cache's format."""

from __future__ import annotations

from collections.abc import Iterator

from aicb.measurements.table import KernelRow
from aicb.measurements.timing import MeasuredTimes
from aicb.model.precision import KvDtype

_BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_KV_LENGTHS = (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
_UNEQUAL = ("uniform", "lognormal", "one_long")
_UNEQUAL_BATCHES = (4, 16, 32, 64, 128)
_UNEQUAL_MEANS = (1024, 4096, 8192)
_CACHE_LIMIT_BYTES = 18 << 30
"""Largest KV cache of a point."""


def decode_grid(bytes_per_token: int, max_kv_tokens: int) -> Iterator[tuple[int, int, str]]:
    """(batch, mean KV length, distribution) of points whose cache fits."""
    for batch in _BATCHES:
        for kv in _KV_LENGTHS:
            if kv <= max_kv_tokens and batch * kv * bytes_per_token <= _CACHE_LIMIT_BYTES:
                yield batch, kv, "equal"
    for batch in _UNEQUAL_BATCHES:
        for mean in _UNEQUAL_MEANS:
            if mean <= max_kv_tokens and batch * mean * bytes_per_token <= _CACHE_LIMIT_BYTES:
                for distribution in _UNEQUAL:
                    yield batch, mean, distribution


def rows_of_format(measured: MeasuredTimes, op: str, kv: KvDtype) -> tuple[list[KernelRow], KvDtype]:
    """Even rows over a cache of this format; where none was measured, over bf16."""
    rows = measured.table.select(op, kv, "even")
    return (rows, kv) if rows else (measured.table.select(op, "bf16", "even"), "bf16")
