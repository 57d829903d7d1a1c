"""Trace formats: how each names its fields, in what unit it states time, and how it is recognised.

| format | columns or keys | time | prompt blocks |
|---|---|---|---|
| ``csv`` | ``arrived_at_s``, ``prefill_tokens``, ``decode_tokens`` | s | 512 tokens, or as stated |
| ``vidur`` | ``arrived_at``, ``num_prefill_tokens``, ``num_decode_tokens`` | s | – |
| ``vidur_lengths`` | ``num_prefill_tokens``, ``num_decode_tokens`` | none | – |
| ``azure`` | ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens`` | date and time | – |
| ``burstgpt`` | ``Timestamp``, ``Request tokens``, ``Response tokens`` | s | – |
| ``mooncake`` | JSON lines: ``timestamp``, ``input_length``, ``output_length`` | ms | 512 tokens |
| ``qwen_bailian`` | JSON lines: as Mooncake, with ``chat_id`` | s | 16 tokens |
| ``bench`` | one JSON object with lists: ``start_times``, ``input_lens``, ``output_lens`` | s, or none | – |

``csv`` is this project's own format; the per-request output of a simulation has its columns and can be replayed. It and
JSON lines may also hold ``request_id``, ``hash_ids`` (one per block of the prompt; joined by ``;`` in CSV) and
``hash_block_tokens`` (equal in all rows); ``hashed_tokens`` where the ids go on into the answer; ``session`` and
``turn``, or ``chat_id``, ``parent_chat_id`` and ``turn`` of ``qwen_bailian``; ``class``, ``priority`` and
``max_output_tokens`` (not of ``qwen_bailian``). Other columns and keys are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import get_args

from boundary.csv_text import csv_rows
from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.quoting import quoted
from vidur_pd.config.workload import TimeUnit, TraceFormat

MOONCAKE_BLOCK_TOKENS = 512
"""Tokens per hash id of the Mooncake traces (kvcache-ai/Mooncake, FAST'25 release, README of the traces)."""
BAILIAN_BLOCK_TOKENS = 16
"""Tokens per hash id of the Qwen-Bailian traces (alibaba-edu/qwen-bailian-usagetraces-anon, README)."""

_DATE_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:\d\d)?")
_MOST_CHARACTERS = 100
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seconds_to_ps(value: str | int | Decimal) -> int:
    """Exact picoseconds of a decimal number of seconds, rounded to the nearest. Raises ``ValueError``."""
    return _scaled(value, 10**12)


def milliseconds_to_ps(value: str | int | Decimal) -> int:
    """Exact picoseconds of a decimal number of milliseconds, rounded to the nearest. Raises ``ValueError``."""
    return _scaled(value, 10**9)


def microseconds_to_ps(value: str | int | Decimal) -> int:
    """Exact picoseconds of a decimal number of microseconds, rounded to the nearest. Raises ``ValueError``."""
    return _scaled(value, 10**6)


def date_time_to_ps(value: str | int | Decimal) -> int:
    """Picoseconds since 1970 of ``YYYY-MM-DD hh:mm:ss[.fraction][zone]``, to the last digit. Raises ``ValueError``."""
    match = _DATE_TIME.fullmatch(str(value).strip()) if isinstance(value, str) and value.isascii() else None
    if match is None:
        raise ValueError
    date, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone in (None, "Z") else zone
    since = datetime.fromisoformat(f"{date}T{clock}{offset}") - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**12 + int((fraction or "").ljust(12, "0"))


def _scaled(value: str | int | Decimal, factor: int) -> int:
    if type(value) is int and -(10**15) <= value <= 10**15:
        return value * factor
    if isinstance(value, str) and not (value.isascii() and len(value) <= _MOST_CHARACTERS and "_" not in value):
        raise ValueError
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError from None
    if not number.is_finite() or number.copy_abs() > 10**15:  # abs() rounds, and overflows at 1e999999999
        raise ValueError
    return int((number * factor).to_integral_value())


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of one format."""

    arrival: str | None
    """Field of the arrival time; ``None`` where a trace has lengths only."""
    prefill: str
    decode: str
    time_to_ps: Callable[[str | int | Decimal], int] = seconds_to_ps
    time_text: str = "a number of seconds"
    """What a valid time looks like, for messages."""
    is_absolute: bool = False
    """Times count from a date: the first arrival becomes zero."""
    is_json: bool = False
    hash_block_tokens: int | None = None
    """Tokens per hash id; ``None`` where a format has no ids."""
    session: str | None = None
    """Field of the conversation that a row is a turn of, or of the row's own name where there is a ``parent``."""
    parent: str | None = None
    """Field of the name of the turn before."""
    has_classes: bool = False
    """Rows may say ``class``, ``priority`` and ``max_output_tokens``."""
    has_failed_calls: bool = False
    """Rows without output are failed calls: they are left out and counted."""


