"""Result tables that are written while the simulation runs."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from boundary.arrow_columns import arrow_table
from vidur_pd.metrics.attribution import attribution_columns
from vidur_pd.metrics.iterations import Columns
from vidur_pd.metrics.records import REQUESTS_AT_ONCE
from vidur_pd.metrics.request_rows import request_columns
from vidur_pd.metrics.requests import RequestTable

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """How result tables are written: times hardly repeat, so that a dictionary of them takes longer and more room."""
    repeating = [field.name for field in schema if str(field.type) != "double"]
    return {"compression": "zstd", "use_dictionary": repeating}


class ParquetStream:
    """``requests.parquet``, ``attribution.parquet`` and, if wanted, ``iterations.parquet`` in a folder, one row group
    per call.

    A file exists after the first call with rows, or at the end; leaving the ``with`` block completes both.
    """

    requests_at_once = REQUESTS_AT_ONCE

    def __init__(self, folder: Path, *, with_iterations: bool) -> None:
        self._folder = folder
        self._with_iterations = with_iterations
        self._writers: dict[str, pq.ParquetWriter] = {}

    def add_requests(self, table: RequestTable) -> None:
        self._add("requests.parquet", arrow_table(request_columns(table)))
        self._add("attribution.parquet", arrow_table(attribution_columns(table)))

    def add_iterations(self, columns: Columns) -> None:
        if self._with_iterations:
            self._add("iterations.parquet", arrow_table(columns))

    def _add(self, name: str, table: pa.Table) -> None:
        import pyarrow.parquet as pq

        if name not in self._writers:
            self._writers[name] = pq.ParquetWriter(self._folder / name, table.schema, **parquet_options(table.schema))
        if table.num_rows:
            self._writers[name].write_table(table, row_group_size=table.num_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()
