"""A planner: how many instances each pool should have, decided at intervals from what has been seen.

Named by ``planner.policy``: one of `vidur_pd.cluster.planner.policies`, or ``module:Class`` of one's own. A run has one
object of it, made without arguments, so it may remember things::

    class Twice(Planner):
        def plan(self, seen: Observation) -> Mapping[str, int]:
            return {pool.name: 2 * len(pool.queued_tokens) for pool in seen.pools if max(pool.queued_tokens) > 8192}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Protocol

from pydantic import ValidationError

from boundary.errors import InputError
from boundary.fields import Section
from vidur_pd.config import Role
from vidur_pd.config.file import describe as describe_field
from vidur_pd.config.own_classes import FAULTS, check_names, check_shapes, describe, load_class
from vidur_pd.config.planner import NAMED_PLANNERS, PlannerConfig

HOOKS: Final = ("plan",)


class EngineRates(Protocol):
    """Rates of one instance, from the prices that the run itself uses."""

    def prefill_per_s(self, pool: str, prompt_tokens: float, cached_tokens: float, ttft_s: float) -> float:
        """Requests per second that it prefills within a mean TTFT."""
        ...

    def decode_per_s(self, pool: str, prompt_tokens: float, output_tokens: float, tpot_s: float) -> float:
        """Requests per second that it decodes within a TPOT."""
        ...


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool at the instant of a decision."""

    name: str
    role: Role
    serving: int
    """Instances that get requests."""
    starting: int
    draining: int
    """Instances that get none and end what they have."""
    least: int
    most: int
    context_tokens: int
    """Longest prompt and output of a request."""
    queued_tokens: tuple[int, ...]
    """[serving] tokens of prompts that are not computed, of the fullest rank."""
    kv_use: tuple[float, ...]
    """[serving] KV that the requests of the fullest rank need now over what there is; above 1 some wait for room."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a planner sees: the interval that has just ended, and the pools now."""

    now_s: float
    interval_s: float
    """Length of the interval."""
    arrivals: int
    """Requests that came in it."""
    prompt_tokens: float
    """Mean of these; of the last interval with any, where none came, as the next two."""
    cached_tokens: float
    """Mean of the requests that ended in it: tokens of their prompts that were cached."""
    output_tokens: float
    """Likewise; 0 while none has ended."""
    pools: tuple[PoolView, ...]
    rates: EngineRates

    @property
    def arrivals_per_s(self) -> float:
        return self.arrivals / self.interval_s


class Planner(ABC):
    """How many instances of each pool should serve."""

    class Options(Section):
        """``planner.options``; a class of one's own may have its own."""

    options: Section
    """Set before the first decision."""

    def __init_subclass__(cls) -> None:
        check_names(cls, HOOKS)
        check_shapes(cls, Planner, HOOKS)

    @abstractmethod
    def plan(self, seen: Observation) -> Mapping[str, int]:
        """Number of instances by name of the pool; a pool that is not named stays as it is.

        Numbers beyond a pool's bounds count as the bound. Instances that start count as there.
        """


class AskedPlanner:
    """A planner that is asked; what is wrong with one of the user's own ends in one line."""

    def __init__(self, config: PlannerConfig) -> None:
        """Raises: InputError, where there is no such class, or its options are others."""
        self._name = config.policy.rpartition("/")[2]
        found = planner_class(config.policy)
        try:
            self._planner = found()
            self._planner.options = options_of(found, config)
        except InputError:
            raise
        except FAULTS as error:
            raise InputError(f"planner {self._name}: raises: {describe(error)}") from error

    def plan(self, seen: Observation) -> dict[str, int]:
        """Within the bounds of the pools. Raises: InputError, for what is no plan."""
        try:
            planned = self._planner.plan(seen)
        except FAULTS as error:
            raise InputError(f"planner {self._name}: raises: {describe(error)}") from error
        if not isinstance(planned, Mapping):
            raise InputError(f"planner {self._name}: plan returned {planned!r}, expected {{name of a pool: instances}}")
        pools = {pool.name: pool for pool in seen.pools}
        for name, count in planned.items():
            if name not in pools:
                raise InputError(f"planner {self._name}: found pool {name!r}, expected {' or '.join(pools)}")
            if not isinstance(count, int) or isinstance(count, bool):
                raise InputError(f"planner {self._name}: found {count!r} instances of {name}, expected an integer")
        return {name: min(max(count, pools[name].least), pools[name].most) for name, count in planned.items()}


def planner_class(policy: str) -> type[Planner]:
    """The class that ``planner.policy`` names. Raises: InputError, where there is none."""
    if policy in NAMED_PLANNERS:
        module = import_module(f"vidur_pd.cluster.planner.policies.{policy}")
        found: type[Planner] = getattr(module, NAMED_PLANNERS[policy])
        return found
    return load_class("planner.policy", policy, Planner)


def options_of(found: type[Planner], config: PlannerConfig) -> Section:
    """The options of a planner, checked. Raises: InputError."""
    given: dict[str, Any] = config.options
    if given and not found.Options.model_fields:
        raise InputError(
            f"planner.options.{next(iter(given))}: unknown field; expected no options with {config.policy}"
        )
    try:
        return found.Options.model_validate(given)
    except ValidationError as error:
        raise InputError(f"planner.options.{describe_field(error, found.Options)}") from None
