"""Measured times of collectives, as nccl-tests and others write them.

Read are: the text that nccl-tests prints (2.13 and later: ranks from its ``# Rank`` lines, nodes from their host names,
the op from its first line); CSV of aiconfigurator (``op_name`` or ``op``, ``nccl_dtype`` or ``dtype``, ``num_gpus``,
and ``message_size`` in *elements* with ``latency`` in ms, or ``message_bytes`` with ``latency_us``); and CSV of
``scripts/measure_nccl.py`` (``ranks,op,algorithm,protocol,mode,bytes,time_us``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.numbers import real_number, whole_number
from boundary.quoting import quoted
from boundary.text_files import read_text
from simccl.algorithms.registry import name_of
from simccl.collective import MAX_BYTES, MAX_RANKS, Algorithm, Collective, Protocol


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured point."""

    op: Collective
    ranks: int
    nodes: int
    size_bytes: int
    """As nccl-tests counts it, see `Collective`."""
    time_us: float
    algorithm: Algorithm | None = None
    """None where NCCL chose."""
    protocol: Protocol | None = None


_OPS = {
    "alltoall": Collective.ALL_TO_ALL,
    "sendrecv": Collective.SEND_RECV,
    **{op.value: op for op in Collective},
}
_ELEMENT_BYTES = {"int8": 1, "fp8": 1, "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4}
_RANK_LINE = re.compile(r"#\s+Rank\s+(\d+)\s.*?\son\s+(\S+)\s+device", re.IGNORECASE)
_PROGRAM = re.compile(r"\b(\w+?)_perf\b")


def read_measurements(sources: Iterable[Path]) -> tuple[Measurement, ...]:
    """All points of some files, in order.

    Ops that are not modelled, eager calls of ``measure_nccl.py`` (host time is no part of the model) and types other
    than 2-byte floats in CSV files are left out.

    Raises:
        InputError: naming the file and the line.
    """
    found: list[Measurement] = []
    for source in sources:
        text = read_text(source, "output of nccl-tests or a CSV of times")
        is_csv = "," in next((line for line in text.splitlines() if line.strip()), "")
        points = _from_csv(source, text) if is_csv else _from_text(source, text)
        if not points:
            raise InputError(f"{source}: found no measured point, expected output of nccl-tests or a CSV of times")
        found += points
    return tuple(found)


def _from_text(source: Path, text: str) -> list[Measurement]:
    """Rows are: size, count, type, redop, root, then time, algbw, busbw and #wrong out of place and in place."""
    hosts = dict(_RANK_LINE.findall(text))
    op = next((_OPS[name] for name in _PROGRAM.findall(text) if name in _OPS), None)
    if op is None or len(hosts) < 2:
        raise InputError(f"{source}: found no program name or '# Rank' lines, expected the whole output of nccl-tests")
    points = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or not (fields[0].isascii() and fields[0].isdigit()):
            continue
        if len(fields) < 9:
            raise InputError(f"{source} line {number}: found {len(fields)} fields, expected a row of nccl-tests")
        size = whole_number(fields[0], f"{source} line {number} size", "whole bytes", 0, MAX_BYTES)
        time_us = _positive(source, number, "time", fields[5])
        if size:
            points.append(Measurement(op, len(hosts), len(set(hosts.values())), size, time_us))
    return points


def _from_csv(source: Path, text: str) -> list[Measurement]:
    rows = csv_rows(text.splitlines(keepends=True), str(source))
    _, header = next(rows, (1, []))
    column_places(header, f"{source} line 1", [])
    points = []
    for line, cells in rows:
        check_width(cells, header, f"{source} line {line}")
        point = _row(source, line, dict(zip(header, cells, strict=True)), header)
        if point is not None:
            points.append(point)
    return points


def _row(source: Path, line: int, row: Mapping[str, str], header: Sequence[str]) -> Measurement | None:
    """None for a row that is left out."""

    def first(*names: str) -> str:
        for name in names:
            if name in header:
                return row[name].strip()
        raise InputError(f"{source}: found the columns {','.join(header)}, expected a column {' or '.join(names)}")

    op = _OPS.get(first("op", "op_name"))
    kind = row.get("dtype", row.get("nccl_dtype", "half")).strip()
    if op is None or row.get("mode", "graph") == "eager" or _ELEMENT_BYTES.get(kind) != 2:
        return None
    ranks = _count(source, line, "ranks", first("ranks", "num_gpus"))
    if "message_size" in header:
        size = _size(source, line, "message_size", row["message_size"]) * _ELEMENT_BYTES[kind]
    else:
        size = _size(source, line, "bytes", first("bytes", "message_bytes"))
    if "latency" in header:
        time_us = 1e3 * _positive(source, line, "latency", row["latency"])
    else:
        time_us = _positive(source, line, "time_us", first("time_us", "latency_us"))
    nodes = _count(source, line, "nodes", row["nodes"]) if "nodes" in header else 1
    return Measurement(op, ranks, nodes, int(size), time_us, *_forced(source, line, row))


def _forced(source: Path, line: int, row: Mapping[str, str]) -> tuple[Algorithm | None, Protocol | None]:
    algorithm, protocol = row.get("algorithm", "auto"), row.get("protocol", "auto")
    try:
        return (
            None if algorithm == "auto" else name_of(algorithm),
            None if protocol == "auto" else Protocol(protocol),
        )
    except ValueError as error:
        raise InputError(f"{source} line {line}: algorithm, protocol: found {error}, or auto") from None


def _count(source: Path, line: int, field: str, text: str) -> int:
    """A number of ranks or nodes, which some tables write as 8.0."""
    value = real_number(text, f"{source} line {line}: {field}", "a whole number", 1, MAX_RANKS)
    if not value.is_integer():
        raise InputError(f"{source} line {line}: {field}: found {quoted(text)}, expected a whole number")
    return int(value)


def _size(source: Path, line: int, field: str, text: str) -> float:
    return real_number(text, f"{source} line {line}: {field}", "a size", 1, MAX_BYTES // 4)


def _positive(source: Path, line: int, field: str, text: str) -> float:
    return real_number(text, f"{source} line {line}: {field}", "a positive number", 1e-12, MAX_BYTES)
