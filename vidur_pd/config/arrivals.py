"""What a configuration may say about when requests arrive."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from boundary.fields import PositiveFloat, Rate, Section


class PoissonArrivals(Section):
    """Independent exponential gaps, never clipped, so that the offered rate is ``qps``."""

    kind: Literal["poisson"]
    qps: Rate


class GammaArrivals(Section):
    """Independent gamma gaps: ``cv`` above 1 is burstier than Poisson, below 1 smoother."""

    kind: Literal["gamma"]
    qps: Rate
    cv: Annotated[PositiveFloat, Field(ge=1e-3, le=1e3)]
    """Standard deviation of the gaps over their mean; vLLM's ``burstiness`` is 1/cv²."""


class ConstantArrivals(Section):
    """Equal gaps: request ``i`` arrives at ``i / qps``."""

    kind: Literal["constant"]
    qps: Rate


class StaticArrivals(Section):
    """Every request is there at time zero."""

    kind: Literal["static"]


class RampArrivals(Section):
    """Exponential gaps whose rate goes from ``from_qps`` (first request) to ``to_qps`` (last one)."""

    kind: Literal["ramp"]
    from_qps: Rate
    to_qps: Rate
    shape: Literal["linear", "exponential"] = "linear"
    """Interpolation of the rate over the request index."""


Arrivals = Annotated[
    PoissonArrivals | GammaArrivals | ConstantArrivals | StaticArrivals | RampArrivals, Field(discriminator="kind")
]
