"""Types of configuration fields, bounded so that no core computes with a number outside of what it holds.

Bounds are far from anything in use, and near enough that products and sums of a few quantities stay exact in 64 bits
(picoseconds) or finite in floating point.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MOST_COUNT: Final = 2**31 - 1
MOST_SECONDS: Final = 9e6
"""Simulated time; the clock ends at 2⁶³ ps, 9.2 million seconds."""


def _not_bool(value: Any) -> Any:
    """``true`` is no number, though Python and pydantic count with it."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a number")
    return value


NotBool: Final = BeforeValidator(_not_bool)

Count = Annotated[int, NotBool, Field(ge=1, le=MOST_COUNT)]
Number = Annotated[int, NotBool, Field(ge=0, le=MOST_COUNT)]
"""A count that may be zero, or a place in a list."""
Seed = Annotated[int, NotBool, Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, NotBool, Field(ge=1e-9, le=1e12, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, NotBool, Field(ge=0, le=1e12, allow_inf_nan=False)]
Rate = Annotated[float, NotBool, Field(ge=1e-6, le=1e9, allow_inf_nan=False)]
"""Requests per second: from one in twelve days to one per ns."""
Ratio = Annotated[float, NotBool, Field(ge=1e-9, le=1e9, allow_inf_nan=False)]
"""A factor, or an exponent's like: what scales something else."""
Exponent = Annotated[float, NotBool, Field(ge=0, le=100, allow_inf_nan=False)]
"""Of a power law; at 100 the first rank has everything."""
Seconds = Annotated[float, NotBool, Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, NotBool, Field(ge=1e-9, le=MOST_SECONDS, allow_inf_nan=False)]
Probability = Annotated[float, NotBool, Field(ge=0, le=1)]
Share = Annotated[float, NotBool, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A frozen part of a configuration tree; unknown fields are refused. Built when validated, with its tree."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
