"""The fabric of a run: its topology, the links that are down or slow, and the routes that follow from them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from netsim.backends.contract import FailsLinks, NetworkBackend
from netsim.errors import BackendError
from netsim.routing import Router
from netsim.topology import Topology

Gpus = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FabricState:
    """Links that are down or slow, compared with the topology as built."""

    down: frozenset[int] = frozenset()
    shares: frozenset[tuple[int, float]] = frozenset()
    """(link, share of its capacity) of slow links."""


INTACT = FabricState()


class Fabric:
    """The owner of the state of links; the network that carries the traffic follows it.

    Several faults may keep a link down or slow at a time. The link is up when none keeps it down, and has the product
    of the shares of capacity that they leave.

    Traffic among a group of GPUs keeps to the shortest paths between them, so its time depends on the links on these
    paths and on no others, as long as none of the GPUs needs a longer path than before. The traffic of a group that
    does is taken to depend on the state of all links.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._follower: weakref.ref[FailsLinks] | None = None
        self._failures: Counter[int] = Counter()
        self._slow_downs: dict[int, list[float]] = {}
        self._down: set[int] = set()
        self._shares: dict[int, float] = {}
        self._is_touched = np.zeros(topology.links, dtype=np.bool_)
        """[links] whether each is down or slow."""
        self._changes = 0
        self._between: dict[Gpus, NDArray[np.int64]] = {}
        self._met: dict[Gpus, tuple[int, FabricState]] = {}
        """By group: the number of changes so far when `state_among` last looked, and what it found."""

    def carry_with(self, network: NetworkBackend) -> None:
        """Makes a network follow the state of links from now on, in place of the one that did so before.

        Raises:
            BackendError: links of the network cannot fail.
        """
        if not isinstance(network, FailsLinks):
            raise BackendError(f"fabric: found {type(network).__name__}, expected a network whose links can fail")
        self._follower = weakref.ref(network)  # whoever uses the network owns it
        for link in sorted(self._down):
            network.set_link_up(link, False)
        for link, share in sorted(self._shares.items()):
            network.set_capacity_share(link, share)

    @property
    def _network(self) -> FailsLinks | None:
        return None if self._follower is None else self._follower()

    @cached_property
    def intact_router(self) -> Router:
        """Router over the topology as built."""
        return Router(self.topology)

    @cached_property
    def router(self) -> Router:
        """Router over the links that are up."""
        router = Router(self.topology)
        for link in sorted(self._down):
            router.set_link_up(link, False)
        return router

    @property
    def state(self) -> FabricState:
        """State of all links."""
        return FabricState(frozenset(self._down), frozenset(self._shares.items()))

    def is_up(self, link: int) -> bool:
        """Whether nothing keeps the link down."""
        return link not in self._down

    def capacity_bps(self, link: int) -> float:
        """Rate that the link can carry while it is up."""
        return self._shares.get(link, 1.0) * float(self.topology.capacity_bps[link])

    # Changes.

    def fail(self, links: Sequence[int]) -> list[int]:
        """Takes links down on behalf of one fault; returns those that were up."""
        failed = [link for link in links if self._count_failures(link, 1) == 1]
        for link in failed:
            self._set_link_up(link, False)
        return failed

    def repair(self, links: Sequence[int]) -> list[int]:
        """Ends one fault that kept the links down; returns those that are up again."""
        repaired = [link for link in links if self._count_failures(link, -1) == 0]
        for link in repaired:
            self._set_link_up(link, True)
        return repaired

    def slow_down(self, link: int, share: float) -> None:
        """Slows a link down to this share of what it has."""
        self._slow_downs.setdefault(link, []).append(share)
        self._set_share(link, prod(self._slow_downs[link], start=1.0))

    def speed_up(self, link: int, share: float) -> None:
        """Ends one `slow_down` of the link to this share."""
        self._slow_downs[link].remove(share)
        self._set_share(link, prod(self._slow_downs[link], start=1.0))

    def become(self, state: FabricState) -> None:
        """Brings all links into a state, whichever faults keep them in another."""
        present, shares = self.state, dict(state.shares)
        for link in sorted(present.down ^ state.down):
            self._set_link_up(link, link not in state.down)
        for link in sorted({link for link, _ in present.shares ^ state.shares}):
            self._set_share(link, shares.get(link, 1.0))

    def _count_failures(self, link: int, change: int) -> int:
        self._failures[link] += change
        return self._failures[link]

    def _set_link_up(self, link: int, is_up: bool) -> None:
        (self._down.discard if is_up else self._down.add)(link)
        if (network := self._network) is not None:
            network.set_link_up(link, is_up)
        if "router" in self.__dict__:  # made when somebody first asks
            self.router.set_link_up(link, is_up)
        self._touch(link)

    def _set_share(self, link: int, share: float) -> None:
        self._shares.pop(link, None)
        if share < 1:
            self._shares[link] = share
        if (network := self._network) is not None:
            network.set_capacity_share(link, share)
        self._touch(link)

    def _touch(self, link: int) -> None:
        self._is_touched[link] = link in self._down or link in self._shares
        self._changes += 1

    # Groups of GPUs.

    def connects(self, gpus: Gpus) -> bool:
        """Whether every GPU has a path to every other."""
        return not self._down or self.router.total_hops(gpus) is not None

    def is_detoured(self, gpus: Gpus) -> bool:
        """Whether some GPU has a longer path to another than in the topology as built, or none."""
        if self._down.isdisjoint(self._touched_between(gpus)):
            return False
        return self.router.total_hops(gpus) != self.intact_router.total_hops(gpus)

    def links_between(self, gpus: Gpus) -> NDArray[np.int64]:
        """Links, rising, on the shortest paths between the GPUs in the topology as built."""
        if gpus not in self._between:
            self._between[gpus] = self.intact_router.links_between(gpus)
        return self._between[gpus]

    def _touched_between(self, gpus: Gpus) -> list[int]:
        """Links of `links_between` that are down or slow."""
        links = self.links_between(gpus)
        touched: list[int] = links[self._is_touched[links]].tolist()
        return touched

    def state_among(self, gpus: Gpus) -> FabricState:
        """State of the links that the time of traffic among the GPUs depends on."""
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
            return self.state
        slow = ((link, self._shares[link]) for link in touched if link in self._shares)
        return FabricState(frozenset(self._down.intersection(touched)), frozenset(slow))
