"""What a configuration may say about an arrival rate that varies with time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from boundary.fields import NotBool, PositiveSeconds, Rate, Section

RateOrNone = Annotated[float, NotBool, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Requests per second; zero: nobody comes."""
Step = tuple[PositiveSeconds, RateOrNone]


class RampRate(Section):
    """From one rate to another in a time; the latter stays."""

    kind: Literal["linear", "exponential"]
    from_qps: Rate
    to_qps: Rate
    duration_s: PositiveSeconds


class StepsRate(Section):
    """Constant for a time each; then the last one stays, or all begin again."""

    kind: Literal["steps"]
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=100_000)]
    """(seconds, requests/s)"""
    repeats: bool = False

    @model_validator(mode="after")
    def _goes_on(self) -> StepsRate:
        rates = [rate for _, rate in self.steps]
        if (self.repeats and not any(rates)) or (not self.repeats and not rates[-1]):
            raise ValueError("steps: found a rate of 0 that stays, expected one at which the other requests come")
        return self


class FileRate(Section):
    """A column of rates, each for the same time: a day's curve."""

    kind: Literal["file"]
    path: Path
    """CSV with a header, relative to the configuration file."""
    column: Annotated[str, Field(min_length=1)]
    interval_s: PositiveSeconds
    repeats: bool = True


RateCurve = Annotated[RampRate | StepsRate | FileRate, Field(discriminator="kind")]
