"""What an estimator returns, and the kinds of time it can be asked for."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from aicb.operators import Work

Timing = Literal["engine", "graph", "cold"]
"""``cold``: flushed L2, event floor included. ``graph``: per call in a replayed CUDA graph, L2 warm. ``engine``: what
the kernel takes between other kernels of a model, see ``measured.MeasuredTimes``."""


class Estimate(NamedTuple):
    """Time of one execution of one operator."""

    time_us: float
    is_estimate: bool
    """True where no measurement within the stated reach supports the time."""
    source: str
    """How the time was obtained: ``measured …``, ``interpolated …``, ``borrowed …``, ``estimate: …``."""


class Estimator(Protocol):
    """Prices the computing operators of ``aicb.operators``.

    The same work always gets the same estimate, and no estimate is below the roofline of the device, unless it is a
    measurement. ``Communication`` is not priced here.
    """

    def price(self, work: Work) -> Estimate:
        """Time of one execution.

        Raises:
            InputError: a dimension is not positive, or the work is a ``Communication``.
        """
        ...
