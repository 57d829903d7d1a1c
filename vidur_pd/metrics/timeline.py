"""``trace.json.gz``: instances and requests on a timeline, for Perfetto or chrome://tracing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidur_pd.metrics.iterations import IterationLog, IterationRun
    from vidur_pd.metrics.requests import RequestRecord
    from vidur_pd.metrics.result import Result

PS_PER_US = 1_000_000
REQUESTS_PID = 0
"""Process of the request rows; instance *i* is process *i + 1*."""


def write_timeline(path: Path, result: Result) -> None:
    """Writes one slice per run of iterations, counters of queue and KV use, and the stages of every request."""
    events = [*_names(result), *_iterations(result.iterations), *_requests(result.requests)]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode())


def _names(result: Result) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": REQUESTS_PID, "args": {"name": "requests"}}
    for index, (name, _) in enumerate(result.iterations.instances):
        yield {"ph": "M", "name": "process_name", "pid": index + 1, "args": {"name": name}}


def _iterations(log: IterationLog) -> Iterator[dict[str, Any]]:
    for run in log.runs:
        end_ps = int(run.ends_ps[-1])
        yield {
            "ph": "X",
            "name": _label(run),
            "pid": run.instance + 1,
            "tid": 0,
            "ts": run.start_ps / PS_PER_US,
            "dur": (end_ps - run.start_ps) / PS_PER_US,
            "args": {
                "iterations": len(run.ends_ps),
                "requests": run.requests,
                "prefill_tokens": run.prefill_tokens,
                "decode_tokens": run.decode_tokens,
                "compute_us": int(run.compute_ps.sum()) / PS_PER_US,
                "communication_us": int(run.communication_ps.sum()) / PS_PER_US,
            },
        }
        for name, value in (("waiting", run.waiting), ("running", run.running), ("kv_blocks", run.kv_blocks)):
            counter = {"ph": "C", "name": name, "pid": run.instance + 1, "ts": end_ps / PS_PER_US}
            yield counter | {"args": {name: value}}


def _label(run: IterationRun) -> str:
    if not run.prefill_tokens:
        return "decode"
    return "mixed" if run.decode_tokens else "prefill"


def _requests(records: list[RequestRecord]) -> Iterator[dict[str, Any]]:
    for request in records:
        stages = (
            ("queue", request.arrived_ps, request.scheduled_ps),
            ("prefill", request.scheduled_ps, request.prefill_completed_ps),
            ("kv transfer", request.kv_sent_ps, request.kv_arrived_ps),
            ("decode", request.kv_arrived_ps or request.prefill_completed_ps, request.completed_ps),
        )
        for name, begin_ps, end_ps in stages:
            if begin_ps is not None and end_ps is not None and end_ps > begin_ps:
                slice_ = {"ph": "X", "name": name, "pid": REQUESTS_PID, "tid": request.index}
                yield slice_ | {
                    "ts": begin_ps / PS_PER_US,
                    "dur": (end_ps - begin_ps) / PS_PER_US,
                    "args": {"request_id": request.request_id},
                }
