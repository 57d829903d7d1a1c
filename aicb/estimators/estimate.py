"""What an estimator returns, and the kinds of time it can be asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from aicb import _core
from aicb.operators.operator import DecodeAttention, MlaDecode, PrefillAttention, Work
from boundary.errors import Failure

if TYPE_CHECKING:
    from aicb.estimators.roofline import Demands

Timing = Literal["engine", "graph", "cold"]
"""``cold``: flushed L2, event floor included. ``graph``: per call in a replayed CUDA graph, L2 warm. ``engine``: what
the kernel takes between other kernels of a model, see ``measured.MeasuredTimes``."""


class UnmeasuredShape(Failure, LookupError):
    """A shape lies outside the measured data and no estimate was allowed; names the nearest measured shape."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time of one execution of one operator."""

    time_us: float
    is_estimate: bool
    """True where no measurement within the stated reach supports the time."""
    source: str
    """How the time was obtained: ``measured …``, ``interpolated …``, ``borrowed …``, ``estimate: …``."""
    error_of: float | Callable[[], float] = field(compare=False)
    """``error``, or what works it out: it may take longer than the time, and simulations do not ask for it."""

    @property
    def error(self) -> float:
        """Relative error of the time that 68 % of predictions keep: from leave-one-out residuals of the measurements
        nearby, or what a method without measurements leaves on the shipped table."""
        return self.error_of() if callable(self.error_of) else self.error_of


@dataclass(frozen=True, slots=True, eq=False)
class ManyTimes:
    """[works] each."""

    time_us: NDArray[np.float64]
    is_estimate: NDArray[np.bool_]


class DecodeTimes(Protocol):
    """Decode attention of one geometry and batch size over consecutive iterations."""

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
    """Decode attention as a function of the KV volume, evaluated in C++ (``DecodeTimes``)."""

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


class Estimator(Protocol):
    """Prices the computing operators of ``aicb.operators.operator``.

    The same work always gets the same estimate, and no estimate is below the roofline of the device, unless it is a
    measurement. ``Communication`` is not priced here.
    """

    def price(self, work: Work) -> Estimate:
        """Time of one execution.

        Raises:
            InputError: a dimension is not positive, or the work is a ``Communication``.
        """
        ...

    def times(self, demands: Demands) -> ManyTimes:
        """[works] what ``price`` says of each, worked out together; to 1e-12 of the time.

        Raises:
            InputError: as ``price``.
        """
        ...

    def decode_times(self, work: DecodeAttention | MlaDecode, batch: int) -> DecodeTimes:
        """Time of this attention for ``batch`` sequences; the lengths in ``work`` do not matter."""
        ...


@runtime_checkable
class CompiledEstimator(Estimator, Protocol):
    """An estimator whose attention over all keys is evaluated in C++: ``decode_times`` are ``VolumeTimes``."""

    def compiled_prefill(self, work: PrefillAttention) -> _core.PrefillTimes:
        """Prefills of the geometry of ``work``; its lengths do not matter."""
        ...


def tokens_by_step(kv_tokens: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
    """[…, steps] Σ_i (S_i + j) over the requests of ``kv_tokens`` [… , requests]."""
    totals = kv_tokens.sum(axis=-1, keepdims=True) + kv_tokens.shape[-1] * np.arange(steps, dtype=np.int64)
    return np.asarray(totals, dtype=np.float64)
