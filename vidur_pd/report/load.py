"""The output directory of a run, read and checked for the report."""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boundary import arrow_columns
from boundary.csv_text import csv_rows
from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.text_files import read_text
from boundary.yaml_text import parse_yaml_mapping
from vidur_pd.metrics.columns import Column, numbers, texts
from vidur_pd.metrics.iteration_columns import ITERATION_COLUMNS
from vidur_pd.metrics.link_columns import LINK_COLUMNS
from vidur_pd.metrics.request_figures import REQUEST_COLUMNS
from vidur_pd.metrics.summary import Summary
from vidur_pd.metrics.summary_file import MOST, read_summary
from vidur_pd.report.series import Floats
from vidur_pd.report.table import Rows, Table, Words

MOST_ITERATIONS = 4_000_000
"""While they are read and drawn, iterations take 250 bytes each."""
IDS = ("request_id",)
"""Columns of text that hardly repeats."""


@dataclass(frozen=True, slots=True)
class RunOutput:
    """One run: every request, the headline figures, and the optional series (``None`` where not written)."""

    label: str
    folder: Path
    summary: Summary
    requests: Table
    """One row per request, by the names of `REQUEST_COLUMNS`."""
    iterations: Table | None
    """Sorted by instance and start."""
    iteration_rows: int
    """Of the file, which may be too many to be read."""
    links: Table | None
    config_text: str | None
    config: Mapping[str, object]

    @property
    def completed(self) -> Table:
        return self.requests.rows(self.requests.words["status"].are("completed"))

    @property
    def drafts_tokens(self) -> bool:
        """Some pool decodes speculatively, as far as the configuration is there."""
        return _is_drafting(self.config.get("engine")) or _is_drafting(self.config.get("cluster"))

    @property
    def span_s(self) -> tuple[float, float]:
        """The time axis: from the first arrival to the last arrival, completion or iteration."""
        stamps = [self.requests["arrived_at_s"], self.requests["completed_at_s"]]
        if self.iterations is not None:
            stamps += [self.iterations["start_s"], self.iterations["end_s"]]
        known = [stamp for stamp in stamps if not np.isnan(stamp).all()]
        if not known:
            return 0.0, 0.0
        return min(float(np.nanmin(stamp)) for stamp in known), max(float(np.nanmax(stamp)) for stamp in known)


def read_run(folder: Path, label: str | None = None) -> RunOutput:
    """Reads one output directory.

    ``iterations.parquet``, ``links.parquet`` and ``config.yaml`` may be missing; the rest is required. Requests are
    those of ``requests.csv``, or of ``requests.parquet`` where there is no such file. More than `MOST_ITERATIONS` are
    not read.
    Raises: InputError naming file and column.
    """
    check_folder(folder)
    config_text, config = read_configuration(folder / "config.yaml")
    path, links, iterations = folder / "iterations.parquet", folder / "links.parquet", None
    iteration_rows = _rows(path)
    if path.exists() and iteration_rows <= MOST_ITERATIONS:
        iterations = _read_parquet(path, ITERATION_COLUMNS, sorted_by=("instance", "start_s"))
    return RunOutput(
        label=label or folder.resolve().name,
        folder=folder,
        summary=read_summary(folder / "summary.json"),
        requests=_read_requests(folder),
        iterations=iterations,
        iteration_rows=iteration_rows,
        links=_read_links(links) if links.exists() else None,
        config_text=config_text,
        config=config,
    )


def _is_drafting(tree: object) -> bool:
    match tree:
        case Mapping():
            return tree.get("speculative") is not None or any(map(_is_drafting, tree.values()))
        case list():
            return any(map(_is_drafting, tree))
        case _:
            return False


