"""Makes the faults of a plan happen to instances, links and routing.

Faults may overlap: a link is down while any fault keeps it down, slow-downs multiply, an instance is in service when
nothing keeps it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Protocol, cast

import numpy as np

from netsim import FailsLinks, NetworkBackend, NoPath, Router, Topology
from netsim.packet import PacketBackend
from vidur_pd.events import EventQueue, Priority
from vidur_pd.faults.plan import Draining, Effect, Fault, InstanceDown, LinksDown, LinksSlow, Slowness, Storm
from vidur_pd.instance import Instance
from vidur_pd.request import Request

SEVERED = "its GPUs cannot reach each other"
Change = Callable[[], None]


class Cluster(Protocol):
    """What hears of faults."""

    def instance_down(self, instance: Instance, lost: list[Request], reason: str) -> None:
        """An instance has failed; ``lost`` are the requests that its ranks had alone."""
        ...

    def set_open(self, instance: Instance, is_open: bool) -> None:
        """The instance gets new requests from now on, or gets none."""
        ...

    def links_change(self, links: Sequence[int], *, is_up: bool, apply: Change) -> None:
        """``apply`` makes links fail or return; what they have carried until now is booked before."""
        ...

    def capacity_changes(self, links: Sequence[int], capacity_bps: Sequence[float]) -> None:
        """Links have another capacity from now on."""
        ...


class FaultScript:
    """Schedules the beginning and the end of every fault."""

    def __init__(
        self,
        faults: Sequence[Fault],
        instances: Sequence[Instance],
        network: tuple[NetworkBackend, Topology],
        cluster: Cluster,
        *,
        drains_degraded: bool,
        prices_collectives: bool,
    ) -> None:
        """``drains_degraded``: instances that are slow, or with a faulty cable at a GPU, get no new requests.
        ``prices_collectives``: collectives are no flows, so that a failed link has to be noticed here.
        """
        self._faults = faults
        self._instances = instances
        self._network, self._topology = network
        self._cluster = cluster
        self._drains_degraded = drains_degraded
        self._prices_collectives = prices_collectives
        self._paths = Router(self._topology)
        self._out_of_service: Counter[int] = Counter()
        """By instance: faults that keep it down; the same for draining ones."""
        self._draining: Counter[int] = Counter()
        self._severed: set[int] = set()
        self._slowness: dict[int, list[float]] = {instance.index: [] for instance in instances}
        self._links_down: Counter[int] = Counter()
        self._link_shares: dict[int, list[float]] = {}
        self._storms: Counter[tuple[int, int]] = Counter()

    def schedule(self, queue: EventQueue) -> None:
        """To be called before anything else is scheduled: at one instant, faults come before decisions to launch."""
        for fault in self._faults:
            queue.schedule(fault.begin_ps, Priority.DISPATCH, self._change(queue, fault, begins=True))
            if fault.until_ps is not None:
                queue.schedule(fault.until_ps, Priority.DISPATCH, self._change(queue, fault, begins=False))

    def collective_failed(self, instance: Instance) -> None:
        """The network has given up a collective: the instance is down for as long as its GPUs are cut off."""
        if self._links_down and not self._is_connected(instance):
            self._sever(instance)

    def _change(self, queue: EventQueue, fault: Fault, *, begins: bool) -> Change:
        def change() -> None:
            if self._network.now_ps < queue.now_ps:
                completions = self._network.advance(queue.now_ps)
                assert not completions, "the network had nothing to do before this instant"
            self._apply(fault, fault.effect, begins)

        return change

    def _apply(self, fault: Fault, effect: Effect, begins: bool) -> None:
        match effect:
            case InstanceDown():
                self._count_down(self._instances[effect.instance], begins, f"{fault.target} failed")
            case Draining():
                self._count_draining(self._instances[effect.instance], begins)
            case Slowness():
                self._pace(self._instances[effect.instance], effect.factor, begins)
            case LinksDown():
                self._degrade(effect.links, begins)
                self._fail_links(effect.links, begins)
            case LinksSlow():
                self._degrade(effect.links, begins)
                self._slow_links(effect, begins)
            case Storm():
                self._degrade(effect.links, begins)
                self._storm(effect, begins)

    # Instances.

    def _count_down(self, instance: Instance, begins: bool, reason: str) -> None:
        self._out_of_service[instance.index] += 1 if begins else -1
        if begins and instance.is_up:
            lost = instance.halt()
            self._open_or_close(instance)
            self._cluster.instance_down(instance, lost, reason)
        elif not self._out_of_service[instance.index]:
            instance.resume()
            self._open_or_close(instance)

    def _count_draining(self, instance: Instance, begins: bool) -> None:
        self._draining[instance.index] += 1 if begins else -1
        self._open_or_close(instance)

    def _open_or_close(self, instance: Instance) -> None:
        self._cluster.set_open(instance, instance.is_up and not self._draining[instance.index])

    def _pace(self, instance: Instance, factor: float, begins: bool) -> None:
        factors = self._slowness[instance.index]
        (factors.append if begins else factors.remove)(factor)
        instance.set_pace(float(np.prod(factors)))
        if self._drains_degraded:
            self._count_draining(instance, begins)

    def _degrade(self, links: Sequence[int], begins: bool) -> None:
        """Instances with a GPU at one of the links are degraded, or a fault less so."""
        if not self._drains_degraded:
            return
        ends = set(self._topology.link_src[list(links)].tolist()) | set(self._topology.link_dst[list(links)].tolist())
        for instance in self._instances:
            if ends.intersection(instance.placement.gpus):
                self._count_draining(instance, begins)

    # Links.

    def _fail_links(self, links: Sequence[int], begins: bool) -> None:
        changed = []
        for link in links:
            self._links_down[link] += 1 if begins else -1
            if self._links_down[link] == int(begins):
                changed.append(link)
        self._links_down = +self._links_down
        network = cast(FailsLinks, self._network)

        def apply() -> None:
            for link in changed:
                self._paths.set_link_up(link, not begins)
                network.set_link_up(link, not begins)

        self._cluster.links_change(changed, is_up=not begins, apply=apply)
        for instance in self._instances:
            self._notice(instance, begins)

    def _notice(self, instance: Instance, begins: bool) -> None:
        """Whether links have cut an instance into parts, or joined it."""
        if begins and self._prices_collectives and not self._is_connected(instance):
            self._sever(instance)
        elif instance.index in self._severed and self._is_connected(instance):
            self._severed.discard(instance.index)
            self._count_down(instance, begins=False, reason=SEVERED)

    def _sever(self, instance: Instance) -> None:
        if instance.index not in self._severed:
            self._severed.add(instance.index)
            self._count_down(instance, begins=True, reason=SEVERED)

    def _is_connected(self, instance: Instance) -> bool:
        """Whether every GPU of the instance has a path to every other."""
        try:
            for src, dst in permutations(instance.placement.gpus, 2):
                self._paths.route(src, dst)
        except NoPath:
            return False
        return True

    def _slow_links(self, effect: LinksSlow, begins: bool) -> None:
        capacities = []
        for link in effect.links:
            shares = self._link_shares.setdefault(link, [])
            (shares.append if begins else shares.remove)(effect.share)
            share = float(np.prod(shares))
            cast(FailsLinks, self._network).set_capacity_share(link, share)
            capacities.append(share * float(self._topology.capacity_bps[link]))
        self._cluster.capacity_changes(effect.links, capacities)

    def _storm(self, effect: Storm, begins: bool) -> None:
        for link in effect.links:
            key = (link, effect.priority)
            self._storms[key] += 1 if begins else -1
            if self._storms[key] == int(begins):
                cast(PacketBackend, self._network).set_storm(link, effect.priority, begins)
