"""A request on its way through the cluster: what was asked, how far it is, when each stage happened."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from vidur_pd._core import Request

if TYPE_CHECKING:
    from vidur_pd.workload import Workload

__all__ = ["STATUSES", "Request", "RequestStatus", "request_of"]


class RequestStatus(StrEnum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    PREFILLED = "prefilled"
    """Its prefill instance has finished with it and holds its KV for the transfer."""
    TRANSFERRING = "transferring"
    """Its decode instance has reserved KV blocks; the KV is not all there yet."""
    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"


STATUSES = tuple(RequestStatus)
"""By their number in the core."""


def request_of(workload: Workload, index: int, arrived_ps: int) -> Request:
    """The request of a row of the workload, as it arrives."""
    hashes = workload.block_hashes
    request = Request(
        index=index,
        request_id=workload.request_ids[index],
        prompt_tokens=workload.prefill_tokens.item(index),
        output_tokens=workload.decode_tokens.item(index),
        arrived_ps=arrived_ps,
        block_hashes=None if hashes is None else hashes.of(index).tolist(),
    )
    if hashes is not None and hashes.hashed_tokens is not None:
        request.hashed_tokens = hashes.hashed_tokens.item(index)
    if workload.max_output_tokens is not None:
        request.max_output_tokens = workload.max_output_tokens.item(index)
    if workload.priority is not None:
        request.priority = workload.priority.item(index)
    return request
