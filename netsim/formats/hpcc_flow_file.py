"""HPCC's flow file: a count, then ``src dst priority dport bytes start_seconds`` per flow.

Source: ``simulation/README.md`` of the HPCC simulator (github.com/alibaba-edu/High-Precision-Congestion-Control). As
there, the k-th flow of a pair of nodes has source port 10000 + k, so ECMP hashes as in that simulator; a port of 100 is
the lower half of a flow label, others enter the upper half.
"""

from __future__ import annotations

from typing import Final

from boundary.errors import InputError
from boundary.numbers import MOST_INT64, whole_number
from netsim.flow import FlowGraph
from netsim.formats.flow_fields import labels_by_pair, time_ps

_DESTINATION_PORT: Final = 100
_FIELDS: Final = "src dst priority dport bytes start_seconds"


def read_hpcc_flows(text: str, source: str, nodes: int) -> tuple[tuple[str, ...], FlowGraph]:
    """Ids (the number of each flow, from 0) and flows; ``nodes`` is the number of nodes of the topology.

    Raises:
        InputError: naming ``source``, the line, the field, what was found and what was expected.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    count = whole_number(lines[0][1][0], f"{source} line {lines[0][0]} count", "a number of flows", 0, MOST_INT64)
    rows = [_row(fields, f"{source} line {number}", nodes) for number, fields in lines[1 : count + 1]]
    if len(rows) != count or len(lines) > count + 1:
        raise InputError(f"{source}: found {len(lines) - 1} flows, expected {count} (line {lines[0][0]})")
    src, dst, priority, port, size_bytes, ready_ps = zip(*rows, strict=True) if rows else ((),) * 6
    queue_pairs = labels_by_pair(list(zip(src, dst, strict=True)))
    labels = [
        ((to - _DESTINATION_PORT) % 2**16 << 16) + pair % 2**16 for to, pair in zip(port, queue_pairs, strict=True)
    ]
    graph = FlowGraph.from_lists(src, dst, size_bytes, ready_ps=ready_ps, flow_label=labels, priority=priority)
    return tuple(map(str, range(count))), graph


def _row(fields: list[str], where: str, nodes: int) -> tuple[int, int, int, int, int, int]:
    if len(fields) != len(_FIELDS.split()):
        raise InputError(f"{where}: found {len(fields)} fields, expected `{_FIELDS}`")
    return (
        whole_number(fields[0], f"{where} src", "a node", 0, nodes - 1),
        whole_number(fields[1], f"{where} dst", "a node", 0, nodes - 1),
        whole_number(fields[2], f"{where} priority", "a class", 1, 7),
        whole_number(fields[3], f"{where} dport", "a port", 0, 2**16 - 1),
        whole_number(fields[4], f"{where} bytes", "whole bytes", 0, MOST_INT64),
        time_ps(fields[5], f"{where} start_seconds", "s"),
    )
