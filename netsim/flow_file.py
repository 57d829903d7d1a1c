"""Flows and their completion times as CSV."""

from __future__ import annotations

import csv
import graphlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from netsim.backend import FlowTimes
from netsim.errors import InputError
from netsim.flow import NO_FLOW, FlowGraph
from netsim.units import PS_PER_NS, parse_time_ps

REQUIRED_FIELDS: Final = ("flow_id", "src", "dst", "bytes", "deps")
OPTIONAL_FIELDS: Final = ("start_ns", "delay_ns", "flow_label", "max_rate_bps", "after")
RESULT_FIELDS: Final = ("flow_id", "src", "dst", "bytes", "start_ps", "end_ps", "fct_ps", "status")
_MAX_INT64: Final = 2**63 - 1
_MAX_UINT32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class NamedFlows:
    """A flow graph and the names of its flows."""

    flow_ids: tuple[str, ...]
    graph: FlowGraph


@dataclass(frozen=True, slots=True)
class _Row:
    flow_id: str
    src: int
    dst: int
    size_bytes: int
    start_ps: int
    delay_ps: int
    flow_label: int | None
    max_rate_bps: int
    after: str
    deps: tuple[str, ...]
    where: str


def read_flows(path: Path, nodes: int) -> NamedFlows:
    """Reads ``flow_id,src,dst,bytes,deps`` and, where given, ``start_ns``, ``delay_ns``, ``flow_label``,
    ``max_rate_bps`` and ``after``.

    ``src`` and ``dst`` are below ``nodes``, the nodes of the topology. ``deps`` are flow ids joined by ``;``. A flow
    starts ``delay_ns`` after ``start_ns`` or the arrival of the last of them, whichever is later; both are 0 where not
    given, and may have fractions, whole in ps. Without ``flow_label``, the k-th flow of a (src, dst) pair gets label k,
    as if each had a queue pair of its own. A flow gets no more than ``max_rate_bps``, where that is given and not 0,
    and does not start before the last byte of flow ``after`` has left, where one is named. Further columns are ignored.

    Raises:
        InputError: naming the file, the line, the field, what was found and what was expected.
    """
    rows = _read_rows(path, nodes)
    index: dict[str, int] = {}
    for row in rows:
        if row.flow_id in index:
            raise InputError(f"{row.where} flow_id: found {row.flow_id!r} again, expected a unique one")
        index[row.flow_id] = len(index)
    for row in rows:
        if row.after and row.after not in index:
            raise InputError(f"{row.where} after: found {row.after!r}, expected the flow_id of a row of this file")
        for dep in row.deps:
            if dep not in index:
                raise InputError(f"{row.where} deps: found {dep!r}, expected the flow_id of a row of this file")
    try:
        waits = {row.flow_id: [*row.deps, row.after] if row.after else row.deps for row in rows}
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as error:
        raise InputError(f"{path} deps: found the cycle {' -> '.join(error.args[1])}, expected none") from None
    return NamedFlows(tuple(index), _graph(rows, index))


def unfinished(flows: NamedFlows, times: FlowTimes) -> list[str]:
    """Ids of flows without an end; those that started come first, as the others only wait for them."""
    late = [i for i, end in enumerate(times.end_ps.tolist()) if end < 0]
    return [flows.flow_ids[i] for i in sorted(late, key=lambda i: int(times.start_ps[i]) < 0)]


