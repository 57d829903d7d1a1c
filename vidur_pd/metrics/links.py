"""Columns of ``links.parquet``: bytes on links by class of traffic, in windows of equal width."""

from __future__ import annotations

from typing import Any

import numpy as np

from netsim import Topology
from netsim.topology import LinkKind
from vidur_pd._core import LinkLog
from vidur_pd.metrics.quantities import PS_PER_S

TRAFFIC = ("kv", "collective")
"""Order of the core's classes of traffic."""


def link_columns(log: LinkLog, topology: Topology) -> dict[str, Any]:
    """Rows for every (traffic, window, link) that carried something."""
    traffic, window, link, carried_bytes = log.rows()
    names = np.array(topology.node_name, dtype=object)
    return {
        "link": link,
        "src": names[topology.link_src[link]],
        "dst": names[topology.link_dst[link]],
        "kind": np.array([kind.name.lower() for kind in LinkKind], dtype=object)[topology.link_kind[link]],
        "capacity_bps": topology.capacity_bps[link],
        "traffic": np.array(TRAFFIC, dtype=object)[traffic],
        "window_start_s": window * (log.window_ps / PS_PER_S),
        "window_end_s": (window + 1) * (log.window_ps / PS_PER_S),
        "carried_bytes": carried_bytes,
    }
