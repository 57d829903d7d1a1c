"""What the fabric of a run could carry, and what its cables take with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from netsim import Topology
from netsim.topologies.cuts import MOST_LINKS, FabricGraph
from vidur_pd.metrics.summary import FabricLoss, FabricSummary


def fabric_summary(topology: Topology, prefill: Sequence[int], decode: Sequence[int]) -> FabricSummary | None:
    """For GPUs that only prefill and those that only decode; ``None`` without a fabric, or with too large a one."""
    graph = FabricGraph(topology)
    if not graph.links or graph.links > MOST_LINKS or topology.gpus <= topology.gpus_per_node:
        return None
    is_apart = bool(prefill) and bool(decode)
    ends = (prefill[0], decode[0]) if is_apart else (0, topology.gpus - 1)
    return FabricSummary(
        halves_bps=graph.halves_bps(),
        prefill_to_decode_bps=graph.most_bps(prefill, decode) if is_apart else None,
        shortest_ways=graph.shortest_ways(*ends),
        disjoint_ways=graph.disjoint_ways(*ends),
        losses=tuple(FabricLoss(**asdict(loss)) for loss in graph.losses()),
    )
