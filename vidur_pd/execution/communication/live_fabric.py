"""The links of a run as they are: which have failed or are slow, and what of that some GPUs can meet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from netsim import Topology
from netsim.routing import Router as PathFinder

Gpus = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FabricState:
    """What has become of links since the topology was built."""

    down: frozenset[int] = frozenset()
    shares: frozenset[tuple[int, float]] = frozenset()
    """(link, share of its capacity) of slow links."""


INTACT = FabricState()


class LiveFabric:
    """Changes of links, and what they are to groups of GPUs.

    Traffic between some GPUs keeps to the shortest paths between them. As long as no group has to go a longer way, it
    meets the state of the links on these paths and of no others, whatever happens elsewhere. A group that goes a longer
    way is said to meet the state of all links.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._down: set[int] = set()
        self._shares: dict[int, float] = {}
        self._is_touched = np.zeros(topology.links, dtype=np.bool_)
        """[links] whether each has failed or is slow."""
        self._changes = 0
        self._between: dict[Gpus, NDArray[np.int64]] = {}
        self._met: dict[Gpus, tuple[int, FabricState]] = {}
        """State that a group meets, and after how many changes that was found."""

    @cached_property
    def _whole(self) -> PathFinder:
        """Paths before anything had failed."""
        return PathFinder(self.topology)

    @cached_property
    def _paths(self) -> PathFinder:
        """Paths as they are; made when the first link fails."""
        return PathFinder(self.topology)

    def set_link_up(self, link: int, is_up: bool) -> None:
        """A link fails or returns."""
        (self._down.discard if is_up else self._down.add)(link)
        self._paths.set_link_up(link, is_up)
        self._touch(link)

    def set_share(self, link: int, share: float) -> None:
        """A link keeps a share of its capacity; 1: all of it."""
        self._shares.pop(link, None)
        if share < 1:
            self._shares[link] = share
        self._touch(link)

    def _touch(self, link: int) -> None:
        self._is_touched[link] = link in self._down or link in self._shares
        self._changes += 1

    def connects(self, gpus: Gpus) -> bool:
        """Whether every GPU has a path to every other."""
        return not self._down or self._paths.total_hops(gpus) is not None

    def is_detoured(self, gpus: Gpus) -> bool:
        """Whether some GPU has a longer way to another than before, or none."""
        if self._down.isdisjoint(self._touched_between(gpus)):
            return False
        return self._paths.total_hops(gpus) != self._whole.total_hops(gpus)

    def links_between(self, gpus: Gpus) -> NDArray[np.int64]:
        """Rising: links on the shortest paths between the GPUs before anything had failed."""
        if gpus not in self._between:
            self._between[gpus] = self._whole.links_between(gpus)
        return self._between[gpus]

    def _touched_between(self, gpus: Gpus) -> list[int]:
        """Those of `links_between` that have failed or are slow."""
        links = self.links_between(gpus)
        touched: list[int] = links[self._is_touched[links]].tolist()
        return touched

    def state_among(self, gpus: Gpus) -> FabricState:
        """What has become of the links that traffic between the GPUs can meet."""
        if not self._down and not self._shares:
            return INTACT
        after, state = self._met.get(gpus, (-1, INTACT))
        if after != self._changes:
            state = self._find_state(gpus)
            self._met[gpus] = self._changes, state
        return state

    def _find_state(self, gpus: Gpus) -> FabricState:
        touched = self._touched_between(gpus)
        if not touched:
            return INTACT
        if self.is_detoured(gpus):
            return FabricState(frozenset(self._down), frozenset(self._shares.items()))
        slow = ((link, self._shares[link]) for link in touched if link in self._shares)
        return FabricState(frozenset(self._down.intersection(touched)), frozenset(slow))
