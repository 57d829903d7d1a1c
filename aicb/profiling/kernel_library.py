"""Interface of kernel libraries, and the proof that a kernel computes the right thing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from aicb.kernels.point import Point


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel with its operands, ready to run again and again."""

    label: str
    """Library and function, ``library/function``."""
    run: Callable[[], object]
    """Launches the kernel on the current stream; never synchronises."""
    outputs: Sequence[torch.Tensor] = ()
    """Tensors that ``run`` writes; poisoned before a check, so that a kernel that writes nothing fails it."""
    error: Callable[[], float] | None = None
    """‖out − ref‖ / ‖ref‖ of what ``outputs`` hold now, against a reference in higher precision (on a part of the
    output where it is large). ``None``: the kernel only moves the host or the memory."""
    tolerance: float = 0.0
    """Largest error of a correct kernel: rounding of the output format and of the operands it rounds itself."""
    settings: dict[str, int] = field(default_factory=dict)
    """Choices made for this shape (tile sizes), recorded with the times."""


class Library(Protocol):
    """Kernels of one library.

    ``refusal`` says why a point is not for this library and ``None`` where it is; ``kernel`` is called only then.
    Operands are random and belong to the kernel; equal points get equal operands. A library never substitutes
    another implementation: what it cannot run it refuses.
    """

    def missing(self) -> str | None:
        """Why the library cannot be used on this host (the text goes into the report); ``None`` where it can."""
        ...

    def version(self) -> str:
        """Name and version, for the provenance."""
        ...

    def refusal(self, point: Point) -> str | None:
        """Why this point is not for this library."""
        ...

    def kernel(self, point: Point) -> Kernel:
        """The kernel with operands in device memory."""
        ...


BF16_TOLERANCE = 2.0**-8
"""One rounding to bf16 is at most 2^-9 relative; twice that, in norm, for a sum rounded once and stored."""
FP8_TOLERANCE = 2.0**-8
"""fp8 operands enter the reference as they are, so only the bf16 output is rounded."""
ATTENTION_TOLERANCE = 2.0**-7
"""Probabilities are rounded to bf16 before the second product, the output once more."""


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ in float64; NaN or infinity anywhere gives infinity."""
    difference = torch.linalg.vector_norm(found.double() - expected.double())
    norm = torch.linalg.vector_norm(expected.double())
    value = float(difference / norm.clamp_min(1e-30))
    return value if value == value else float("inf")


def poison(tensors: Sequence[torch.Tensor]) -> None:
    """Fills outputs with NaN (integers: with their largest value)."""
    for tensor in tensors:
        if tensor.dtype.is_floating_point and tensor.element_size() > 1:
            tensor.fill_(float("nan"))
        else:
            tensor.view(torch.uint8).fill_(0x7F)


def seed_of(point: Point) -> int:
    """63-bit seed of a point's operands, the same on every host."""
    return int.from_bytes(hashlib.sha256(point.key.encode()).digest()[:8], "big") >> 1


def normal(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    """Random normal operand, drawn in its own format."""
    drawn = torch.empty(shape, device=device, dtype=dtype).normal_()
    return drawn if scale == 1.0 else drawn.mul_(scale)


def some_rows(rows: int, most: int = 64) -> list[int]:
    """At most ``most`` evenly spaced row numbers, first and last included."""
    if rows <= most:
        return list(range(rows))
    return sorted({round(i * (rows - 1) / (most - 1)) for i in range(most)})
