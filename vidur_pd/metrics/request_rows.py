"""The rows of ``requests.csv``: one for every request of the workload, in its order."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from vidur_pd.metrics.quantities import seconds_text
from vidur_pd.metrics.summary import times_of
from vidur_pd.request import Request, RequestStatus

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


@dataclass(slots=True)
class Journey:
    """Where a request went, beside what the request itself knows."""

    request: Request
    prefill_instance: str = ""
    decode_instance: str = ""
    kv_bytes: int | None = None
    """Bytes that crossed between instances; ``None`` where nothing was handed over."""
    restarts: int = 0
    """How often it began again after a fault."""


def requests_csv(journeys: Sequence[Journey]) -> str:
    """The whole file as text. Times are exact decimal seconds; what does not apply is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(journey) for journey in journeys)
    return text.getvalue()


def _row(journey: Journey) -> tuple[str | int, ...]:
    request = journey.request
    times = times_of(request) if request.status is RequestStatus.COMPLETED else None
    transfer_ps = exposed_ps = None
    if request.kv_arrived_ps is not None:
        assert request.kv_sent_ps is not None
        assert request.prefill_completed_ps is not None
        transfer_ps = request.kv_arrived_ps - request.kv_sent_ps
        exposed_ps = max(0, request.kv_arrived_ps - request.prefill_completed_ps)
    status = request.status.value
    if request.status_reason is not None:
        status = f"{status}: {request.status_reason}"
    return (
        request.request_id,
        seconds_text(request.arrived_ps),
        request.prompt_tokens,
        request.output_tokens,
        request.cached_tokens,
        journey.prefill_instance,
        journey.decode_instance,
        seconds_text(request.scheduled_ps),
        seconds_text(request.prefill_completed_ps),
        seconds_text(request.kv_sent_ps),
        seconds_text(request.kv_arrived_ps),
        seconds_text(request.first_token_ps),
        seconds_text(request.completed_ps),
        seconds_text(times.ttft_ps if times else None),
        seconds_text(times.tpot_ps if times else None),
        seconds_text(times.e2e_ps if times else None),
        "" if journey.kv_bytes is None else journey.kv_bytes,
        seconds_text(transfer_ps),
        seconds_text(exposed_ps),
        request.preemptions,
        status,
        journey.restarts,
    )
