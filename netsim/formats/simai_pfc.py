"""SimAI's and HPCC's text of PFC frames: ``time_ns node_id node_type interface type`` per frame, in order.

A frame is recorded where it is received: ``node_id`` is who has to pause, or may go on, on its ``interface``.
Interfaces count from 1 in the order of the node's links in the topology, as in ns-3, where 0 is the loopback.
``node_type`` is 0 for a host, 1 for a switch, 2 for an NVSwitch; ``type`` is 1 for a pause and 0 for a resume. The
traffic class is not in the format.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from netsim.backends.packet.backend import PauseEvent
from netsim.topology import NodeKind, Topology
from netsim.units import PS_PER_NS

_NODE_TYPES = {NodeKind.GPU: 0, NodeKind.NVSWITCH: 2}
_SWITCH = 1


def pfc_text(events: Iterable[PauseEvent], topology: Topology) -> str:
    """The file."""
    sender, interface = topology.link_src.tolist(), interfaces(topology).tolist()
    types = [_NODE_TYPES.get(NodeKind(kind), _SWITCH) for kind in topology.node_kind.tolist()]
    return "".join(
        f"{event.at_ps // PS_PER_NS} {sender[event.link]} {types[sender[event.link]]} {interface[event.link]} "
        f"{int(event.is_pause)}\n"
        for event in events
    )


def interfaces(topology: Topology) -> NDArray[np.int64]:
    """[links] number of each link among those that leave its node, from 1."""
    order = np.argsort(topology.link_src, kind="stable")
    sorted_src = topology.link_src[order]
    first = np.searchsorted(sorted_src, sorted_src, side="left")
    number = np.empty(topology.links, dtype=np.int64)
    number[order] = np.arange(topology.links) - first + 1
    return number
