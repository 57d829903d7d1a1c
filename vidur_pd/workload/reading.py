"""Reading traces: one pass over the file, every value checked."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

import numpy as np

from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.json_text import json_decoder, parse_json
from boundary.quoting import quoted
from boundary.text_files import GZIP_MAGIC, check_readable, unreadable
from vidur_pd.config.workload import TimeUnit, TraceColumn, TraceFormat
from vidur_pd.workload.bench_results import bench_rows
from vidur_pd.workload.checking import RowChecker
from vidur_pd.workload.formats import LAYOUTS, Layout, detect_format, own_layout
from vidur_pd.workload.labels import LabelCollector
from vidur_pd.workload.turns import TurnCollector
from vidur_pd.workload.workload import MAX_ARRIVAL_S, PS_PER_S, BlockHashes, Workload


@dataclass(frozen=True, slots=True)
class TraceSelection:
    """Which rows of a trace to take."""

    window_ps: tuple[int, int | None] | None = None
    """[start, end) after the first arrival of the trace; rows outside are left out, the start becomes zero."""
    limit: int | None = None
    """Stops after this many requests; what follows is not read."""
    skip_zero_output: bool = False
    """Leaves out rows without output instead of refusing them."""
    hash_block_tokens: int | None = None
    """Tokens per hash id, where they differ from what the format says."""
    columns: Mapping[TraceColumn, str] | None = None
    """Columns of a CSV file of one's own, by their names in format ``csv``."""
    time_unit: TimeUnit = "s"
    """Of its arrivals."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What was read. A trace of lengths only has no arrival times yet: they are all zero."""

    workload: Workload
    format: TraceFormat
    has_arrivals: bool


WHOLE_TRACE = TraceSelection()


def read_trace(
    path: Path, trace_format: Literal["auto"] | TraceFormat = "auto", selection: TraceSelection = WHOLE_TRACE
) -> Trace:
    """Reads a trace, plain or gzip-compressed.

    Times of formats that state a date are shifted so that the trace begins at zero; other formats keep theirs.
    Requests without an id of their own are numbered by their row, from 0.

    Raises:
        InputError: naming file, line, field, what was found and what was expected.
    """
    try:
        with _open_text(path) as file:
            first_line = file.readline()
            if not first_line.strip():
                raise InputError(f"{path}: line 1: found nothing, expected a header or a JSON object")
            name, layout = _layout(path, first_line, trace_format, selection)
            file.seek(0)
            if name == "bench":
                bench = bench_rows(file.read(), path)
                layout = layout if bench and bench[0].arrival is not None else replace(layout, arrival=None)
                rows: Iterable[_Row] = (_Row(1, *row) for row in bench)
            else:
                own = selection.columns or {}
                rows = (_json_rows if layout.is_json else _csv_rows)(file, path, layout, own)
            checker = RowChecker(path, layout, selection.columns or {})
            workload = _collect(rows, checker, selection)
    except UnicodeDecodeError:
        raise InputError(f"{path}: found bytes that are not UTF-8, expected a request trace") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InputError(f"{path}: found a damaged gzip file, expected a request trace") from None
    except OSError as error:
        raise unreadable(path, "a request trace", error) from None
    return Trace(workload, name, layout.arrival is not None)


def _layout(
    path: Path, first_line: str, trace_format: Literal["auto"] | TraceFormat, selection: TraceSelection
) -> tuple[TraceFormat, Layout]:
    if selection.columns is not None:
        return "csv", own_layout(selection.time_unit, first_line)
    name = detect_format(path, first_line) if trace_format == "auto" else trace_format
    return name, LAYOUTS[name]


def _open_text(path: Path) -> IO[str]:
    check_readable(path, "a request trace")
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == GZIP_MAGIC
    if is_gzip:
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


class _Row(NamedTuple):
    """Raw values of one request."""

    line: int
    arrival: object
    prefill: object
    decode: object
    request_id: object = None
    """``None`` where the row does not say, as all below."""
    hash_ids: object = None
    block_tokens: object = None
    hashed_tokens: object = None
    session: object = None
    parent: object = None
    turn: object = None
    class_name: object = None
    priority: object = None
    asked: object = None


