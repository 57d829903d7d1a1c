"""Flows and their completion times as CSV."""

from __future__ import annotations

import csv
import graphlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.numbers import MOST_INT64, whole_number
from boundary.quoting import quoted
from boundary.text_files import read_text
from netsim.backends.contract import FlowTimes
from netsim.flow import DEFAULT_PRIORITY, NO_FLOW, FlowGraph
from netsim.formats.flow_fields import labels_by_pair, time_ps
from netsim.formats.hpcc_flow_file import read_hpcc_flows

REQUIRED_FIELDS: Final = ("flow_id", "src", "dst", "bytes", "deps")
OPTIONAL_FIELDS: Final = ("start_ns", "delay_ns", "flow_label", "max_rate_bps", "after", "credits", "priority")
RESULT_FIELDS: Final = ("flow_id", "src", "dst", "bytes", "start_ps", "end_ps", "fct_ps", "status")
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
    credits: tuple[str, ...]
    priority: int
    where: str


def read_flows(path: Path, nodes: int) -> NamedFlows:
    """Reads a CSV with ``flow_id,src,dst,bytes,deps`` and any of `OPTIONAL_FIELDS`, or HPCC's flow file.

    ``src`` and ``dst`` are below ``nodes``, the nodes of the topology. ``deps`` are flow ids joined by ``;``. A flow
    starts ``delay_ns`` after ``start_ns`` or the arrival of the last of them, whichever is later; both are 0 where not
    given, and may have fractions, whole in ps. Without ``flow_label``, the k-th flow of a (src, dst) pair gets label k,
    as if each had a queue pair of its own. A flow gets no more than ``max_rate_bps``, where that is given and not 0,
    and does not start before the last byte of flow ``after`` has left, where one is named, nor before the receivers of
    the flows ``credits``, joined by ``;``, have said that these have arrived. ``priority`` is its traffic class, 1 to 7
    (`DEFAULT_PRIORITY` where not given). Further columns are ignored. A file whose first line is a number is HPCC's
    (`netsim.formats.hpcc_flow_file`).

    Raises:
        InputError: naming the file, the line, the field, what was found and what was expected.
    """
    text = read_text(path, "flows")
    if text.partition("\n")[0].strip().isdecimal():
        return NamedFlows(*read_hpcc_flows(text, str(path), nodes))
    rows = _read_rows(text, str(path), nodes)
    index = _checked_index(rows, path)
    return NamedFlows(tuple(index), _graph(rows, index))


def _checked_index(rows: Sequence[_Row], path: Path) -> dict[str, int]:
    """Position of each flow id; all that flows wait for exists, and not in a circle."""
    index: dict[str, int] = {}
    for row in rows:
        if row.flow_id in index:
            raise InputError(f"{row.where} flow_id: found {quoted(row.flow_id)} again, expected a unique one")
        index[row.flow_id] = len(index)
    for row in rows:
        in_front = (row.after,) if row.after else ()
        for field, named in (("after", in_front), ("deps", row.deps), ("credits", row.credits)):
            for name in named:
                if name not in index:
                    raise InputError(
                        f"{row.where} {field}: found {quoted(name)}, expected the flow_id of a row of this file"
                    )
    try:
        waits = {row.flow_id: [*row.deps, *row.credits, *((row.after,) if row.after else ())] for row in rows}
        graphlib.TopologicalSorter(waits).prepare()
    except graphlib.CycleError as error:
        raise InputError(f"{path} deps: found the cycle {' -> '.join(error.args[1])}, expected none") from None
    return index


def failed(flows: NamedFlows, times: FlowTimes) -> list[str]:
    """Ids of flows that were given up; those that started come first, as the others only wait for them."""
    return _started_first(flows, times, np.flatnonzero(times.has_failed).tolist())


def unfinished(flows: NamedFlows, times: FlowTimes) -> list[str]:
    """Ids of flows that neither ended nor failed; those that started come first, as the others only wait for them."""
    return _started_first(flows, times, np.flatnonzero((times.end_ps < 0) & ~times.has_failed).tolist())


def _started_first(flows: NamedFlows, times: FlowTimes, late: list[int]) -> list[str]:
    return [flows.flow_ids[i] for i in sorted(late, key=lambda i: int(times.start_ps[i]) < 0)]


def format_results(flows: NamedFlows, times: FlowTimes) -> str:
    """``flow_id,src,dst,bytes,start_ps,end_ps,fct_ps,status`` in the order of the flows; empty where not applicable.

    ``status`` is ``completed``, ``failed: reason`` or ``unfinished``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(RESULT_FIELDS)
    graph = flows.graph
    columns = (graph.src, graph.dst, graph.size_bytes, times.start_ps, times.end_ps, times.has_failed)
    for flow_id, *what, start, end, has_failed in zip(flows.flow_ids, *(c.tolist() for c in columns), strict=True):
        if end >= 0:
            writer.writerow((flow_id, *what, start, end, end - start, "completed"))
        else:
            started = start if start >= 0 else ""
            writer.writerow((flow_id, *what, started, "", "", _reason(start >= 0) if has_failed else "unfinished"))
    return text.getvalue()


def _reason(has_started: bool) -> str:
    return "failed: given up by the network" if has_started else "failed: waits for a failed flow"


def _graph(rows: Sequence[_Row], index: Mapping[str, int]) -> FlowGraph:
    counted = labels_by_pair([(row.src, row.dst) for row in rows])
    labels = [k if row.flow_label is None else row.flow_label for row, k in zip(rows, counted, strict=True)]
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
        credits=[[index[name] for name in row.credits] for row in rows],
        priority=[row.priority for row in rows],
    )


def _read_rows(text: str, source: str, nodes: int) -> list[_Row]:
    rows = csv_rows(io.StringIO(text, newline=""), source)
    line, header = next(rows, (1, []))
    columns = column_places(header, f"{source} line {line} header", REQUIRED_FIELDS)
    found = []
    for line, cells in rows:
        check_width(cells, header, f"{source} line {line}")
        found.append(_row(columns, cells, f"{source} line {line}", nodes))
    return found


def _row(columns: Mapping[str, int], fields: Sequence[str], where: str, nodes: int) -> _Row:
    text = {name: fields[column].strip() for name, column in columns.items()}
    if not text["flow_id"] or ";" in text["flow_id"]:
        raise InputError(f"{where} flow_id: found {quoted(text['flow_id'])}, expected a text without ;")
    return _Row(
        flow_id=text["flow_id"],
        src=whole_number(text["src"], f"{where} src", "a node", 0, nodes - 1),
        dst=whole_number(text["dst"], f"{where} dst", "a node", 0, nodes - 1),
        size_bytes=whole_number(text["bytes"], f"{where} bytes", "whole bytes", 0, MOST_INT64),
        start_ps=time_ps(text.get("start_ns", "0"), f"{where} start_ns", "ns"),
        delay_ps=time_ps(text.get("delay_ns", "0"), f"{where} delay_ns", "ns"),
        flow_label=(
            whole_number(text["flow_label"], f"{where} flow_label", "a label", 0, _MAX_UINT32)
            if "flow_label" in text
            else None
        ),
        max_rate_bps=whole_number(text.get("max_rate_bps", "0"), f"{where} max_rate_bps", "whole bit/s", 0, MOST_INT64),
        after=text.get("after", ""),
        deps=_names(text["deps"]),
        credits=_names(text.get("credits", "")),
        priority=whole_number(text.get("priority") or str(DEFAULT_PRIORITY), f"{where} priority", "a class", 1, 7),
        where=where,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(";") if name.strip()))
