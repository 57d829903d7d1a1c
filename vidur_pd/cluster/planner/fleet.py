"""Fleet of a planner: its instances, which serve, start, drain or are off, and the GPU time that they are held for.

A *unit* is a set of GPUs that runs one instance at a time: always the same one, or one of each role where roles are
switched. Its GPUs are held from the decision to start an instance until that has drained, and are off otherwise.

A pool grows by instances that are draining, which serve again, then by units that are off, then by units that change
their role; it shrinks by draining the instances with the least load. A draining instance gets no more requests,
finishes those that it has, and hands over the KV that it holds, so that nothing is lost. A start is never broken off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from vidur_pd.cluster.planner.plan import Bounds
from vidur_pd.execution.instances.instance import Instance


class Phase(Enum):
    """Phase in the life of a unit."""

    OFF = "off"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(slots=True, eq=False)
class Unit:
    """Set of GPUs that runs one instance at a time."""

    instances: tuple[Instance, ...]
    """Its instance, or one of each role."""
    runs: Instance
    """The instance that it runs, or ran last."""
    phase: Phase = Phase.OFF
    held_since_ps: int = 0

    def in_pool(self, pool: str) -> Instance | None:
        return next((each for each in self.instances if each.placement.pool == pool), None)

    def is_in(self, pool: str, *phases: Phase) -> bool:
        return self.phase in phases and self.runs.placement.pool == pool


@dataclass(slots=True)
class PoolCount:
    """Counts of what the instances of a pool have done."""

    starts: int = 0
    """Starts of instances whose GPUs were off."""
    switches: int = 0
    """Starts of instances whose GPUs had the other role."""
    stops: int = 0
    """Instances that drained and were not wanted in another role."""
    held_gpu_ps: int = 0
    """Time for which GPUs were held, summed over them."""


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Number of instances of a pool by phase, from an instant on."""

    at_ps: int
    pool: str
    serving: int
    starting: int
    draining: int


Begin = Callable[[Instance, bool], None]
"""Starts an instance; the flag says that its GPUs had the other role, with the same weights."""