def format_results(flows: NamedFlows, times: FlowTimes) -> str:
    """``flow_id,src,dst,bytes,start_ps,end_ps,fct_ps,status`` in the order of the flows; empty where not applicable."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(RESULT_FIELDS)
    graph = flows.graph
    columns = (graph.src, graph.dst, graph.size_bytes, times.start_ps, times.end_ps)
    for flow_id, src, dst, size, start, end in zip(flows.flow_ids, *(c.tolist() for c in columns), strict=True):
        if end >= 0:
            writer.writerow((flow_id, src, dst, size, start, end, end - start, "completed"))
        else:
            writer.writerow((flow_id, src, dst, size, start if start >= 0 else "", "", "", "unfinished"))
    return text.getvalue()


def _graph(rows: Sequence[_Row], index: Mapping[str, int]) -> FlowGraph:
    seen: Counter[tuple[int, int]] = Counter()
    labels = []
    for row in rows:
        labels.append(seen[row.src, row.dst] if row.flow_label is None else row.flow_label)
        seen[row.src, row.dst] += 1
    return FlowGraph.from_lists(
        [row.src for row in rows],
        [row.dst for row in rows],
        [row.size_bytes for row in rows],
        deps=[[index[dep] for dep in row.deps] for row in rows],
        ready_ps=[row.start_ps for row in rows],
        delay_ps=[row.delay_ps for row in rows],
        flow_label=np.array(labels, dtype=np.uint32),
        max_rate_bps=[row.max_rate_bps for row in rows],
        after=[index[row.after] if row.after else NO_FLOW for row in rows],
    )


def _read_rows(path: Path, nodes: int) -> list[_Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            columns = _columns(next(reader, []), f"{path} line 1")
            return [
                _row(columns, fields, f"{path} line {reader.line_num}", nodes)
                for fields in reader
                if any(field.strip() for field in fields)
            ]
    except FileNotFoundError:
        raise InputError(f"{path}: found no such file, expected flows") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: expected a readable CSV file, found: {error}") from error


def _columns(header: Sequence[str], where: str) -> dict[str, int]:
    columns = {name.strip(): column for column, name in enumerate(header)}
    if len(columns) != len(header) or not columns.keys() >= set(REQUIRED_FIELDS):
        raise InputError(
            f"{where} header: found {','.join(header)!r}, expected {','.join(REQUIRED_FIELDS)}, each once, and perhaps "
            f"{', '.join(OPTIONAL_FIELDS)}"
        )
    return columns


def _row(columns: Mapping[str, int], fields: Sequence[str], where: str, nodes: int) -> _Row:
    if len(fields) != len(columns):
        raise InputError(f"{where}: found {len(fields)} fields, expected {len(columns)}")
    text = {name: fields[column].strip() for name, column in columns.items()}
    if not text["flow_id"] or ";" in text["flow_id"]:
        raise InputError(f"{where} flow_id: found {text['flow_id']!r}, expected a text without ;")
    return _Row(
        flow_id=text["flow_id"],
        src=_integer(text["src"], f"{where} src", "a node", nodes - 1),
        dst=_integer(text["dst"], f"{where} dst", "a node", nodes - 1),
        size_bytes=_integer(text["bytes"], f"{where} bytes", "whole bytes", _MAX_INT64),
        start_ps=_time_ps(text.get("start_ns", "0"), f"{where} start_ns"),
        delay_ps=_time_ps(text.get("delay_ns", "0"), f"{where} delay_ns"),
        flow_label=(
            _integer(text["flow_label"], f"{where} flow_label", "a label", _MAX_UINT32)
            if "flow_label" in text
            else None
        ),
        max_rate_bps=_integer(text.get("max_rate_bps", "0"), f"{where} max_rate_bps", "whole bit/s", _MAX_INT64),
        after=text.get("after", ""),
        deps=tuple(dict.fromkeys(dep.strip() for dep in text["deps"].split(";") if dep.strip())),
        where=where,
    )


def _integer(text: str, where: str, what: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > most:
        raise InputError(f"{where}: found {text!r}, expected {what}, 0 to {most}")
    return int(text)


def _time_ps(text: str, where: str) -> int:
    try:
        time_ps = parse_time_ps(f"{text}ns")
    except InputError:
        time_ps = _MAX_INT64 + 1
    if time_ps > _MAX_INT64:
        raise InputError(f"{where}: found {text!r}, expected nanoseconds, whole in ps, 0 to {_MAX_INT64 // PS_PER_NS}")
    return time_ps
