"""The output directory of a run, read and checked for the report."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from boundary.csv_text import csv_rows
from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.text_files import read_text
from boundary.yaml_text import parse_yaml_mapping
from vidur_pd.report.summary import MOST, Summary, read_summary

if TYPE_CHECKING:
    import pyarrow as pa

REQUEST_TEXT = ("request_id", "prefill_instance", "decode_instance", "status")
REQUEST_NUMBERS = (
    "arrived_at_s",
    "prefill_tokens",
    "decode_tokens",
    "cached_tokens",
    "scheduled_at_s",
    "prefill_completed_at_s",
    "kv_sent_at_s",
    "kv_arrived_at_s",
    "first_token_at_s",
    "completed_at_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "pd_p2p_comm_bytes",
    "pd_p2p_comm_time_s",
    "kv_exposed_s",
    "preemptions",
)
MOST_ITERATIONS = 4_000_000
"""While they are read and drawn, iterations take 250 bytes each."""
PHASES = ("attention_s", "dense_s", "experts_s", "head_s", "norm_and_small_s", "host_s")
"""Columns of ``iterations.parquet`` that are parts of ``compute_s``."""
ITERATION_TEXT = ("instance", "pool")
ITERATION_NUMBERS = (
    "start_s",
    "end_s",
    "prefill_tokens",
    "decode_tokens",
    "waiting",
    "running",
    "kv_blocks_used",
    "kv_blocks_total",
    "compute_s",
    "communication_s",
    *PHASES,
)
LINK_TEXT = ("link", "src", "dst", "kind", "traffic", "measure")
LINK_NUMBERS = ("capacity_bps", "window_start_s", "window_end_s", "carried_bytes", "capacity_bytes")


@dataclass(frozen=True, slots=True)
class RunOutput:
    """One run: every request, the headline figures, and the optional series (``None`` where not written)."""

    label: str
    folder: Path
    summary: Summary
    requests: pd.DataFrame
    """One row per request: text columns `REQUEST_TEXT`, float columns `REQUEST_NUMBERS` (NaN where empty)."""
    iterations: pd.DataFrame | None
    """Sorted by instance and start; text columns are categories."""
    iteration_rows: int
    """Of the file, which may be too many to be read."""
    links: pd.DataFrame | None
    config_text: str | None
    config: Mapping[str, object]

    @property
    def completed(self) -> pd.DataFrame:
        is_completed = self.requests["status"] == "completed"
        return self.requests if is_completed.all() else self.requests[is_completed]

    @property
    def span_s(self) -> tuple[float, float]:
        """The time axis: from the first arrival to the last arrival, completion or iteration."""
        stamps = [self.requests["arrived_at_s"], self.requests["completed_at_s"]]
        if self.iterations is not None:
            stamps += [self.iterations["start_s"], self.iterations["end_s"]]
        known = [stamp for stamp in stamps if stamp.notna().any()]
        if not known:
            return 0.0, 0.0
        return min(float(stamp.min()) for stamp in known), max(float(stamp.max()) for stamp in known)


def read_run(folder: Path, label: str | None = None) -> RunOutput:
    """Reads one output directory.

    ``iterations.parquet``, ``links.parquet`` and ``config.yaml`` may be missing; the rest is required. Requests are
    those of ``requests.csv``, or of ``requests.parquet`` where there is no such file. More than `MOST_ITERATIONS` are
    not read.
    Raises: InputError naming file and column.
    """
    check_folder(folder)
    config_text, config = _read_config(folder / "config.yaml")
    path, links, iterations = folder / "iterations.parquet", folder / "links.parquet", None
    iteration_rows = _rows(path)
    if path.exists() and iteration_rows <= MOST_ITERATIONS:
        iterations = _read_parquet(
            path,
            ITERATION_TEXT,
            ITERATION_NUMBERS,
            categories=ITERATION_TEXT,
            sorted_by=("instance", "start_s"),
        )
    return RunOutput(
        label=label or folder.resolve().name,
        folder=folder,
        summary=read_summary(folder / "summary.json"),
        requests=_read_requests(folder),
        iterations=iterations,
        iteration_rows=iteration_rows,
        links=_read_parquet(links, LINK_TEXT, LINK_NUMBERS, categories=LINK_TEXT) if links.exists() else None,
        config_text=config_text,
        config=config,
    )


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


def _read_requests(folder: Path) -> pd.DataFrame:
    path, streamed = folder / "requests.csv", folder / "requests.parquet"
    if streamed.exists() and not path.exists():
        return _read_parquet(streamed, REQUEST_TEXT, REQUEST_NUMBERS, sorted_by=("arrived_at_s",))
    return _read_csv(path, REQUEST_TEXT, REQUEST_NUMBERS)


def _read_csv(path: Path, text: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    """The named columns, numbers as floats (NaN where empty)."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    options = arrow_csv.ConvertOptions(
        include_columns=[*text, *numbers],
        column_types=dict.fromkeys(text, pa.string()) | dict.fromkeys(numbers, pa.float64()),
        null_values=[""],
    )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            _require(path, next(csv.reader(file), []), (*text, *numbers))
        parsing = arrow_csv.ParseOptions(newlines_in_values=True)
        reading = arrow_csv.ReadOptions(use_threads=False)
        table = arrow_csv.read_csv(path, reading, parsing, options)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected the output directory of a run") from None
    except InputError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, pa.ArrowInvalid):
            _refuse_words(path, numbers)
        raise InputError(f"{path}: cannot be read as CSV ({' '.join(str(error).split())})") from None
    columns = {name: _strings(table[name]) for name in text} | {name: table[name].to_numpy() for name in numbers}
    if any((np.abs(columns[name]) <= MOST).sum() + table[name].null_count < len(table) for name in numbers):
        _refuse_words(path, numbers)
    return pd.DataFrame(columns, copy=False)


