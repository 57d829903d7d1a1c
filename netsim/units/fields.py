"""Fields of configurations that are given as text with a unit."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from netsim.units import MOST_LATENCY_PS, MOST_TIME_PS, format_rate_bps, format_time_ps, read_rate_bps, read_time_ps

Rate = Annotated[
    int,
    BeforeValidator(read_rate_bps),
    PlainSerializer(format_rate_bps, when_used="json"),
    Field(json_schema_extra={"format": "rate"}),
]
"""Bit/s."""
Time = Annotated[
    int,
    BeforeValidator(read_time_ps),
    Field(le=MOST_TIME_PS, json_schema_extra={"format": "time"}),
    PlainSerializer(format_time_ps, when_used="json"),
]
"""Picoseconds."""
Latency = Annotated[Time, Field(le=MOST_LATENCY_PS)]
"""Picoseconds over a link."""
