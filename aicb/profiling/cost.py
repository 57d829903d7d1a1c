"""FLOPs and bytes of a point, and how many operand sets take turns when it is timed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aicb.kernels.kernel import KernelCost
from aicb.kernels.point import Point
from aicb.kernels.registry import classes_by_operation, kernel_classes
from aicb.model.precision import Precision
from boundary.errors import InputError

STATE_FP32 = Precision(state="fp32")
"""Recurrent state as the profiled kernels hold it."""


class PointColumns:
    """The cells of a point, as kernels read them (`aicb.kernels.columns.Columns`)."""

    def __init__(self, point: Point):
        self._point, self._shape = point, dict(point.shape)

    def text(self, field: str) -> str:
        if field == "dtype":
            return self._point.dtype if self._point.dtype in ("fp8", "mxfp4") else "bf16"
        return str(self._shape.get(field, ""))

    def fail(self, field: str, expected: str) -> InputError:
        return InputError(f"{self._point.key}: {field}: found {self.text(field)!r}, expected {expected}")

    def integer(self, field: str, default: int | None = None) -> int:
        value = self._shape.get(field, default)
        if value is None:
            raise self.fail(field, "a positive integer")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self._shape.get(field, default)
        if value is None:
            raise self.fail(field, "a positive number")
        return float(value)

    def lengths(self, field: str, batch: int) -> NDArray[np.int64]:
        del batch
        return np.array(self._point.queries if field == "q_len" else self._point.lengths, dtype=np.int64)


def cost_of(point: Point) -> KernelCost:
    """FLOPs and bytes of the kernel; none for costs of launching, bytes alone for copies."""
    kind = classes_by_operation().get(point.op)
    if kind is not None:
        return kind.read(point.op, PointColumns(point)).cost(STATE_FP32)
    return KernelCost(0.0, COPIED_BYTES.get(point.op, 0.0) * point.get("m", 0) * point.get("n", 0), 0.0, "bf16")


COPIED_BYTES = {"device_copy": 4.0, "memset": 2.0}
"""Per element of measurements of the device's bandwidth."""


def flops(point: Point) -> float:
    """Algorithmic FLOPs; 0 for memory-bound kernels."""
    return cost_of(point).flops


def moved_bytes(point: Point) -> float:
    """Bytes of operands read once and results written once."""
    return cost_of(point).moved_bytes


ROTATED_BYTES = 150 << 20
"""Operand sets that take turns fill this much, 2.5 times the L2 of an H200."""
MAX_OPERAND_SETS = 32


def operand_sets(point: Point) -> int:
    """Operand sets that take turns when the point is timed as in an engine; 1 where its operands are warm."""
    if not any(point.op in kind.cold_operations for kind in kernel_classes()):
        return 1
    return min(max(round(ROTATED_BYTES / max(moved_bytes(point), 1.0)), 1), MAX_OPERAND_SETS)
