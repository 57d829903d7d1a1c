"""What a configuration may say about arrival rates: one with its unit, and one that varies with time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from boundary.fields import NotBool, PositiveSeconds, Rate, Section
from boundary.quoting import quoted

_STATED: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*/\s*(s|min|h|d)\s*")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


def _per_second(stated: Any) -> Any:
    """``600/min`` as 10."""
    if not isinstance(stated, str):
        return stated
    if (found := _STATED.fullmatch(stated)) is None:
        raise ValueError(f"found {quoted(stated)}, expected requests per time, as 10/s, 600/min or 36000/h")
    return float(found[1]) / _SECONDS[found[2]]


StatedRate = Annotated[Rate, BeforeValidator(_per_second)]
"""Requests per second, or text with its unit of time."""

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
