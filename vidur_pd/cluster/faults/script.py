"""Makes the faults of a plan happen to instances, links and routing.

Faults may overlap: a link is down while any fault keeps it down, slow-downs multiply, an instance is in service when
nothing keeps it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from netsim import Fabric, NetworkBackend, PausesLinks, capabilities_of
from vidur_pd.cluster.faults.plan import Draining, Effect, Fault, InstanceDown, LinksDown, LinksSlow, Slowness, Storm
from vidur_pd.cluster.faults.reach import Reach
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.coupling.plan import CouplingPlan, Treatment
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.execution.network_clock import catch_up
from vidur_pd.workload.request import Request

SEVERED = "its GPUs cannot reach each other"
Change = Callable[[], None]


class Cluster(Protocol):
    """What hears of faults."""

    def halt(self, instance: Instance) -> list[Request]:
        """The instance fails now; returns the requests that its ranks had alone."""
        ...

    def instance_down(self, instance: Instance, lost: list[Request], reason: str) -> None:
        """An instance has failed; ``lost`` are the requests that its ranks had alone."""
        ...

    def set_open(self, instance: Instance, is_open: bool) -> None:
        """The instance gets new requests from now on, or gets none."""
        ...

    def links_change(self) -> None:
        """Links have failed or returned."""
        ...

    def capacity_change(self, links: Sequence[int], capacity_bps: Sequence[float]) -> None:
        """Links have another capacity from now on."""
        ...

    def collectives_change(self, instances: Iterable[Instance]) -> None:
        """Links between GPUs of these instances have changed: collectives that are priced take what they take now."""
        ...


class FaultScript:
    """Schedules the beginning and the end of every fault."""

    def __init__(
        self,
        faults: Sequence[Fault],
        config: SimulationConfig,
        coupling: CouplingPlan,
        instances: Sequence[Instance],
        network: NetworkBackend,
        fabric: Fabric,
        queue: EventQueue,
        cluster: Cluster,
    ) -> None:
        self._faults, self._instances = faults, instances
        self._network, self._fabric = network, fabric
        self._reach = Reach(instances, fabric)
        self._queue = queue
        self._cluster = cluster
        self._drains_degraded = config.recovery.degraded == "drain"
        self._prices_collectives = coupling.collectives is not Treatment.SIMULATED
        is_delayed = capabilities_of(config.network.backend).simulates_packets and not self._prices_collectives
        self._reroute_ps = config.network.roce.reroute_delay if is_delayed else 0
        self._changes_to_route = 0
        """Changes of links that routing has not heard of yet."""
        self._unheard: set[int] = set()
        """Indices of instances that these concern."""
        self._out_of_service: Counter[int] = Counter()
        """By instance: faults that keep it down; the same for draining ones."""
        self._draining: Counter[int] = Counter()
        self._closed: set[int] = set()
        self._severed: set[int] = set()
        self._slowness: dict[int, list[float]] = {instance.index: [] for instance in self._instances}
        self._storms: Counter[tuple[int, int]] = Counter()

    def schedule(self) -> None:
        """To be called before anything else is scheduled: at one instant, faults come before decisions to launch."""
        for fault in self._faults:
            self._queue.schedule(fault.begin_ps, Priority.DISPATCH, self._change(fault, begins=True))
            if fault.until_ps is not None:
                self._queue.schedule(fault.until_ps, Priority.DISPATCH, self._change(fault, begins=False))

    def collective_failed(self, instance: Instance) -> None:
        """The network has given up a collective: the instance is down for as long as it cannot communicate."""
        if self._changes_to_route:
            self._unheard.add(instance.index)
        elif self._fabric.connects(instance.placement.all_gpus):
            return
        self._sever(instance)

    def _change(self, fault: Fault, *, begins: bool) -> Change:
        def change() -> None:
            catch_up(self._network, self._queue.now_ps)
            self._apply(fault, fault.effect, begins)

        return change

    def _apply(self, fault: Fault, effect: Effect, begins: bool) -> None:
        match effect:
            case InstanceDown():
                self._count_down(self._instances[effect.instance], begins, f"{fault.target} failed")
            case Draining():
                self._count_draining(self._instances[effect.instance], begins)
            case Slowness():
                self._slow_compute(self._instances[effect.instance], effect.factor, begins)
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
            lost = self._cluster.halt(instance)
            self._open_or_close(instance)
            self._cluster.instance_down(instance, lost, reason)
        elif not self._out_of_service[instance.index]:
            instance.resume()
            self._open_or_close(instance)

    def _count_draining(self, instance: Instance, begins: bool) -> None:
        self._draining[instance.index] += 1 if begins else -1
        self._open_or_close(instance)

    def _open_or_close(self, instance: Instance) -> None:
        is_open = instance.is_up and not self._draining[instance.index]
        if is_open != (instance.index in self._closed):
            return
        (self._closed.discard if is_open else self._closed.add)(instance.index)
        self._cluster.set_open(instance, is_open)

    def _slow_compute(self, instance: Instance, factor: float, begins: bool) -> None:
        factors = self._slowness[instance.index]
        (factors.append if begins else factors.remove)(factor)
        instance.set_compute_slowdown(float(np.prod(factors)))
        if self._drains_degraded:
            self._count_draining(instance, begins)

    def _degrade(self, links: Sequence[int], begins: bool) -> None:
        """Instances with a GPU at one of the links are degraded, or a fault less so."""
        if not self._drains_degraded:
            return
        for instance in self._reach.at(links):
            self._count_draining(instance, begins)

    # Links.

    def _fail_links(self, links: Sequence[int], begins: bool) -> None:
        changed = self._fabric.fail(links) if begins else self._fabric.repair(links)
        if not changed:
            return
        self._cluster.links_change()
        self._unheard.update(instance.index for instance in self._tell(changed))
        self._changes_to_route += 1
        if self._reroute_ps:
            self._queue.schedule(self._queue.now_ps + self._reroute_ps, Priority.DISPATCH, self._notice)
        else:
            self._notice()

    def _tell(self, links: Sequence[int]) -> list[Instance]:
        """Tells of links that are other than before; returns the instances that they concern."""
        affected = self._reach.affected(links)
        self._reach.note(affected)
        if self._prices_collectives and affected:
            self._cluster.collectives_change(affected)
        return affected

    def _notice(self) -> None:
        """Routing has heard of a change of links, which may have cut instances into parts, or joined them."""
        self._changes_to_route -= 1
        if self._changes_to_route:
            return
        affected, self._unheard = sorted(self._unheard), set()
        for instance in (self._instances[index] for index in affected):
            if not self._fabric.connects(instance.placement.all_gpus):
                if self._prices_collectives:
                    self._sever(instance)
            elif instance.index in self._severed:
                self._severed.discard(instance.index)
                self._count_down(instance, begins=False, reason=SEVERED)

    def _sever(self, instance: Instance) -> None:
        if instance.index not in self._severed:
            self._severed.add(instance.index)
            self._count_down(instance, begins=True, reason=SEVERED)

    def _slow_links(self, effect: LinksSlow, begins: bool) -> None:
        for link in effect.links:
            (self._fabric.slow_down if begins else self._fabric.speed_up)(link, effect.share)
        self._cluster.capacity_change(effect.links, [self._fabric.capacity_bps(link) for link in effect.links])
        self._tell(effect.links)

    def _storm(self, effect: Storm, begins: bool) -> None:
        for link in effect.links:
            key = (link, effect.priority)
            self._storms[key] += 1 if begins else -1
            if self._storms[key] == int(begins):
                assert isinstance(self._network, PausesLinks)
                self._network.set_storm(link, effect.priority, begins)
