"""Options that name the columns of a trace of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from vidur_pd.config.workload import TimeUnit, TraceColumn, TraceFormat
    from vidur_pd.workload.reading import Trace

Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="Of CSV or JSON lines of one's own: arrived_at_s=TS, prefill_tokens=IN, … (repeatable)."
    ),
]
TimeUnitOption = Annotated[
    str, typer.Option("--time-unit", help="Of arrived_at_s, with --column: s, ms, us or date_time.")
]


def named_columns(pairs: list[str]) -> dict[TraceColumn, str]:
    """Columns by the names of format ``csv``. Raises: InputError, for what is no pair, or no such name."""
    from typing import get_args

    from boundary.errors import InputError
    from boundary.quoting import quoted
    from vidur_pd.config.workload import TraceColumn

    found: dict[TraceColumn, str] = {}
    for each in pairs:
        name, equals, column = each.partition("=")
        known = next((known for known in get_args(TraceColumn) if known == name), None)
        if not (known and equals and column):
            expected = ", ".join(get_args(TraceColumn))
            raise InputError(f"--column: found {quoted(each)}, expected NAME=COLUMN with NAME one of {expected}")
        found[known] = column
    return found


def known_unit(found: str, columns: Mapping[TraceColumn, str]) -> TimeUnit:
    """Raises: InputError, for what is no unit of time, or one without columns."""
    from typing import get_args

    from boundary.errors import InputError
    from boundary.quoting import quoted
    from vidur_pd.config.workload import TimeUnit

    known: TimeUnit | None = next((known for known in get_args(TimeUnit) if known == found), None)
    if known is None:
        raise InputError(f"--time-unit: found {quoted(found)}, expected one of {', '.join(get_args(TimeUnit))}")
    if known != "s" and not columns:
        raise InputError(f"--time-unit: found {found} without --column, expected both")
    return known


def read_own(
    trace: Path,
    columns: Mapping[TraceColumn, str],
    unit: TimeUnit,
    trace_format: Literal["auto"] | TraceFormat = "auto",
) -> Trace:
    """A trace, with columns of one's own if there are any. Raises: InputError, naming file, line and field, where it
    is no trace."""
    from vidur_pd.workload.reading import TraceSelection, read_trace

    return read_trace(trace, trace_format, selection=TraceSelection(columns=columns or None, time_unit=unit))
