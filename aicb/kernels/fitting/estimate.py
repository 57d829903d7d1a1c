"""Estimates: the time of a kernel and its source, for one kernel, for many at once, or over decode steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import aicb._core as _core
from boundary.errors import Failure


class UnmeasuredShape(Failure, LookupError):
    """A shape lies outside the measured data and no estimate was allowed; names the nearest measured shape."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time of one execution of one kernel."""

    time_us: float
    is_estimate: bool
    """Whether the time is not supported by a measurement within the stated reach."""
    source: str
    """Origin of the time: ``measured …``, ``interpolated …``, ``borrowed …``, ``estimate: …``."""
    error_of: float | Callable[[], float] = field(compare=False)
    """``error``, or a function that computes it: that may take longer than the time, and simulations do not need it."""

    @property
    def error(self) -> float:
        """Relative error of the time that 68 % of predictions stay within: from leave-one-out residuals of the
        measurements nearby, or, for a method without measurements, from its residuals on the shipped table."""
        return self.error_of() if callable(self.error_of) else self.error_of


@dataclass(frozen=True, slots=True, eq=False)
class ManyTimes:
    """Times of many kernels, as columns [kernels]."""

    time_us: NDArray[np.float64]
    is_estimate: NDArray[np.bool_]


class DecodeTimes(Protocol):
    """Times of decode attention of one geometry and batch size over consecutive iterations."""

    @property
    def source(self) -> str: ...

    @property
    def error(self) -> float:
        """Relative error (68 %), see ``Estimate.error``."""
        ...

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """[…, steps] µs, and […] whether they are estimates, of batches with KV lengths ``kv_tokens`` [… , requests].

        In step j every sequence attends to j more tokens than ``kv_tokens`` says. Bit for bit equal to one call per
        batch and step.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class VolumeTimes:
    """``DecodeTimes`` as a function of the KV volume, evaluated in C++."""

    times: _core.DecodeTimes
    source: str
    error_of: Callable[[], float]

    @property
    def error(self) -> float:
        """See ``Estimate.error``."""
        return self.error_of()

    def __call__(self, kv_tokens: NDArray[np.int64], steps: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        time_us, is_estimate = self.times.over(kv_tokens.reshape(-1, kv_tokens.shape[-1]), steps)
        batches = kv_tokens.shape[:-1]
        return time_us.reshape(*batches, steps), is_estimate.reshape(batches)


def tokens_by_step(kv_tokens: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
    """[…, steps] Σ_i (S_i + j) over the requests of ``kv_tokens`` [… , requests]."""
    totals = kv_tokens.sum(axis=-1, keepdims=True) + kv_tokens.shape[-1] * np.arange(steps, dtype=np.int64)
    return np.asarray(totals, dtype=np.float64)
