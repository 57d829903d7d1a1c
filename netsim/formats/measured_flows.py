"""Measured flows as CSV: the columns of every backend (`netsim.formats.flow_file`), and those of real hosts."""

from __future__ import annotations

import csv
import io
from typing import Final

from netsim.backends.rdma.measurement import Measurement
from netsim.formats.flow_file import RESULT_FIELDS, NamedFlows

MEASURED_FIELDS: Final = (
    "ready_ps",
    "left_ps",
    "engine",
    "lane",
    "device",
    "retransmits",
    "clock_error_ps",
)


def format_measurement(flows: NamedFlows, measured: Measurement) -> str:
    """`RESULT_FIELDS` and `MEASURED_FIELDS`, in the order of the flows; empty where not applicable.

    ``status`` is ``completed`` or ``failed: reason``. See `Measurement` for the meaning of the columns.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*RESULT_FIELDS, *MEASURED_FIELDS))
    graph = flows.graph
    ends = (column.tolist() for column in (graph.src, graph.dst, graph.size_bytes))
    times = (column.tolist() for column in (measured.start_ps, measured.end_ps, measured.ready_ps, measured.left_ps))
    provenance = (measured.lane, measured.device, measured.retransmits.tolist(), measured.clock_error_ps.tolist())
    for flow_id, src, dst, size, start, end, ready, left, status, lane, device, resent, error in zip(
        flows.flow_ids, *ends, *times, measured.statuses(), *provenance, strict=True
    ):
        fct = end - start if start >= 0 and end >= 0 else ""
        happened = [at if at >= 0 else "" for at in (start, end, ready, left)]
        writer.writerow(
            (
                *(flow_id, src, dst, size, happened[0], happened[1], fct, status),
                *(happened[2], happened[3], measured.engine, lane, device, resent, error),
            )
        )
    return text.getvalue()
