"""Tables in and out: times to be looked up, and plans; files appear whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simccl.collective import Collective
from simccl.errors import InputError
from simccl.hardware import gpu_named
from simccl.plan import Operation, Plan
from simccl.timing import TimeTable, time_table

_TIME_COLUMNS = ("op", "bytes", "ranks", "nodes", "gpu")


def price_table(source: Path, destination: Path) -> int:
    """Adds ``time_us,algorithm,protocol,channels`` to a CSV of ``op,bytes,ranks,nodes,gpu``; returns its rows.

    Further columns are kept. Raises:
        InputError: naming the file, the line and the field.
    """
    header, lines = _read(source)
    rows = [_parsed(source, line, dict(zip(header, fields, strict=True))) for line, fields in lines]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in _TIME_COLUMNS]
    table = time_table(*columns)
    _write_text(destination, _priced(header, [fields for _, fields in lines], table))
    return len(rows)


def write_plan(plan: Plan, destination: Path) -> None:
    """One row per flow; Parquet where the name ends so, else CSV with ``deps`` joined by ``;``.

    ``src`` and ``dst`` are ranks; ``bytes`` and ``start_ps`` are what the flow graph of the plan asks of the network.

    Raises:
        InputError: a suffix other than .csv and .parquet.
    """
    if destination.suffix not in (".csv", ".parquet"):
        raise InputError(f"{destination}: found suffix {destination.suffix!r}, expected .csv or .parquet")
    flows, graph = plan.flows, plan.graph()
    names = np.array([operation.name.lower() for operation in Operation])
    columns: dict[str, list[object]] = {
        "flow_id": list(range(len(flows))),
        "src": flows.src.tolist(),
        "dst": flows.dst.tolist(),
        "src_gpu": graph.src.tolist(),
        "dst_gpu": graph.dst.tolist(),
        "payload_bytes": flows.payload_bytes.tolist(),
        "wire_bytes": flows.wire_bytes.tolist(),
        "bytes": graph.size_bytes.tolist(),
        "channel": flows.channel.tolist(),
        "step": flows.step.tolist(),
        "origin": flows.origin.tolist(),
        "offset": flows.offset.tolist(),
        "operation": names[flows.operation].tolist(),
        "start_ps": graph.ready_ps.tolist(),
        "delay_ps": graph.delay_ps.tolist(),
        "deps": [part.tolist() for part in np.split(flows.deps, flows.dep_offsets[1:-1])] if len(flows) else [],
    }
    if destination.suffix == ".parquet":
        _write_parquet(destination, columns)
    else:
        columns["deps"] = [";".join(map(str, deps)) for deps in columns["deps"]]  # type: ignore[call-overload]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        _write_text(destination, text.getvalue())


def _read(source: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and the (line number, fields) of a CSV with at least the columns of a time table."""
    try:
        with source.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, fields) for fields in reader if fields]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{source}: {getattr(error, 'strerror', None) or error}, expected a readable CSV") from None
    if not lines:
        raise InputError(f"{source}: found no line, expected the header {','.join(_TIME_COLUMNS)}")
    header = [name.strip() for name in lines[0][1]]
    missing = [name for name in _TIME_COLUMNS if name not in header]
    if missing or len(set(header)) != len(header):
        raise InputError(f"{source} line 1: found {','.join(header)}, expected {','.join(_TIME_COLUMNS)}, each once")
    for line, fields in lines[1:]:
        if len(fields) != len(header):
            raise InputError(f"{source} line {line}: found {len(fields)} fields, expected {len(header)}")
    return header, lines[1:]


def _parsed(source: Path, line: int, row: dict[str, str]) -> tuple[str, int, int, int, str]:
    """One checked row, so that every message can name its line."""
    try:
        Collective.parse(row["op"].strip())
        gpu_named(row["gpu"])
        size, ranks, nodes = (
            _whole(name, row[name], least) for name, least in (("bytes", 0), ("ranks", 1), ("nodes", 1))
        )
        if ranks % nodes:
            raise InputError(f"nodes: found {nodes}, expected a divisor of the {ranks} ranks")
    except InputError as error:
        raise InputError(f"{source} line {line}: {error}") from None
    return row["op"].strip(), size, ranks, nodes, row["gpu"]


def _whole(name: str, text: str, least: int) -> int:
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()) or not least <= int(stripped) < 1 << 62:
        raise InputError(f"{name}: found {text!r}, expected a whole number from {least}")
    return int(stripped)


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
    _write(destination, buffer.getvalue().to_pybytes())


def _write_text(destination: Path, text: str) -> None:
    _write(destination, text.encode())


def _write(destination: Path, content: bytes) -> None:
    """Writes beside the destination and renames, so that a reader sees the old file or the new one."""
    try:
        handle, temporary = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            umask = os.umask(0)
            os.umask(umask)
            Path(temporary).chmod(0o666 & ~umask)
            Path(temporary).replace(destination)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{destination}: {error.strerror}, expected a place to write to") from None
