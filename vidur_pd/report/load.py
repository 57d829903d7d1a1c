"""The output directory of a run, read and checked for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from vidur_pd.errors import InputError
from vidur_pd.report.summary import Summary, read_summary

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
ROWS_AT_ONCE = 100_000
MOST_ITERATIONS = 4_000_000
"""Iterations take 150 bytes each, and as much again while they are sorted."""
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
LINK_TEXT = ("link", "src", "dst", "kind", "traffic")
LINK_NUMBERS = ("capacity_bps", "window_start_s", "window_end_s", "carried_bytes")


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
    if not folder.is_dir():
        raise InputError(f"{folder}: no such directory; expected the output directory of a run")
    config_text, config = _read_config(folder / "config.yaml")
    path, iterations = folder / "iterations.parquet", None
    iteration_rows = _rows(path)
    if iteration_rows <= MOST_ITERATIONS:
        iterations = _read_parquet(path, ITERATION_TEXT, ITERATION_NUMBERS)
    if iterations is not None:
        iterations = iterations.sort_values(["instance", "start_s"], kind="stable", ignore_index=True)
    return RunOutput(
        label=label or folder.resolve().name,
        folder=folder,
        summary=read_summary(folder / "summary.json"),
        requests=_read_requests(folder),
        iterations=iterations,
        iteration_rows=iteration_rows,
        links=_read_parquet(folder / "links.parquet", LINK_TEXT, LINK_NUMBERS),
        config_text=config_text,
        config=config,
    )


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
        return _read_streamed(streamed)
    try:
        with pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False, chunksize=ROWS_AT_ONCE) as parts:
            return pd.concat([_typed_requests(path, part) for part in parts])
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected the output directory of a run") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as CSV ({' '.join(str(error).split())})") from None


def _read_streamed(path: Path) -> pd.DataFrame:
    """Rows by arrival. Columns are read one by one, as all at once would be in memory several times."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(name: str) -> pa.ChunkedArray[Any]:
        return pq.read_table(path, columns=[name])[name]

    try:
        _require(path, pq.read_schema(path).names, (*REQUEST_TEXT, *REQUEST_NUMBERS))
        order = np.argsort(column("arrived_at_s").to_numpy(), kind="stable")
        columns = {name: column(name).cast(pa.string()).to_pandas().to_numpy()[order] for name in REQUEST_TEXT}
        columns |= {name: column(name).cast(pa.float64()).to_numpy()[order] for name in REQUEST_NUMBERS}
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from None
    return pd.DataFrame(columns, copy=False)


def _typed_requests(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the CSV, which is read in parts: as text it takes ten times the memory."""
    _require(path, list(table.columns), (*REQUEST_TEXT, *REQUEST_NUMBERS))
    columns = {name: table[name] for name in REQUEST_TEXT}
    columns |= {name: _numbers(path, table[name]) for name in REQUEST_NUMBERS}
    return pd.DataFrame(columns)


def _numbers(path: Path, column: pd.Series[str]) -> pd.Series[float]:
    """Floats, NaN where empty."""
    numbers = pd.to_numeric(column.replace("", None), errors="coerce").astype(float)
    bad = np.flatnonzero((~np.isfinite(numbers.to_numpy())) & (column != "").to_numpy())
    if bad.size:
        line = int(column.index[bad[0]]) + 2  # the header is line 1
        raise InputError(f"{path}: line {line}: {column.name}: found {column.iloc[bad[0]]!r}, expected a finite number")
    return numbers


def _rows(path: Path) -> int:
    """Rows of a Parquet file; 0 where there is none that can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException):
        return 0


def _read_parquet(path: Path, text: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame | None:
    """The named columns, text as categories and numbers as floats; ``None`` if there is no such file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        return None
    try:
        _require(path, pq.read_schema(path).names, (*text, *numbers))
        table = pq.read_table(path, columns=[*text, *numbers]).to_pandas()
        table = table.astype(dict.fromkeys(text, str))
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet ({' '.join(str(error).split())})") from None
    try:
        kinds = dict.fromkeys(text, "category") | dict.fromkeys(numbers, "float64")
        return cast(pd.DataFrame, table.astype(kinds))
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: expected numbers in {', '.join(numbers)} ({' '.join(str(error).split())})") from None


def _require(path: Path, found: Sequence[str], expected: Sequence[str]) -> None:
    missing = [name for name in expected if name not in found]
    if missing:
        raise InputError(f"{path}: column {missing[0]}: missing, expected columns {', '.join(expected)}")


def _read_config(path: Path) -> tuple[str | None, Mapping[str, object]]:
    import yaml

    if not path.exists():
        return None, {}
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())})") from None
    if not isinstance(tree, dict):
        raise InputError(f"{path}: found {type(tree).__name__}, expected a mapping of sections")
    return text, tree
