"""The rows of ``requests.csv`` and ``requests.parquet``: one for every request."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.quantities import PS_PER_S, seconds_text
from vidur_pd.metrics.requests import NEVER, RequestTable
from vidur_pd.workload.request import STATUSES, RequestStatus

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_OF_A_PIECE: Final = 16_384

EXACT: Final = (
    "arrived_at_s",
    "scheduled_at_s",
    "prefill_completed_at_s",
    "kv_sent_at_s",
    "kv_arrived_at_s",
    "first_token_at_s",
    "completed_at_s",
    "tpot_s",
)
"""Times that ``requests.parquet`` also has as integers, named ``…_ps``; the others are differences of these."""


def requests_csv(table: RequestTable) -> Iterator[str]:
    """The file in pieces of some thousand rows, in the order of the table. Times are exact decimal seconds; what does
    not apply is empty."""
    for first in range(0, max(len(table), 1), ROWS_OF_A_PIECE):
        columns = _columns(table.rows(slice(first, first + ROWS_OF_A_PIECE)))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if first == 0:
            writer.writerow(columns)
        writer.writerows(zip(*(_texts(name, column) for name, column in columns.items()), strict=True))
        yield text.getvalue()


def request_columns(table: RequestTable) -> dict[str, pa.Array[Any]]:
    """Columns of ``requests.parquet``: those of the CSV with times as floats, and `EXACT`; what does not apply is null,
    and empty text in names of instances."""
    import pyarrow as pa

    found: dict[str, pa.Array[Any]] = {}
    for name, column in _columns(table).items():
        if column.dtype.kind == "O":
            found[name] = pa.array(column, pa.string())
        elif not name.endswith("_s"):
            found[name] = pa.array(column, mask=column == NEVER)
        else:
            found[name] = pa.array(column / PS_PER_S, mask=column == NEVER)
        if name in EXACT:
            found[name.removesuffix("_s") + "_ps"] = pa.array(column, mask=column == NEVER)
    return found


def _columns(table: RequestTable) -> dict[str, NDArray[Any]]:
    """[requests] by name, in the order of the file; those named ``…_s`` hold picoseconds."""
    is_completed = table.has(RequestStatus.COMPLETED)
    is_sent = table.kv_arrived_ps != NEVER
    exposed_ps = np.maximum(table.kv_arrived_ps - table.prefill_completed_ps, 0)
    return {
        "request_id": table.request_id,
        "arrived_at_s": table.arrived_ps,
        "prefill_tokens": table.prompt_tokens,
        "decode_tokens": table.output_tokens,
        "cached_tokens": table.cached_tokens,
        "prefill_instance": table.names(table.prefill_instance),
        "decode_instance": table.names(table.decode_instance),
        "scheduled_at_s": table.scheduled_ps,
        "prefill_completed_at_s": table.prefill_completed_ps,
        "kv_sent_at_s": table.kv_sent_ps,
        "kv_arrived_at_s": table.kv_arrived_ps,
        "first_token_at_s": table.first_token_ps,
        "completed_at_s": table.completed_ps,
        "ttft_s": np.where(is_completed, table.ttft_ps, NEVER),
        "tpot_s": np.where(is_completed, table.tpot_ps, NEVER),
        "e2e_s": np.where(is_completed, table.e2e_ps, NEVER),
        "pd_p2p_comm_bytes": table.kv_bytes,
        "pd_p2p_comm_time_s": np.where(is_sent, table.kv_arrived_ps - table.kv_sent_ps, NEVER),
        "kv_exposed_s": np.where(is_sent, exposed_ps, NEVER),
        "preemptions": table.preemptions,
        "status": _statuses(table),
        "restarts": table.restarts,
    }


def _statuses(table: RequestTable) -> NDArray[np.object_]:
    """The end of each request, with its reason."""
    texts = np.array([status.value for status in STATUSES], dtype=object)[table.status]
    if table.reasons:
        for row in np.flatnonzero(~table.has(RequestStatus.COMPLETED)).tolist():
            reason = table.reasons.get(int(table.index[row]))
            texts[row] += "" if reason is None else f": {reason}"
    return texts


def _texts(name: str, column: NDArray[Any]) -> list[str]:
    if column.dtype.kind == "O":
        return [str(text) for text in column]
    if name.endswith("_s"):
        return [seconds_text(None if value == NEVER else value) for value in column.tolist()]
    return ["" if value == NEVER else str(value) for value in column.tolist()]