def _csv_rows(
    file: Iterable[str], path: Path, layout: Layout, own_columns: Mapping[TraceColumn, str]
) -> Iterator[_Row]:
    rows = csv_rows(file, f"{path}:")
    _, header = next(rows)
    header = _renamed(header, own_columns, path)
    named = (layout.arrival, layout.prefill, layout.decode)
    columns = column_places(header, f"{path}: line 1", [column for column in named if column is not None])
    optional = (
        ("request_id", "hash_ids", "hash_block_tokens", "hashed_tokens", layout.session, layout.parent, "turn")
        if layout.hash_block_tokens
        else (None,) * 7
    ) + (("class", "priority", "max_output_tokens") if layout.has_classes else (None,) * 3)
    # One more, empty, column stands for those that the file does not have.
    pick = itemgetter(*(columns.get(name or "", len(header)) for name in (*named, *optional)))
    for line, cells in rows:
        if len(cells) != len(header):
            check_width(cells, header, f"{path}: line {line}")
        yield _Row(line, *pick((*cells, None)))


def _renamed(header: list[str], own_columns: Mapping[TraceColumn, str], path: Path) -> list[str]:
    """The header with the names of the format; columns of the same name that stand for nothing lose it."""
    names = [name.strip() for name in header]
    _check_own(own_columns, names, "column", path)
    ours_of = {theirs: ours for ours, theirs in own_columns.items()}
    return [ours_of.get(name, "" if name in own_columns else name) for name in names] if own_columns else header


def _check_own(own: Mapping[TraceColumn, str], found: Sequence[str], what: str, path: Path) -> None:
    """Whether the first line of a file has all names that stand for ours. Raises: InputError."""
    for ours, theirs in own.items():
        if theirs not in found:
            raise InputError(
                f"{path}: line 1: found no {what} {quoted(theirs)}, expected it for columns.{ours}, "
                f"or one of {', '.join(map(quoted, found))}"
            )


def _json_rows(file: Iterable[str], path: Path, layout: Layout, own_keys: Mapping[TraceColumn, str]) -> Iterator[_Row]:
    decoder = json_decoder(parse_float=Decimal)
    theirs: dict[str | None, str | None] = dict(own_keys.items())
    needed = [theirs.get(key, key) for key in (layout.arrival, layout.prefill, layout.decode)]
    optional = ("request_id", "hash_ids", "hash_block_tokens", "hashed_tokens", layout.session, layout.parent, "turn")
    of_classes = ("class", "priority", "max_output_tokens") if layout.has_classes else ()
    keys = [*needed, *(theirs.get(key, key) for key in (*optional, *of_classes))]
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        record = parse_json(text, f"{path}: line {line}", "one JSON object", decoder)
        if not isinstance(record, dict):
            raise InputError(f"{path}: line {line}: found {quoted(record)}, expected one JSON object")
        if line == 1:
            _check_own(own_keys, list(record), "key", path)
        for key in needed:
            if key not in record:
                raise InputError(f"{path}: line {line}: {key}: found no such key, expected a value")
        yield _Row(line, *map(record.get, keys))


def _timed(
    rows: Iterable[_Row], checker: RowChecker, window_ps: tuple[int, int | None] | None
) -> Iterator[tuple[str, int, _Row]]:
    """(row number, arrival in ps, row) of the rows in the window; zero arrivals where the format has none."""
    layout = checker.layout
    start_ps, end_ps = window_ps or (0, None)
    first_ps = origin_ps = last_ps = 0
    for number, row in enumerate(rows):
        if layout.arrival is None:
            yield str(number), 0, row
            continue
        arrived_ps = checker.time_ps(row.line, row.arrival)
        if number == 0:
            first_ps = last_ps = arrived_ps
            origin_ps = first_ps + start_ps if layout.is_absolute or window_ps is not None else 0
        if arrived_ps < last_ps:
            expected = "a time no earlier than in the row before (sort the file by arrival)"
            checker.refuse(row.line, layout.arrival, row.arrival, expected)
        last_ps = arrived_ps
        if end_ps is not None and arrived_ps - first_ps >= end_ps:
            return
        if arrived_ps - origin_ps > MAX_ARRIVAL_S * PS_PER_S:
            checker.refuse(row.line, layout.arrival, row.arrival, f"at most {MAX_ARRIVAL_S} s after the start")
        if arrived_ps >= origin_ps:
            yield str(number), arrived_ps - origin_ps, row


