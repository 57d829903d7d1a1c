"""Which instances a change of links concerns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from netsim import Topology
from vidur_pd.execution.live_fabric import LiveFabric
from vidur_pd.instance import Instance


class Reach:
    """Finds instances by links, without a search through all of them.

    A link concerns an instance if it is on a shortest path between two of its GPUs. GPUs do not forward, so a link at
    a GPU is on paths of its own instance alone. Instances that something has forced onto longer ways, or cut into
    parts, may meet any link between switches, and are concerned by all of these.
    """

    def __init__(self, instances: Sequence[Instance], topology: Topology, fabric: LiveFabric) -> None:
        self._instances = instances
        self._topology = topology
        self._fabric = fabric
        self._detoured: set[int] = set()
        """Indices of instances."""

    def at(self, links: Iterable[int]) -> list[Instance]:
        """Instances with a GPU at one of the links."""
        return self._sorted({index for link in links for index in self._owners(link)})

    def concerned(self, links: Iterable[int]) -> list[Instance]:
        """Instances whose GPUs may reach each other otherwise, or at other rates, if these links change."""
        found: set[int] = set()
        for link in links:
            owners = self._owners(link)
            found.update(index for index in owners if index in self._detoured or link in self._links_of(index))
            if self._is_between_switches(link):
                found.update(self._users[link], self._detoured)
        return self._sorted(found)

    def note(self, instances: Iterable[Instance]) -> None:
        """Links that concern these instances have changed."""
        for instance in instances:
            is_detoured = self._fabric.is_detoured(instance.placement.gpus)
            (self._detoured.add if is_detoured else self._detoured.discard)(instance.index)

    def _sorted(self, indices: Iterable[int]) -> list[Instance]:
        return [self._instances[index] for index in sorted(indices)]

    def _links_of(self, index: int) -> frozenset[int]:
        return self._fabric.links_between(self._instances[index].placement.gpus)

    def _ends(self, link: int) -> tuple[int, int]:
        return int(self._topology.link_src[link]), int(self._topology.link_dst[link])

    def _is_between_switches(self, link: int) -> bool:
        return min(self._ends(link)) >= self._topology.gpus

    def _owners(self, link: int) -> list[int]:
        """Indices of the instances at the ends of a link."""
        return [self._owner[node] for node in self._ends(link) if node in self._owner]

    @cached_property
    def _owner(self) -> dict[int, int]:
        """By GPU."""
        return {gpu: instance.index for instance in self._instances for gpu in instance.placement.gpus}

    @cached_property
    def _users(self) -> defaultdict[int, list[int]]:
        """By link between switches: indices of the instances with shortest paths over it."""
        users: defaultdict[int, list[int]] = defaultdict(list)
        for instance in self._instances:
            if len(instance.placement.gpus) > 1:
                for link in self._links_of(instance.index):
                    if self._is_between_switches(link):
                        users[link].append(instance.index)
        return users
