"""Requests with stamps made by hand, tallied as those of a simulation are."""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import numpy as np

from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.requests import NEVER, RequestTable
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.workload import Workload
from vidur_pd.workload.request import STATUSES, RequestStatus
from vidur_pd.workload.source import RequestSource
from vidur_pd.workload.workload import Classes


class Served(NamedTuple):
    """Seconds; ``last_s`` is ``None`` of a request that failed."""

    arrived_s: float
    first_s: float
    last_s: float | None
    prompt: int
    output: int


def tally_of(*requests: Served, classes: Classes | None = None) -> RequestTally:
    arrived_ps, first_ps, last_ps = (
        np.array([NEVER if at is None else round(at * PS_PER_S) for at in times], dtype=np.int64)
        for times in zip(*(each[:3] for each in requests), strict=True)
    )
    prompt, output = (np.array([each[place] for each in requests], dtype=np.int64) for place in (3, 4))
    status = [RequestStatus.FAILED if each.last_s is None else RequestStatus.COMPLETED for each in requests]
    columns = {field.name: np.zeros(len(requests), dtype=np.int64) for field in fields(RequestTable)} | {
        "request_id": np.array([f"r{index}" for index in range(len(requests))]),
        "arrived_ps": arrived_ps,
        "reasons": {},
        "has_priorities": False,
        "has_connector": False,
        "index": np.arange(len(requests)),
        "output_tokens": output,
        "status": np.array([STATUSES.index(of) for of in status], dtype=np.int64),
        "first_token_ps": first_ps,
        "last_token_ps": last_ps,
        "completed_ps": last_ps,
    }
    workload = Workload(tuple(columns["request_id"]), arrived_ps, prompt, output, classes=classes)
    tally = RequestTally(RequestSource(workload))
    tally.add(RequestTable(**columns))
    return tally
