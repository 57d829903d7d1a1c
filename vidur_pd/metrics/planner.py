"""What a planner did: the ``planner`` section of ``summary.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from netsim.units import PS_PER_S
from vidur_pd.cluster.planner.control import PlannerControl
from vidur_pd.cluster.planner.fleet import FleetChange
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.metrics.summary import FleetCount, PlannedPool, PlannerSummary

PS_PER_HOUR: Final = 3600 * PS_PER_S


def planner_summary(control: PlannerControl | None, end_ps: int) -> PlannerSummary | None:
    """Counts and held time until ``end_ps``; ``None`` without a planner."""
    if control is None:
        return None
    fleet, starting_ps = control.fleet, control.starting_ps
    pools = tuple(_pool(control, pool, end_ps) for pool in fleet.counts)
    return PlannerSummary(
        policy=control.plan.config.policy,
        decisions=control.decisions,
        gpus=fleet.gpus,
        gpu_hours=sum(pool.gpu_hours for pool in pools),
        all_gpu_hours=fleet.gpus * end_ps / PS_PER_HOUR,
        starting_s_mean=to_seconds(sum(starting_ps)) / len(starting_ps) if starting_ps else None,
        starting_s_max=to_seconds(max(starting_ps)) if starting_ps else None,
        weights_network_bytes=control.loader.network_bytes,
        weights_disk_bytes=control.loader.disk_bytes,
        pools=pools,
        counts=tuple(
            FleetCount(
                at_s=to_seconds(each.at_ps),
                pool=each.pool,
                serving=each.serving,
                starting=each.starting,
                draining=each.draining,
            )
            for each in fleet.changes
        ),
    )


def _pool(control: PlannerControl, name: str, end_ps: int) -> PlannedPool:
    counted, most = control.fleet.counts[name], control.plan.bounds[name].most
    gpus = most * control.fleet.gpus_per_instance(name)
    changes = [each for each in control.fleet.changes if each.pool == name]
    return PlannedPool(
        name=name,
        instances=most,
        gpus=gpus,
        serving_mean=_mean_serving(changes, end_ps),
        serving_most=max(each.serving for each in changes),
        starts=counted.starts,
        switches=counted.switches,
        stops=counted.stops,
        gpu_hours=counted.held_gpu_ps / PS_PER_HOUR,
        all_gpu_hours=gpus * end_ps / PS_PER_HOUR,
    )


def _mean_serving(changes: Sequence[FleetChange], end_ps: int) -> float | None:
    if not end_ps:
        return None
    ends_ps = [*(each.at_ps for each in changes[1:]), end_ps]
    held = sum(each.serving * (end - each.at_ps) for each, end in zip(changes, ends_ps, strict=True))
    return held / end_ps
