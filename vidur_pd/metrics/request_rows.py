"""The rows of ``requests.csv`` and ``requests.parquet``: one for every request."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from boundary.arrow_columns import arrow_column
from vidur_pd._core import seconds_texts
from vidur_pd.metrics.columns import Column, values_of
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.request_figures import NEVER, request_columns_of
from vidur_pd.metrics.requests import RequestTable

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_OF_A_PIECE: Final = 16_384


def requests_csv(table: RequestTable) -> Iterator[str]:
    """The file in pieces of some thousand rows, in the order of the table. Times are exact decimal seconds; what does
    not apply is empty."""
    chosen = request_columns_of(table)
    for first in range(0, max(len(table), 1), ROWS_OF_A_PIECE):
        columns = values_of(chosen, table.rows(slice(first, first + ROWS_OF_A_PIECE)))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if first == 0:
            writer.writerow(columns)
        writer.writerows(zip(*(_texts(column, columns[column.name]) for column in chosen), strict=True))
        yield text.getvalue()


def request_columns(table: RequestTable) -> dict[str, pa.Array[Any]]:
    """Columns of ``requests.parquet``: those of the CSV with times as floats, exact ones also as integers (``…_ps``).

    What does not apply is null, and empty text in names of instances.
    """
    found: dict[str, pa.Array[Any]] = {}
    for column in request_columns_of(table):
        values = column.values(table)
        if column.is_text:
            found[column.name] = arrow_column(values)
            continue
        absent = values == NEVER
        found[column.name] = arrow_column(values / PS_PER_S if column.unit == "s" else values, absent)
        if column.is_exact:
            found[column.name.removesuffix("_s") + "_ps"] = arrow_column(values, absent)
    return found


def _texts(column: Column[RequestTable], values: NDArray[Any]) -> list[str]:
    if column.is_text:
        return [str(text) for text in values]
    if column.unit == "s":
        return seconds_texts(values, NEVER)
    return ["" if value == NEVER else str(value) for value in values.tolist()]
