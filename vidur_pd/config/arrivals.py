"""What a configuration may say about when requests arrive."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from boundary.fields import Count, NonNegativeFloat, PositiveFloat, PositiveSeconds, Rate, Seconds, Section
from vidur_pd.config.rates import RateCurve


class ConstantTime(Section):
    """Always the same time."""

    kind: Literal["constant"]
    s: Seconds


class ExponentialTime(Section):
    """An exponential time."""

    kind: Literal["exponential"]
    mean_s: Seconds


class LogNormalTime(Section):
    """A log-normal time."""

    kind: Literal["lognormal"]
    mean_s: PositiveSeconds
    cv: Annotated[NonNegativeFloat, Field(le=100)]
    """Standard deviation over mean."""


ThinkTime = Annotated[ConstantTime | ExponentialTime | LogNormalTime, Field(discriminator="kind")]
"""From the end of an answer until its reader sends what comes next."""


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


class VaryingArrivals(Section):
    """Gamma gaps, Poisson with ``cv`` 1, in a time that passes as the rate says: as many come as it adds up to."""

    kind: Literal["varying"]
    rate: RateCurve
    cv: Annotated[PositiveFloat, Field(ge=1e-3, le=1e3)] = 1.0
    """As of ``gamma``, where the rate is constant."""


class ClosedArrivals(Section):
    """Clients that each send a request, wait for its end, think, and send the next; all begin at time zero.

    With ``sessions`` a client has one session after another instead.
    """

    kind: Literal["closed"]
    clients: Annotated[Count, Field(le=1_000_000)]
    """The most requests, or sessions, that are open at a time: the concurrency."""
    think_time: ThinkTime = ConstantTime(kind="constant", s=0)
    """From the end of what a client had until it sends what is next."""
    duration_s: PositiveSeconds | None = None
    """Nothing is sent from here on; what was is served. ``None``: until all requests have been sent."""


Arrivals = Annotated[
    PoissonArrivals
    | GammaArrivals
    | ConstantArrivals
    | StaticArrivals
    | RampArrivals
    | VaryingArrivals
    | ClosedArrivals,
    Field(discriminator="kind"),
]
