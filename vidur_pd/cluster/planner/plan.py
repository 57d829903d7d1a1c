"""The fleet of a configuration: bounds of its pools, and which of them are two roles of the same GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from boundary.errors import InputError
from vidur_pd.cluster.planner.planner import options_of, planner_class
from vidur_pd.config import PoolConfig, SimulationConfig
from vidur_pd.config.planner import PlannerConfig


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a pool: instances at least, at most, and at the beginning."""

    least: int
    most: int
    initial: int


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Fleet of a planner, as configured: what no run changes of it."""

    config: PlannerConfig
    bounds: dict[str, Bounds]
    """By name, of the pools that are planned."""
    twins: dict[str, str]
    """{pool: pool on whose GPUs it stands}; empty where each has GPUs of its own."""


def plan_fleet(config: SimulationConfig) -> FleetPlan | None:
    """The fleet of a configuration, ``None`` without a planner.

    Raises: InputError, for pools that are not there, bounds that do not fit, roles that cannot be switched, and what
    cannot be planned.
    """
    planner = config.planner
    if planner is None:
        return None
    options_of(planner_class(planner.policy), planner)
    if config.routing.is_splitwise:
        raise InputError("planner: found with routing.policy splitwise, which moves machines between pools itself")
    pools = {pool.name: pool for pool in config.cluster.pools}
    for name in planner.pools:
        if name not in pools:
            raise InputError(f"planner.pools: found {name!r}, expected {' or '.join(pools)}")
    twins = _twins(config, planner)
    bounds = {name: _bounds(planner, pools[name], is_shared=bool(twins)) for name in planner.pools}
    _check_together(bounds, bool(twins))
    return FleetPlan(planner, bounds, twins)


def _bounds(planner: PlannerConfig, pool: PoolConfig, *, is_shared: bool) -> Bounds:
    given, most = planner.pools[pool.name], pool.instances
    usual = most if not is_shared else most // 2 if pool.role == "decode" else most - most // 2
    initial = max(usual, given.min) if given.initial is None else given.initial
    field = f"planner.pools.{pool.name}"
    if given.min > most:
        raise InputError(f"{field}.min: found {given.min}, expected at most the {most} instances of the pool")
    if not given.min <= initial <= most:
        raise InputError(f"{field}.initial: found {initial}, expected {given.min} to {most}")
    return Bounds(given.min, most, initial)


def _check_together(bounds: dict[str, Bounds], is_shared: bool) -> None:
    if not is_shared:
        return
    most = min(each.most for each in bounds.values())
    for field in ("least", "initial"):
        total = sum(getattr(each, field) for each in bounds.values())
        if total > most:
            name = {"least": "min", "initial": "initial"}[field]
            raise InputError(
                f"planner.pools: found {name} {total} in all, expected at most {most}: with planner.role_switch_s the "
                "pools share as many"
            )


def _twins(config: SimulationConfig, planner: PlannerConfig) -> dict[str, str]:
    """The second of the pools that switch roles, and the first."""
    if planner.role_switch_s is None:
        return {}
    shared = [pool for pool in config.cluster.pools if pool.name in planner.pools]
    if sorted(pool.role for pool in shared) != ["decode", "prefill"]:
        found = ", ".join(f"{pool.name} ({pool.role})" for pool in shared)
        raise InputError(f"planner.pools: found {found}, expected a prefill and a decode pool with role_switch_s")
    first, second = shared
    for what in ("instances", "gpus_per_instance"):
        if getattr(first, what) != getattr(second, what):
            raise InputError(
                f"planner.role_switch_s: found {getattr(first, what)} {what} of {first.name} and "
                f"{getattr(second, what)} of {second.name}, expected as many, as they are two roles of the same GPUs"
            )
    if config.hardware_of(first) != config.hardware_of(second):
        raise InputError("planner.role_switch_s: found pools of two kinds of GPUs, expected one")
    for place, fault in enumerate(config.faults):
        if fault.kind in ("gpu", "slow_gpu"):
            raise InputError(
                f"faults.{place}.kind: found {fault.kind} with planner.role_switch_s, expected instance or straggler, "
                "as each GPU has two instances"
            )
    return {second.name: first.name}
