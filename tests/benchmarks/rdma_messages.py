"""Messages per second between two agents on loopback: ``python -m tests.benchmarks.rdma_messages``."""

from __future__ import annotations

import sys

from netsim import FlowGraph
from netsim.backends.rdma.hosts import Hosts
from netsim.backends.rdma.session import Session

FLOWS = 200_000
SIZES_BYTES = (8, 64, 512, 4096)


def main() -> None:
    agents = [{"nodes": 0, "device": "lo"}, {"nodes": 1, "device": "lo"}]
    for size_bytes in SIZES_BYTES:
        graph = FlowGraph.from_lists([0] * FLOWS, [1] * FLOWS, [size_bytes] * FLOWS)
        with Session(Hosts.model_validate({"transports": "tcp", "agents": agents})) as session:
            makespans_s = [session.execute(graph).end_ps.max() / 1e12 for _ in range(3)]
        rates = ", ".join(f"{FLOWS / makespan_s:,.0f}" for makespan_s in makespans_s)
        sys.stdout.write(f"{size_bytes:5d} bytes: {rates} messages/s\n")


if __name__ == "__main__":
    main()
