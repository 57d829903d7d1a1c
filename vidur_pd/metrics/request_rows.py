"""The rows of ``requests.csv``: one for every request of the workload, in its order."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from vidur_pd.metrics.quantities import seconds_text
from vidur_pd.metrics.requests import NEVER, RequestRecord, RequestTable
from vidur_pd.request import RequestStatus

COLUMNS = (
    "request_id",
    "arrived_at_s",
    "prefill_tokens",
    "decode_tokens",
    "cached_tokens",
    "prefill_instance",
    "decode_instance",
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
    "status",
    "restarts",
)


def requests_csv(table: RequestTable) -> str:
    """The whole file as text. Times are exact decimal seconds; what does not apply is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(table))
    return text.getvalue()


def _rows(table: RequestTable) -> Iterator[tuple[str | int, ...]]:
    figures = zip(table.ttft_ps.tolist(), table.tpot_ps.tolist(), table.e2e_ps.tolist(), strict=True)
    for record, times in zip(table.records(), figures, strict=True):
        yield _row(record, times)


def _row(record: RequestRecord, times: tuple[int, int, int]) -> tuple[str | int, ...]:
    """``times``: TTFT, TPOT, E2E of a completed request."""
    is_completed = record.status is RequestStatus.COMPLETED
    transfer_ps = exposed_ps = None
    if record.kv_arrived_ps is not None:
        assert record.kv_sent_ps is not None
        assert record.prefill_completed_ps is not None
        transfer_ps = record.kv_arrived_ps - record.kv_sent_ps
        exposed_ps = max(0, record.kv_arrived_ps - record.prefill_completed_ps)
    status = record.status.value
    if record.status_reason is not None:
        status = f"{status}: {record.status_reason}"
    return (
        record.request_id,
        seconds_text(record.arrived_ps),
        record.prompt_tokens,
        record.output_tokens,
        record.cached_tokens,
        record.prefill_instance,
        record.decode_instance,
        seconds_text(record.scheduled_ps),
        seconds_text(record.prefill_completed_ps),
        seconds_text(record.kv_sent_ps),
        seconds_text(record.kv_arrived_ps),
        seconds_text(record.first_token_ps),
        seconds_text(record.completed_ps),
        *(seconds_text(time if is_completed and time != NEVER else None) for time in times),
        "" if record.kv_bytes is None else record.kv_bytes,
        seconds_text(transfer_ps),
        seconds_text(exposed_ps),
        record.preemptions,
        status,
        record.restarts,
    )
