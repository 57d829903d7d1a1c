"""What faults and the planner do to instances and links, and who hears of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vidur_pd._core import Loop, RunningIteration
from vidur_pd.cluster.faults.script import FaultScript
from vidur_pd.execution.clock import EventQueue
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.metrics.links import CapacityChange
from vidur_pd.simulation.lifecycle import RequestLifecycle
from vidur_pd.simulation.state import SimulationState
from vidur_pd.workload.request import Request


class ClusterControl:
    """Passes changes of instances and links on to requests, transfers and the coupling."""

    def __init__(
        self,
        state: SimulationState,
        loop: Loop,
        queue: EventQueue,
        lifecycle: RequestLifecycle,
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._lifecycle = lifecycle
        self._instances = state.instances
        plan = state.plan
        self._faults = FaultScript(
            plan.faults, plan.config, plan.coupling, state.instances, state.network, state.fabric, queue, self
        )
        self._closed_by: dict[int, set[str]] = {}
        """What keeps an instance closed, by its index."""
        self.capacity_changes: list[CapacityChange] = []

    def schedule_faults(self) -> None:
        """To be called before anything else is scheduled."""
        self._faults.schedule()

    def collective_given_up(self, iteration: RunningIteration) -> None:
        """The network has given up a collective: its iteration comes to nothing."""
        instance = self._instances[iteration.instance]
        if all(running.number != iteration.number for running in instance.running_iterations):
            return  # the instance has failed since, and forgotten it
        self._lifecycle.break_off(iteration, "the network gave up a collective of its iteration")
        self._faults.collective_failed(instance)

    def halt(self, instance: Instance) -> list[Request]:
        return self._lifecycle.halt(instance)

    def instance_down(self, instance: Instance, lost: list[Request], reason: str) -> None:
        self._lifecycle.instance_down(instance, lost, reason)

    def set_open(self, instance: Instance, is_open: bool) -> None:
        self._set_open(instance, "faults", is_open)

    def set_serving(self, instance: Instance, serves: bool) -> None:
        """The planner lets the instance have requests, or none."""
        self._set_open(instance, "planner", serves)

    def _set_open(self, instance: Instance, by: str, is_open: bool) -> None:
        closed_by = self._closed_by.setdefault(instance.index, set())
        was_open = not closed_by
        (closed_by.discard if is_open else closed_by.add)(by)
        if was_open != (not closed_by):
            self._lifecycle.set_open(instance, is_open=not closed_by)

    def links_change(self) -> None:
        self._loop.traffic_changes(self._queue.now_ps)

    def capacity_change(self, links: Sequence[int], capacity_bps: Sequence[float]) -> None:
        now_ps = self._queue.now_ps
        self.capacity_changes += [CapacityChange(now_ps, *each) for each in zip(links, capacity_bps, strict=True)]
        self._loop.traffic_changes(now_ps)

    def collectives_change(self, instances: Iterable[Instance]) -> None:
        for instance in instances:
            instance.forget_communication()
