"""Questions about a fabric as a graph, which no traffic answers: what fits through it, over how many ways, and what a
cable takes with it.

Bounds are those of maximum flows over all links at their capacity, however a network would route: no routing carries
more. What NVLink and PCIe carry inside servers is in none of them, and GPUs do not forward. A link that stands for a
bundle of cables, as uplinks of rails do, is lost as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from netsim.topology import LinkKind, Topology

if TYPE_CHECKING:
    import networkx

MOST_LINKS: Final = 3_000
"""Of a fabric, in both directions: maximum flows through larger ones take seconds."""
SOURCE, SINK = -1, -2
"""Nodes that stand for all GPUs of a side."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Cables of one kind; the loss of any of them cuts so many GPUs off from other servers."""

    kind: str
    cables: int
    gpus: int


class FabricGraph:
    """The links between servers as a graph: parallel ones are one, with their capacities added up."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        is_between = np.isin(topology.link_kind, (LinkKind.NIC, LinkKind.FABRIC))
        columns = (topology.link_src, topology.link_dst, topology.capacity_bps, topology.link_kind)
        self._rows = list(zip(*(column[is_between].tolist() for column in columns), strict=True))

    @property
    def links(self) -> int:
        return len(self._rows)

    def most_bps(self, senders: Iterable[int], receivers: Iterable[int]) -> int:
        """What GPUs could send to others at most, all at once: the minimum cut between them."""
        import networkx

        graph = self._between(set(senders), set(receivers))
        for gpu in senders:
            graph.add_edge(SOURCE, gpu)  # without a capacity it has any
        for gpu in receivers:
            graph.add_edge(gpu, SINK)
        return int(networkx.maximum_flow_value(graph, SOURCE, SINK))

    def halves_bps(self) -> int:
        """What the first half of the servers could send to the second at most. The bisection bandwidth is that of the
        worst halves, and no more than this."""
        gpus, size = self._topology.gpus, self._topology.gpus_per_node
        middle = gpus // size // 2 * size
        return self.most_bps(range(middle), range(middle, gpus)) if middle else 0

    def disjoint_ways(self, src: int, dst: int) -> int:
        """Ways from one GPU to another that have no cable in common."""
        import networkx

        graph = self._between({src}, {dst})
        if not self._leads(graph, src, dst):
            return 0
        return int(networkx.maximum_flow_value(graph, src, dst, capacity="cables"))

    def shortest_ways(self, src: int, dst: int) -> int:
        """Shortest ways from one GPU to another, among which ECMP chooses; parallel cables count each."""
        import networkx

        graph = self._between({src}, {dst})
        if not self._leads(graph, src, dst):
            return 0
        far = networkx.single_source_shortest_path_length(graph, src)
        ways = Counter({src: 1})
        for node in sorted(far, key=far.__getitem__):
            for following, cable in graph[node].items():
                if far[following] == far[node] + 1:
                    ways[following] += ways[node] * cable["cables"]
        return ways[dst]

    def losses(self) -> list[Loss]:
        """Cables whose loss cuts GPUs off, by kind and by how many it cuts off."""
        import networkx

        graph: networkx.Graph[int] = networkx.Graph()
        links = Counter(_pair(src, dst) for src, dst, *_ in self._rows)
        graph.add_edges_from(links)
        kinds = {_pair(src, dst): LinkKind(kind).name.lower() for src, dst, _, kind in self._rows}
        found: Counter[tuple[str, int]] = Counter()
        for ends in cast(Iterable[tuple[int, int]], networkx.bridges(graph)):  # typed as nodes
            pair = _pair(*ends)
            if links[pair] == 2:  # one cable: a link each way
                found[kinds[pair], self._cut_off(graph, pair)] += 1
        return [Loss(kind, number, gpus) for (kind, gpus), number in sorted(found.items()) if gpus]

    def _cut_off(self, graph: networkx.Graph[int], pair: tuple[int, int]) -> int:
        """GPUs on the smaller side of a cable."""
        import networkx

        if pair[0] < self._topology.gpus and graph.degree(pair[0]) == 1:  # its only NIC
            return 1
        parts = graph.copy()
        parts.remove_edge(*pair)
        sides = [networkx.node_connected_component(parts, end) for end in pair]
        return min(sum(node < self._topology.gpus for node in side) for side in sides)

    def _between(self, senders: set[int], receivers: set[int]) -> networkx.DiGraph[int]:
        """Switches, and what enters from senders and leaves to receivers."""
        import networkx

        gpus = self._topology.gpus
        graph: networkx.DiGraph[int] = networkx.DiGraph()
        for src, dst, bps, _ in self._rows:
            if (src < gpus and src not in senders) or (dst < gpus and dst not in receivers):
                continue
            known = graph.get_edge_data(src, dst) or {"capacity": 0, "cables": 0}
            graph.add_edge(src, dst, capacity=known["capacity"] + bps, cables=known["cables"] + 1)
        return graph

    @staticmethod
    def _leads(graph: networkx.DiGraph[int], src: int, dst: int) -> bool:
        import networkx

        return src in graph and dst in graph and networkx.has_path(graph, src, dst)


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)