LAYOUTS: dict[TraceFormat, Layout] = {
    "csv": Layout(
        "arrived_at_s",
        "prefill_tokens",
        "decode_tokens",
        hash_block_tokens=MOONCAKE_BLOCK_TOKENS,
        session="session",
        has_classes=True,
    ),
    "vidur": Layout("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    "vidur_lengths": Layout(None, "num_prefill_tokens", "num_decode_tokens"),
    "azure": Layout(
        "TIMESTAMP",
        "ContextTokens",
        "GeneratedTokens",
        time_to_ps=date_time_to_ps,
        time_text="YYYY-MM-DD hh:mm:ss.fraction",
        is_absolute=True,
    ),
    "burstgpt": Layout("Timestamp", "Request tokens", "Response tokens", has_failed_calls=True),
    "mooncake": Layout(
        "timestamp",
        "input_length",
        "output_length",
        time_to_ps=milliseconds_to_ps,
        time_text="a number of milliseconds",
        is_json=True,
        hash_block_tokens=MOONCAKE_BLOCK_TOKENS,
        session="session",
        has_classes=True,
    ),
    "qwen_bailian": Layout(
        "timestamp",
        "input_length",
        "output_length",
        is_json=True,
        hash_block_tokens=BAILIAN_BLOCK_TOKENS,
        session="chat_id",
        parent="parent_chat_id",
    ),
    "bench": Layout("start_times", "input_lens", "output_lens", is_absolute=True, is_json=True, has_failed_calls=True),
}
assert set(LAYOUTS) == set(get_args(TraceFormat))
TIMES: dict[TimeUnit, tuple[Callable[[str | int | Decimal], int], str]] = {
    "s": (seconds_to_ps, "a number of seconds"),
    "ms": (milliseconds_to_ps, "a number of milliseconds"),
    "us": (microseconds_to_ps, "a number of microseconds"),
    "date_time": (date_time_to_ps, "YYYY-MM-DD hh:mm:ss.fraction"),
}
"""How a time is read, and what a valid one looks like, by its unit."""


def own_layout(unit: TimeUnit, first_line: str) -> Layout:
    """Of CSV columns, or keys of JSON lines, that have names of their own: it begins at zero."""
    time_to_ps, text = TIMES[unit]
    is_json = first_line.lstrip().startswith("{")
    return replace(LAYOUTS["csv"], time_to_ps=time_to_ps, time_text=text, is_absolute=True, is_json=is_json)


def csv_columns(header: str) -> list[str]:
    """Names of the columns, plain or quoted; none where the line is not CSV."""
    try:
        return [column.strip() for _, cells in csv_rows([header], "header") for column in cells]
    except InputError:
        return []


def _columns(layout: Layout) -> list[str]:
    return [field for field in (layout.arrival, layout.prefill, layout.decode) if field]


def detect_format(path: object, first_line: str) -> TraceFormat:
    """The format of a file whose first line this is.

    Raises:
        InputError: no format has these columns or keys.
    """
    line = first_line.strip()
    if line.startswith("{"):
        found = set(parse_json(line, f"{path}: line 1", "one JSON object per line"))
        if "input_lens" in found:  # benchmarks may leave out when requests were sent
            return "bench"
        candidates: Iterable[TraceFormat] = ("qwen_bailian",) if "chat_id" in found else ("mooncake",)
    else:
        found = set(csv_columns(line))
        candidates = [name for name, layout in LAYOUTS.items() if not layout.is_json]
    lacking = {name: [field for field in _columns(LAYOUTS[name]) if field not in found] for name in candidates}
    nearest = min(lacking, key=lambda name: len(lacking[name]))
    if not lacking[nearest]:
        return nearest
    if len(lacking[nearest]) < len(_columns(LAYOUTS[nearest])):
        missing = " and ".join(lacking[nearest])
        raise InputError(
            f"{path}: line 1: found {quoted(line)}, expected {missing}, too (format {nearest}), or workload.columns "
            "(--column)"
        )
    known = "; ".join(f"{name}: {', '.join(_columns(layout))}" for name, layout in LAYOUTS.items())
    raise InputError(
        f"{path}: line 1: found {quoted(line)}, expected the columns or keys of a known format ({known}), "
        "or workload.columns (--column)"
    )
