"""Tables in and out: times to be looked up, and plans; files appear whole or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.numbers import whole_number
from boundary.output_files import write_atomically
from boundary.quoting import quoted
from boundary.text_files import read_text
from netsim.flow import NO_FLOW
from netsim.units import PS_PER_NS, parse_size_bytes
from simccl.collective import MAX_BYTES, MAX_RANKS, Collective, check_size
from simccl.communicator.gpus import gpu_named
from simccl.formats.busbw import Group
from simccl.formats.pricing import Pricing, Request, requests_of
from simccl.formats.workload import read_workload
from simccl.plan.flows import Operation
from simccl.plan.plan import Plan
from simccl.planning.timing import TimeTable

_TIME_COLUMNS = ("op", "bytes", "ranks", "nodes", "gpu")


def price_table(source: Path, destination: Path, pricing: Pricing) -> int:
    """Adds ``time_us,algorithm,protocol,channels`` to a CSV of ``op,bytes,ranks,nodes,gpu``; returns its rows.

    Sizes may have units. Further columns are kept; one named ``group`` (tp, dp, ep, dp_ep, pp; tp where it is empty)
    picks the section of bus bandwidths.

    Raises:
        InputError: naming the file, the line and the field.
    """
    header, lines = _read(source)
    rows = [_parsed(source, line, dict(zip(header, fields, strict=True))) for line, fields in lines]
    write_atomically(destination, _priced(header, [fields for _, fields in lines], pricing.times(rows)))
    return len(rows)


def price_workload(source: Path, destination: Path, pricing: Pricing, *, gpu: str, gpus_per_node: int) -> int:
    """Prices the collectives of a SimAI workload file, one CSV row each; returns their number.

    Columns: ``layer,pass,group,compute_ns``, those of a time table, and what `price_table` adds.

    Raises:
        InputError: naming the file and the line.
    """
    workload = read_workload(source)
    requests = requests_of(workload, gpu=gpu, gpus_per_node=gpus_per_node)
    header = ["layer", "pass", "group", "compute_ns", *_TIME_COLUMNS]
    rows = [
        [
            *(found.layer, found.during, str(found.group), str(found.compute_ns)),
            *(str(request.op), str(request.size_bytes), str(request.ranks), str(request.nodes), gpu),
        ]
        for found, request in zip(workload.collectives, requests, strict=True)
    ]
    write_atomically(destination, _priced(header, rows, pricing.times(requests)))
    return len(rows)


def write_plan(plan: Plan, destination: Path) -> None:
    """One row per flow; Parquet where the name ends so, else CSV that ``netsim run`` reads, ``deps`` joined by ``;``.

    ``src``, ``dst``, ``bytes``, ``flow_label``, ``start_ps`` and ``delay_ps`` (in CSV also in ns), ``max_rate_bps``,
    ``after`` and ``deps`` are what the flow graph of the plan asks of the network, between GPUs; the other columns are
    what the flow carries, between ranks.

    Raises:
        InputError: a suffix other than .csv and .parquet, or a place that cannot be written.
    """
    check_plan_file(destination)
    flows, graph = plan.flows, plan.graph()
    names = np.array([operation.name.lower() for operation in Operation])
    columns: dict[str, list[object]] = {
        "flow_id": list(range(len(flows))),
        "src": graph.src.tolist(),
        "dst": graph.dst.tolist(),
        "src_rank": flows.src.tolist(),
        "dst_rank": flows.dst.tolist(),
        "payload_bytes": flows.payload_bytes.tolist(),
        "wire_bytes": flows.wire_bytes.tolist(),
        "bytes": graph.size_bytes.tolist(),
        "channel": flows.channel.tolist(),
        "flow_label": graph.flow_label.tolist(),
        "step": flows.step.tolist(),
        "origin": flows.origin.tolist(),
        "offset": flows.offset.tolist(),
        "operation": names[flows.operation].tolist(),
        "start_ps": graph.ready_ps.tolist(),
        "delay_ps": graph.delay_ps.tolist(),
        "max_rate_bps": graph.max_rate_bps.tolist(),
        "after": graph.after.tolist(),
        "deps": [part.tolist() for part in np.split(graph.deps, graph.dep_offsets[1:-1])] if len(flows) else [],
    }
    if destination.suffix == ".parquet":
        _write_parquet(destination, columns)
    else:
        columns["deps"] = [";".join(map(str, deps)) for deps in columns["deps"]]  # type: ignore[call-overload]
        columns["after"] = ["" if flow == NO_FLOW else flow for flow in columns["after"]]
        columns["start_ns"], columns["delay_ns"] = _nanoseconds(graph.ready_ps), _nanoseconds(graph.delay_ps)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        write_atomically(destination, text.getvalue())


def check_plan_file(destination: Path) -> None:
    """Refuses a name whose suffix says no format that `write_plan` writes.

    Raises:
        InputError: naming the suffix.
    """
    if destination.suffix not in (".csv", ".parquet"):
        raise InputError(f"{destination}: found suffix {destination.suffix!r}, expected .csv or .parquet")


def read_size_bytes(text: str) -> int:
    """A size as text: whole bytes, or with a unit as in ``1MiB``; `MAX_BYTES` at most.

    Raises:
        InputError: naming what was found.
    """
    stripped = text.strip()
    try:
        size = int(stripped) if stripped.isascii() and stripped.isdigit() else parse_size_bytes(stripped, "bytes")
    except ValueError:  # int() refuses thousands of digits
        raise InputError(f"bytes: found {quoted(text)}, expected whole bytes, or a size such as 16KiB or 1GB") from None
    check_size(size, MAX_BYTES)
    return size


def _nanoseconds(times_ps: NDArray[np.int64]) -> list[object]:
    """Exact decimals, as ``netsim run`` reads them."""
    whole, rest = (part.tolist() for part in np.divmod(times_ps, PS_PER_NS))
    return [f"{ns}.{ps:03d}" for ns, ps in zip(whole, rest, strict=True)]


def _read(source: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and the (line number, fields) of a CSV with at least the columns of a time table."""
    lines = list(csv_rows(read_text(source, "a table of collectives").splitlines(keepends=True), str(source)))
    if not lines:
        raise InputError(f"{source}: found no line, expected the header {','.join(_TIME_COLUMNS)}")
    header = [name.strip() for name in lines[0][1]]
    column_places(header, f"{source} line 1", _TIME_COLUMNS)
    for line, fields in lines[1:]:
        check_width(fields, header, f"{source} line {line}")
    return header, lines[1:]


