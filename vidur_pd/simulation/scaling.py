"""The planner of a run, joined with what it plans."""

from __future__ import annotations

from vidur_pd._core import Loop
from vidur_pd.cluster.planner.control import PlannerControl
from vidur_pd.cluster.planner.fleet import Unit
from vidur_pd.cluster.planner.plan import FleetPlan
from vidur_pd.cluster.planner.rates import PricedRates
from vidur_pd.cluster.planner.weights import WeightLoader
from vidur_pd.execution.clock import EventQueue
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.simulation.cluster_control import ClusterControl
from vidur_pd.simulation.lifecycle import RequestLifecycle
from vidur_pd.simulation.state import SimulationState


class PlannedCluster:
    """The cluster as a planner acts on it."""

    def __init__(
        self, state: SimulationState, loop: Loop, lifecycle: RequestLifecycle, control: ClusterControl
    ) -> None:
        self._network, self._loop, self._lifecycle = state.network, loop, lifecycle
        self.set_serving = control.set_serving

    @property
    def unfinished(self) -> int:
        return self._lifecycle.unfinished

    @property
    def is_at_rest(self) -> bool:
        return self._loop.next_event_ps() is None and self._network.next_event_ps() is None

    def hands_over(self, instance: Instance) -> bool:
        return self._lifecycle.hand_over.involves(instance)

    def switch_off(self, instance: Instance) -> None:
        if instance.is_up:  # one that has failed has nothing any more, and comes back when the fault is over
            lost = self._lifecycle.halt(instance)
            assert not lost, f"{instance.name} is switched off with requests"
            instance.resume()


def planner_control(
    state: SimulationState, loop: Loop, queue: EventQueue, lifecycle: RequestLifecycle, control: ClusterControl
) -> PlannerControl | None:
    """The planner of a run, if it has one."""
    plan = state.plan
    if plan.fleet is None:
        return None
    pools = plan.pools

    def weights_bytes(instance: Instance) -> int:
        return pools[instance.placement.pool].weights_bytes

    loader = WeightLoader(plan.fleet.config.startup, weights_bytes, plan.topology, state.network, loop, queue)
    return PlannerControl(
        plan.fleet,
        _units(plan.fleet, state.instances),
        {name: pools[name].max_model_len for name in plan.fleet.bounds},
        PricedRates(plan),
        loader,
        queue,
        PlannedCluster(state, loop, lifecycle, control),
    )


def _units(fleet: FleetPlan, instances: tuple[Instance, ...]) -> list[Unit]:
    """Instances that are planned, those on the same GPUs together."""
    by_gpus: dict[tuple[int, ...], list[Instance]] = {}
    for instance in instances:
        if instance.placement.pool in fleet.bounds:
            by_gpus.setdefault(instance.placement.all_gpus, []).append(instance)
    return [Unit(tuple(roles), roles[0]) for roles in by_gpus.values()]