def _collect(rows: Iterable[_Row], checker: RowChecker, selection: TraceSelection) -> Workload:
    layout = checker.layout
    may_skip = selection.skip_zero_output or layout.has_failed_calls
    request_ids: list[str] = []
    arrived: list[int] = []
    prefill: list[int] = []
    decode: list[int] = []
    blocks = _Blocks(checker, selection.hash_block_tokens or layout.hash_block_tokens)
    turns = TurnCollector(checker)
    labels = LabelCollector(checker)
    skipped_rows = 0
    for number, arrived_ps, row in _timed(rows, checker, selection.window_ps):
        output = checker.tokens(row.line, layout.decode, row.decode, least=0)
        if output == 0 and may_skip:
            skipped_rows += 1
            continue
        if output == 0:
            checker.refuse(row.line, layout.decode, 0, "at least 1 (or skip_zero_output: true)")
        prompt = checker.tokens(row.line, layout.prefill, row.prefill)
        request_ids.append(number if row.request_id is None else checker.name(row.line, "request_id", row.request_id))
        arrived.append(arrived_ps)
        prefill.append(prompt)
        decode.append(output)
        blocks.append(row, prompt, output)
        labels.append(row.line, output, row.class_name, row.priority, row.asked)
        turns.append(row.line, row.session, row.parent, row.turn)
        if len(arrived) == selection.limit:
            break
    if not arrived:
        where = "" if selection.window_ps is None else " in the window"
        raise InputError(f"{checker.path}: found no request{where}, expected at least 1")
    try:
        return Workload(
            tuple(request_ids),
            np.array(arrived, dtype=np.int64),
            np.array(prefill, dtype=np.int64),
            np.array(decode, dtype=np.int64),
            blocks.hashes(),
            turns.sessions(),
            classes=labels.classes(),
            priority=labels.priority(),
            max_output_tokens=labels.max_output_tokens(),
            name=checker.path.name,
            source=f"trace {checker.path.name}",
            skipped_rows=skipped_rows,
        )
    except InputError as error:  # what only the whole shows: an id that occurs twice
        raise InputError(f"{checker.path}: {str(error).removeprefix(checker.path.name + ': ')}") from None


class _Blocks:
    """Collects the hash ids of a trace: every row has them, or none."""

    def __init__(self, checker: RowChecker, block_tokens: int | None) -> None:
        self._checker = checker
        self._block_tokens = block_tokens
        self._offsets = [0]
        self._ids: list[int] = []
        self._hashed: list[int] = []
        self._are_longer = False

    def append(self, row: _Row, prefill_tokens: int, output_tokens: int) -> None:
        is_first = len(self._offsets) == 1
        has_ids = row.hash_ids is not None
        if not is_first and has_ids != bool(self._ids):
            self._checker.refuse(row.line, "hash_ids", row.hash_ids, "ids in every row, or in none")
        if has_ids and self._block_tokens is not None:
            if row.block_tokens is not None:
                self._take_size(row, is_first)
            hashed = prefill_tokens
            if row.hashed_tokens is not None:
                most = prefill_tokens + output_tokens
                hashed = self._checker.tokens(row.line, "hashed_tokens", row.hashed_tokens, prefill_tokens, most)
            self._are_longer |= hashed > prefill_tokens
            self._hashed.append(hashed)
            self._ids.extend(self._checker.hash_ids(row.line, row.hash_ids, hashed, self._block_tokens))
        self._offsets.append(len(self._ids))

    def _take_size(self, row: _Row, is_first: bool) -> None:
        size = self._checker.tokens(row.line, "hash_block_tokens", row.block_tokens)
        if is_first:
            self._block_tokens = size
        elif size != self._block_tokens:
            self._checker.refuse(row.line, "hash_block_tokens", size, f"{self._block_tokens} (as in the first row)")

    def hashes(self) -> BlockHashes | None:
        if not self._ids or self._block_tokens is None:
            return None
        return BlockHashes(
            np.array(self._offsets, dtype=np.int64),
            np.array(self._ids, dtype=np.int64),
            self._block_tokens,
            np.array(self._hashed, dtype=np.int64) if self._are_longer else None,
        )
