"""Results on disk: one JSON object per line, appended as measured; a Parquet file and provenance at the end.

An interrupted run leaves whole lines and at most one torn last line, which is ignored and overwritten on resumption.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from aicb.kernels.point import SHAPE_COLUMNS
from boundary.errors import InputError
from boundary.output_files import check_output, make_folder, write_atomically

SCHEMA_VERSION = 2
ROWS_FILE = "rows.jsonl"
TABLE_FILE = "profile.parquet"
PROVENANCE_FILE = "profile.provenance.json"

COLUMNS: Mapping[str, str] = {
    "op": "string",
    "kernel": "string",
    "dtype": "string",
    "tag": "string",
    **dict.fromkeys(SHAPE_COLUMNS, "int64"),
    "distribution": "string",
    "lengths": "string",
    "queries": "string",
    "cold_us": "double",
    "cold_p10_us": "double",
    "cold_p90_us": "double",
    "samples": "int64",
    "graph_us": "double",
    "graph_p10_us": "double",
    "graph_p90_us": "double",
    "graph_samples": "int64",
    "graph_clock_mhz": "double",
    "rotated_us": "double",
    "rotated_p10_us": "double",
    "rotated_p90_us": "double",
    "rotated_samples": "int64",
    "rotated_clock_mhz": "double",
    "operand_sets": "int64",
    "flops": "double",
    "bytes": "double",
    "error": "double",
    "tolerance": "double",
    "settings": "string",
    "sm_clock_mhz": "int64",
    "power_w": "int64",
    "run": "string",
    "session": "int64",
}
"""Columns of the table and their types; README.md says what each means. Absent values are null."""
SINCE_VERSION_2 = frozenset({name for name in COLUMNS if "rotated" in name} | {"graph_clock_mhz", "operand_sets"})
"""Columns that tables of version 1 lack."""

Value = str | int | float
Row = dict[str, Value]


def check_directory(directory: Path, *, resume: bool, inputs: Iterable[Path] = ()) -> None:
    """Makes the output directory, before anything is measured.

    Raises:
        InputError: it cannot be written to, or holds a table and ``resume`` was not asked for, or an input.
    """
    make_folder(directory)
    for name in (ROWS_FILE, TABLE_FILE, PROVENANCE_FILE):
        check_output(directory / name, inputs)
        if name != ROWS_FILE and not resume and (directory / name).exists():
            raise InputError(f"{directory / name}: found a table, expected none (continue it with --resume)")


class RowFile:
    """Rows of one output directory."""

    def __init__(self, directory: Path):
        self._path = directory / ROWS_FILE
        make_folder(directory)

    def read(self) -> list[Row]:
        """All whole rows, in the order measured.

        Raises:
            InputError: a line other than a torn last one is not a row.
        """
        return list(self._parsed()) if self._path.exists() else []

    def start(self, *, resume: bool) -> list[Row]:
        """Rows already there. Without ``resume`` there must be none; with it a torn last line is cut off.

        Raises:
            InputError: results exist and ``resume`` was not asked for.
        """
        rows = self.read()
        if rows and not resume:
            raise InputError(f"{self._path}: found {len(rows)} rows, expected none (continue them with --resume)")
        write_atomically(self._path, "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def append(self, row: Row) -> None:
        """Adds one row; on disk when this returns."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _parsed(self) -> Iterator[Row]:
        lines = self._path.read_text(encoding="utf-8").split("\n")
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines):
                    return
                raise InputError(f"{self._path}:{number}: found {line[:40]!r}, expected a JSON object") from None
            yield row


def write_table(directory: Path, rows: list[Row], provenance: Mapping[str, object]) -> None:
    """Writes ``profile.parquet`` and ``profile.provenance.json``, each whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    table = pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows], schema=schema)
    content = io.BytesIO()
    pq.write_table(table, content, compression="zstd")
    write_atomically(directory / TABLE_FILE, content.getvalue())
    facts = {"schema_version": SCHEMA_VERSION, "rows": len(rows), **provenance}
    write_atomically(directory / PROVENANCE_FILE, json.dumps(facts, indent=1) + "\n")


def read_table(path: Path) -> list[Row]:
    """Rows of a ``profile.parquet``, without absent values.

    Raises:
        InputError: the file is missing or has other columns.
    """
    import pyarrow.parquet as pq

    if not path.is_file():
        raise InputError(f"{path}: found no such file, expected a table written by aicb profile")
    table = pq.read_table(path)
    if table.column_names not in (list(COLUMNS), [name for name in COLUMNS if name not in SINCE_VERSION_2]):
        raise InputError(f"{path}: columns: found {table.column_names}, expected {list(COLUMNS)}")
    return [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
