"""A request on its way through the cluster: what was asked, how far it is, when each stage happened."""

from __future__ import annotations

from enum import StrEnum

from vidur_pd._core import Request

__all__ = ["STATUSES", "Request", "RequestStatus"]


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