def _parsed(source: Path, line: int, row: dict[str, str]) -> Request:
    """One checked row, so that every message can name its line."""
    try:
        Collective.parse(row["op"].strip())
        gpu_named(row["gpu"])
        size, ranks, nodes = read_size_bytes(row["bytes"]), _count("ranks", row["ranks"]), _count("nodes", row["nodes"])
        if ranks % nodes:
            raise InputError(f"nodes: found {nodes}, expected a divisor of the {ranks} ranks")
        group = Group.parse(row.get("group", "").strip() or "tp")
    except InputError as error:
        raise InputError(f"{source} line {line}: {error}") from None
    gpu = row["gpu"].strip()
    return Request(op=row["op"].strip(), size_bytes=size, ranks=ranks, nodes=nodes, gpu=gpu, group=group)


def _count(name: str, text: str) -> int:
    return whole_number(text, name, "a whole number", 1, MAX_RANKS)


def _priced(header: list[str], rows: Sequence[Sequence[str]], table: TimeTable) -> str:
    added = {
        "time_us": [f"{time:.6f}" for time in table.time_us.tolist()],
        "algorithm": table.algorithm.tolist(),
        "protocol": table.protocol.tolist(),
        "channels": table.channels.tolist(),
    }
    kept = [i for i, name in enumerate(header) if name not in added]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(header[i] for i in kept), *added])
    for row, *times in zip(rows, *added.values(), strict=True):
        writer.writerow([*(row[i] for i in kept), *times])
    return text.getvalue()


def _write_parquet(destination: Path, columns: dict[str, list[object]]) -> None:
    import pyarrow
    import pyarrow.parquet

    buffer = pyarrow.BufferOutputStream()
    types = {"operation": pyarrow.string(), "deps": pyarrow.list_(pyarrow.int64())}
    arrays = {name: pyarrow.array(values, types.get(name, pyarrow.int64())) for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(arrays), buffer)
    write_atomically(destination, buffer.getvalue().to_pybytes())