class Fleet:
    """Units of a planner, brought to the number of instances that it wants of each pool."""

    def __init__(
        self,
        units: Sequence[Unit],
        bounds: Mapping[str, Bounds],
        now_ps: Callable[[], int],
        begin: Begin,
        set_serving: Callable[[Instance, bool], None],
    ) -> None:
        """``begin`` starts an instance, which ends with `started`; ``set_serving`` lets one have requests or none."""
        self._units, self._bounds, self._now_ps = units, bounds, now_ps
        self._begin, self._set_serving = begin, set_serving
        self._are_shared = len(units) < sum(bounds.most for bounds in self._bounds.values())
        self._wanted = {pool: each.initial for pool, each in bounds.items()}
        self.counts = {pool: PoolCount() for pool in bounds}
        self.changes: list[FleetChange] = []
        self._last_change: dict[str, int] = {}
        """By pool: place of its last change among ``changes``."""

    def open(self) -> None:
        """The begin of a run: as many instances as configured serve, the others are off."""
        for pool, bounds in self._bounds.items():
            for unit in self._off(pool)[: bounds.initial]:
                unit.runs, unit.phase = _own(unit, pool), Phase.SERVING
                unit.held_since_ps = self._now_ps()
        for unit in self._units:
            for instance in unit.instances:
                if unit.phase is Phase.OFF or instance is not unit.runs:
                    self._set_serving(instance, False)
        for pool in self._bounds:
            self._note(pool)

    def in_phase(self, pool: str, *phases: Phase) -> list[Instance]:
        """Instances of a pool, in order."""
        return [unit.runs for unit in self._units if unit.is_in(pool, *phases)]

    @property
    def draining(self) -> list[Instance]:
        return [unit.runs for unit in self._units if unit.phase is Phase.DRAINING]

    @property
    def gpus(self) -> int:
        """GPUs of all units."""
        return sum(len(unit.runs.placement.all_gpus) for unit in self._units)

    def gpus_per_instance(self, pool: str) -> int:
        return next(len(own.placement.all_gpus) for unit in self._units if (own := unit.in_pool(pool)) is not None)

    def aim(self, wanted: Mapping[str, int]) -> None:
        """Wants so many instances of these pools from now on."""
        self._wanted.update(wanted)
        self._fit_together()
        for pool in self._bounds:
            self._shrink(pool)
        self._grow()

    def started(self, instance: Instance) -> None:
        """An instance is ready to serve."""
        unit = self._unit_of(instance)
        unit.phase = Phase.SERVING
        self._set_serving(instance, True)
        self._note(instance.placement.pool)

    def emptied(self, instance: Instance) -> None:
        """A draining instance has nothing left: its GPUs change their role where that is wanted, or are off."""
        unit, pool = self._unit_of(instance), instance.placement.pool
        self._release(unit)
        wanting = [each for each in self._bounds if each != pool and unit.in_pool(each) and self._missing(each) > 0]
        if wanting:
            self._start(unit, wanting[0], is_switch=True)
        else:
            self.counts[pool].stops += 1
        self._note(pool)

    def end(self) -> None:
        """The end of a run: GPUs that are held count until now."""
        for unit in self._units:
            if unit.phase is not Phase.OFF:
                self._release(unit)

    def _shrink(self, pool: str) -> None:
        """Drains the instances with the least load beyond the number wanted, of equal ones the last."""
        active = self.in_phase(pool, Phase.STARTING, Phase.SERVING)
        serving = self.in_phase(pool, Phase.SERVING)
        surplus = min(len(active) - self._wanted[pool], len(serving) - self._bounds[pool].least)
        by_load = sorted(serving, key=lambda each: (_load(each), -each.index))
        for instance in by_load[: max(surplus, 0)]:
            self._unit_of(instance).phase = Phase.DRAINING
            self._set_serving(instance, False)
        if surplus > 0:
            self._note(pool)

    def _grow(self) -> None:
        for pool in self._bounds:
            for instance in self.in_phase(pool, Phase.DRAINING)[: max(self._missing(pool), 0)]:
                self._unit_of(instance).phase = Phase.SERVING
                self._set_serving(instance, True)
            for unit in self._off(pool)[: max(self._missing(pool), 0)]:
                self._start(unit, pool, is_switch=False)
            self._note(pool)

    def _start(self, unit: Unit, pool: str, *, is_switch: bool) -> None:
        counted = self.counts[pool]
        counted.switches += is_switch
        counted.starts += not is_switch
        unit.runs, unit.phase, unit.held_since_ps = _own(unit, pool), Phase.STARTING, self._now_ps()
        self._note(pool)
        self._begin(unit.runs, is_switch)

    def _release(self, unit: Unit) -> None:
        unit.phase = Phase.OFF
        held_ps = self._now_ps() - unit.held_since_ps
        self.counts[unit.runs.placement.pool].held_gpu_ps += held_ps * len(unit.runs.placement.all_gpus)

    def _missing(self, pool: str) -> int:
        return self._wanted[pool] - len(self.in_phase(pool, Phase.STARTING, Phase.SERVING))

    def _off(self, pool: str) -> list[Unit]:
        return [unit for unit in self._units if unit.phase is Phase.OFF and unit.in_pool(pool)]

    def _unit_of(self, instance: Instance) -> Unit:
        return next(unit for unit in self._units if instance in unit.instances)

    def _fit_together(self) -> None:
        """Cuts the wishes of pools that share units to what there is: each has its least, and the same part of the
        rest of its wish."""
        if not self._are_shared or sum(self._wanted.values()) <= len(self._units):
            return
        beyond = {pool: self._wanted[pool] - bounds.least for pool, bounds in self._bounds.items()}
        room = len(self._units) - sum(bounds.least for bounds in self._bounds.values())
        for pool, count in _in_proportion(beyond, room).items():
            self._wanted[pool] = self._bounds[pool].least + count

    def _note(self, pool: str) -> None:
        """Records the numbers of a pool where they have changed; of an instant the last ones."""
        found = [len(self.in_phase(pool, phase)) for phase in (Phase.SERVING, Phase.STARTING, Phase.DRAINING)]
        change = FleetChange(self._now_ps(), pool, *found)
        place = self._last_change.get(pool)
        last = None if place is None else self.changes[place]
        if place is not None and last is not None and last.at_ps == change.at_ps:
            self.changes[place] = change
        elif last is None or (last.serving, last.starting, last.draining) != tuple(found):
            self._last_change[pool] = len(self.changes)
            self.changes.append(change)


def _own(unit: Unit, pool: str) -> Instance:
    found = unit.in_pool(pool)
    assert found is not None, "the unit has an instance of the pool"
    return found


def _load(instance: Instance) -> int:
    return sum(rank.state.load_tokens for rank in instance.ranks)


def _in_proportion(wishes: Mapping[str, int], room: int) -> dict[str, int]:
    """Integers with the sum ``room``, in proportion to the wishes; largest remainders first."""
    total = sum(wishes.values())
    exact = {name: room * wish / total for name, wish in wishes.items()}
    given = {name: int(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: given[name] - exact[name])
    for name in by_remainder[: room - sum(given.values())]:
        given[name] += 1
    return given