def _refuse_words(path: Path, numbers: Sequence[str]) -> None:
    """Raises: InputError naming the first cell that is neither empty nor a number up to `MOST`; nothing without one."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv_rows(file, str(path))
        _, header = next(rows, (1, []))
        for line, cells in rows:
            row = dict(zip(header, cells, strict=False))
            for name in numbers:
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


def _strings(column: pa.ChunkedArray[Any]) -> Any:
    return column.to_pandas().array


def _categories(column: pa.ChunkedArray[Any]) -> pd.Categorical:
    coded = column if hasattr(column.type, "index_type") else column.cast("string").dictionary_encode()
    names = coded.to_pandas().array
    return cast(pd.Categorical, names.set_categories(sorted(names.categories)))


def _read_parquet(
    path: Path,
    text: Sequence[str],
    numbers: Sequence[str],
    *,
    categories: Sequence[str] = (),
    sorted_by: Sequence[str] = (),
) -> pd.DataFrame:
    """The named columns, numbers as floats (NaN where empty), ``categories`` of the text as such.

    They are read one by one, since all at once take several times the memory.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(name: str) -> Any:
        values = file.read([name], use_threads=False)[name]
        if name in text:
            return _categories(values) if name in categories else _strings(values.cast(pa.string()))
        try:
            read = values.cast(pa.float64()).to_numpy()
        except pa.ArrowException as error:
            found = " ".join(str(error).split())
            raise InputError(f"{path}: column {name}: cannot be read as numbers ({found})") from None
        if (np.abs(read) > MOST).any():
            raise InputError(f"{path}: column {name}: found {np.nanmax(np.abs(read)):g}, expected at most {MOST:g}")
        return read

    try:
        with pq.ParquetFile(path, read_dictionary=categories) as file:
            _require(path, file.schema_arrow.names, (*text, *numbers))
            keys = [column(name) for name in reversed(sorted_by)]
            rows = np.lexsort([getattr(key, "codes", key) for key in keys]) if keys else slice(None)
            return pd.DataFrame({name: column(name)[rows] for name in (*text, *numbers)}, copy=False)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from None


def _require(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    missing = [name for name in expected if name not in found]
    if missing:
        raise InputError(f"{path}: column {missing[0]}: missing, expected columns {', '.join(expected)}")


def _read_config(path: Path) -> tuple[str | None, Mapping[str, object]]:
    if not path.exists():
        return None, {}
    text = read_text(path, "a configuration")
    return text, parse_yaml_mapping(text, str(path), "a configuration")
