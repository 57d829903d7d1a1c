"""``trace.json.gz``: instances and requests on a timeline, for Perfetto or chrome://tracing."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vidur_pd.metrics.iterations import IterationLog, IterationRun
    from vidur_pd.metrics.requests import RequestRecord
    from vidur_pd.metrics.result import Result

PS_PER_US = 1_000_000
REQUESTS_PID = 0
"""Process of the request rows; instance *i* is process *i + 1*, and links are the process after those."""
MOST_LINKS = 16
"""Those with the fullest windows."""


def write_timeline(path: Path, result: Result) -> None:
    """Writes one slice per run of iterations, counters of queue and KV use, the stages of every request with arrows
    from prefill over KV to decode, and counters of the fullest links."""
    events = [
        *_names(result),
        *_iterations(result.iterations),
        *_requests(result.requests),
        *_arrows(result),
        *_links(result),
    ]
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode())


def _names(result: Result) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": REQUESTS_PID, "args": {"name": "requests"}}
    for index, (name, _) in enumerate(result.iterations.instances):
        yield {"ph": "M", "name": "process_name", "pid": index + 1, "args": {"name": name}}
    yield {"ph": "M", "name": "process_name", "pid": _links_pid(result), "args": {"name": "links (% of capacity)"}}


def _links_pid(result: Result) -> int:
    return len(result.iterations.instances) + 1


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


def _arrows(result: Result) -> Iterator[dict[str, Any]]:
    """From the iteration that ends a prompt over its KV transfer to the first iteration of its decode instance."""
    pid_of = {name: index + 1 for index, (name, _) in enumerate(result.iterations.instances)}
    for request in result.requests:
        stamps = (request.prefill_completed_ps, request.kv_arrived_ps, request.joined_ps)
        if None in stamps:
            continue
        prefilled_ps, arrived_ps, joined_ps = (stamp or 0 for stamp in stamps)
        arrow = {"cat": "kv", "name": "KV", "id": request.index, "tid": 0}
        yield arrow | {"ph": "s", "pid": pid_of[request.prefill_instance], "ts": (prefilled_ps - 1) / PS_PER_US}
        on_its_way = {"pid": REQUESTS_PID, "tid": request.index, "ts": (arrived_ps - 1) / PS_PER_US}
        yield arrow | {"ph": "t"} | on_its_way
        yield arrow | {
            "ph": "f",
            "bp": "e",
            "pid": pid_of[request.decode_instance],
            "ts": joined_ps / PS_PER_US,
        }


def _links(result: Result) -> Iterator[dict[str, Any]]:
    """Use of the fullest links by window and class of traffic, in per cent of what they could carry."""
    columns = result.link_columns()
    if not len(columns["link"]):
        return
    use = 100 * columns["carried_bytes"] / np.maximum(columns["capacity_bytes"], 1e-12)
    links, place = np.unique(columns["link"], return_inverse=True)
    fullest = np.zeros(len(links))
    np.maximum.at(fullest, place, use)
    for at in np.argsort(-fullest, kind="stable")[:MOST_LINKS].tolist():
        mine = np.flatnonzero(place == at)
        name = f"{columns['src'][mine[0]]} → {columns['dst'][mine[0]]}"
        windows: dict[float, dict[str, float]] = {}
        for row in mine.tolist():
            begin, end = (float(columns[edge][row]) for edge in ("window_start_s", "window_end_s"))
            windows.setdefault(begin, {})[str(columns["traffic"][row])] = float(use[row])
            windows.setdefault(end, {})  # back to nothing, unless the next window has something
        for begin, by_traffic in sorted(windows.items()):
            arguments = {"kv": by_traffic.get("kv", 0.0), "collective": by_traffic.get("collective", 0.0)}
            yield {"ph": "C", "name": name, "pid": _links_pid(result), "ts": begin * 1e6, "args": arguments}