def check_folder(folder: Path) -> None:
    """Raises: InputError, where there is no such folder."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such directory; expected the output directory of a run")


def distinct_labels(folders: Sequence[Path]) -> list[str]:
    """The shortest path endings of equal depth that tell the folders apart; numbered if one comes twice."""
    resolved = [folder.resolve() for folder in folders]
    depth = 1
    while depth < max(len(path.parts) for path in resolved) and len({path.parts[-depth:] for path in resolved}) < len(
        set(resolved)
    ):
        depth += 1
    labels = ["/".join(path.parts[-depth:]) for path in resolved]
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[:place].count(label) + 1})"
        for place, label in enumerate(labels)
    ]


def _read_requests(folder: Path) -> Table:
    path, streamed = folder / "requests.csv", folder / "requests.parquet"
    if streamed.exists() and not path.exists():
        return _read_parquet(streamed, REQUEST_COLUMNS, sorted_by=("arrived_at_s",))
    return _read_csv(path, REQUEST_COLUMNS)


def _read_csv(path: Path, columns: Sequence[Column[Any]]) -> Table:
    """The columns that the report reads."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    words, figures = texts(columns), numbers(columns)
    options = arrow_csv.ConvertOptions(
        include_columns=[*words, *figures],
        column_types=dict.fromkeys(words, pa.dictionary(pa.int32(), pa.string()))
        | dict.fromkeys(IDS, pa.string())
        | dict.fromkeys(figures, pa.float64()),
        null_values=[""],
    )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            require_columns(path, next(csv.reader(file), []), (*words, *figures))
        parsing = arrow_csv.ParseOptions(newlines_in_values=True)
        reading = arrow_csv.ReadOptions(use_threads=False)
        table = arrow_csv.read_csv(path, reading, parsing, options)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected the output directory of a run") from None
    except InputError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, pa.ArrowInvalid):
            _refuse_words(path, figures)
        raise InputError(f"{path}: cannot be read as CSV ({' '.join(str(error).split())})") from None
    found = {name: arrow_columns.numbers(table[name]) for name in figures}
    if any((np.abs(found[name]) <= MOST).sum() + table[name].null_count < len(table) for name in figures):
        _refuse_words(path, figures)
    return Table(found, {name: _words(name, table[name]) for name in words})


def _refuse_words(path: Path, figures: Sequence[str]) -> None:
    """Raises: InputError naming the first cell that is neither empty nor a number up to `MOST`; nothing without one."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv_rows(file, str(path))
        _, header = next(rows, (1, []))
        for line, cells in rows:
            row = dict(zip(header, cells, strict=False))
            for name in figures:
                if row.get(name) and not _is_number(row[name]):
                    found = quoted(row[name])
                    raise InputError(f"{path}: line {line}: {name}: found {found}, expected a finite number")


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) <= MOST
    except ValueError:
        return False


def _rows(path: Path) -> int:
    """Rows of a Parquet file; 0 where there is none that can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return 0


def _words(name: str, column: Any) -> Words:
    if name not in IDS:
        return Words(*arrow_columns.words(column))
    ids = arrow_columns.texts(column)
    return Words(np.arange(len(ids), dtype=np.min_scalar_type(-max(len(ids), 1))), ids)


def _read_parquet(
    path: Path,
    columns: Sequence[Column[Any]],
    *,
    sorted_by: Sequence[str] = (),
    may_miss: Set[str] = frozenset(),
) -> Table:
    """The columns that the report reads. Numbers that ``may_miss`` in files of earlier versions are NaN there.

    They are read one by one, since all at once take several times the memory.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    words, figures = texts(columns), numbers(columns)

    def cells(name: str) -> Any:
        found, rows = file.read([name], use_threads=False)[name], file.metadata.num_rows
        if len(found) != rows:
            raise InputError(f"{path}: column {name}: found {len(found):,} rows, expected {rows:,}")
        return found

    def text(name: str) -> Words:
        return _words(name, cells(name))

    def figure(name: str) -> Floats:
        if name in may_miss and name not in file.schema_arrow.names:
            return np.full(file.metadata.num_rows, np.nan)
        try:
            read = arrow_columns.numbers(cells(name))
        except pa.ArrowException as error:
            found = " ".join(str(error).split())
            raise InputError(f"{path}: column {name}: cannot be read as numbers ({found})") from None
        if (np.abs(read) > MOST).any():
            raise InputError(f"{path}: column {name}: found {np.nanmax(np.abs(read)):g}, expected at most {MOST:g}")
        return read

    try:
        with pq.ParquetFile(path, read_dictionary=[name for name in words if name not in IDS]) as file:
            require_columns(path, {*file.schema_arrow.names, *may_miss}, (*words, *figures))
            keys = [text(name).codes if name in words else figure(name) for name in reversed(sorted_by)]
            rows: Rows = np.lexsort(keys) if keys else slice(None)
            return Table(
                {name: figure(name)[rows] for name in figures}, {name: text(name).rows(rows) for name in words}
            )
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from None


def _read_links(path: Path) -> Table:
    return _read_parquet(path, LINK_COLUMNS, may_miss={"burst_use"})


def require_columns(path: Path, found: Collection[str], expected: Sequence[str]) -> None:
    """Raises: InputError, where a column is missing."""
    missing = [name for name in expected if name not in found]
    if missing:
        raise InputError(f"{path}: column {missing[0]}: missing, expected columns {', '.join(expected)}")


def read_configuration(path: Path) -> tuple[str | None, Mapping[str, object]]:
    """Text and content of a run's ``config.yaml``; nothing where there is none. Raises: InputError."""
    if not path.exists():
        return None, {}
    text = read_text(path, "a configuration")
    return text, parse_yaml_mapping(text, str(path), "a configuration")
