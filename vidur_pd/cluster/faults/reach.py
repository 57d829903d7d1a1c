"""Instances that a change of links reaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from netsim import Fabric
from vidur_pd.execution.instances.instance import Instance


class Reach:
    """Finds instances by links, without a search through all of them.

    A link reaches an instance if it is on a shortest path between two of its GPUs. GPUs do not forward, so a link at
    a GPU is on paths of its own instance alone. Instances that something has forced onto longer ways, or cut into
    parts, may meet any link between switches, and are reached by all of these.
    """

    def __init__(self, instances: Sequence[Instance], fabric: Fabric) -> None:
        self._instances = instances
        self._topology = fabric.topology
        self._fabric = fabric
        self._detoured: set[int] = set()
        """Indices of instances."""

    def at(self, links: Iterable[int]) -> list[Instance]:
        """Instances with a GPU at one of the links."""
        return self._sorted({index for link in links for index in self._owners(link)})

    def affected(self, links: Iterable[int]) -> list[Instance]:
        """Instances whose GPUs may reach each other otherwise, or at other rates, if these links change."""
        found: set[int] = set()
        for link in links:
            if self._is_between_switches[link]:
                used, users = self._uses
                first, last = np.searchsorted(used, (link, link + 1))
                found.update(users[first:last].tolist(), self._detoured)
            else:
                owners = self._owners(link)
                found.update(index for index in owners if index in self._detoured or link in self._links_of(index))
        return self._sorted(found)

    def note(self, instances: Iterable[Instance]) -> None:
        """Links that concern these instances have changed."""
        for instance in instances:
            is_detoured = self._fabric.is_detoured(instance.placement.all_gpus)
            (self._detoured.add if is_detoured else self._detoured.discard)(instance.index)

    def _sorted(self, indices: Iterable[int]) -> list[Instance]:
        return [self._instances[index] for index in sorted(indices)]

    def _links_of(self, index: int) -> NDArray[np.int64]:
        return self._fabric.links_between(self._instances[index].placement.all_gpus)

    def _owners(self, link: int) -> list[int]:
        """Indices of the instances at the ends of a link."""
        ends = int(self._topology.link_src[link]), int(self._topology.link_dst[link])
        return [index for node in ends for index in self._owner.get(node, ())]

    @cached_property
    def _owner(self) -> dict[int, list[int]]:
        """By GPU; two where a planner switches roles."""
        owners: dict[int, list[int]] = {}
        for instance in self._instances:
            for gpu in instance.placement.all_gpus:
                owners.setdefault(gpu, []).append(instance.index)
        return owners

    @cached_property
    def _is_between_switches(self) -> NDArray[np.bool_]:
        """[links]"""
        return np.minimum(self._topology.link_src, self._topology.link_dst) >= self._topology.gpus

    @cached_property
    def _uses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[pairs] links between switches, rising, and the index of an instance with shortest paths over them."""
        several = [instance for instance in self._instances if len(instance.placement.all_gpus) > 1]
        nothing = np.zeros(0, dtype=np.int64)
        of_each = [self._links_of(instance.index) for instance in several]
        of_each = [links[self._is_between_switches[links]] for links in of_each]
        users = [np.full(len(links), instance.index) for links, instance in zip(of_each, several, strict=True)]
        links = np.concatenate([nothing, *of_each])
        order = np.argsort(links, kind="stable")
        return links[order], np.concatenate([nothing, *users])[order]
