"""Which rank serves a request: an instance among those of some roles, then one of its data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vidur_pd._core import Loop
from vidur_pd.config import Role, RoutingPolicy, SimulationConfig
from vidur_pd.instance import Instance, Rank
from vidur_pd.request import Request
from vidur_pd.routing.router import Router
from vidur_pd.workload import generator

Refusal = Callable[[Instance, Request], str | None]
"""Why an instance could never hold a request; the instances of a pool are alike."""


class RankRouter:
    """Chooses among the ranks of the instances of some roles. Instances that are closed get no requests."""

    def __init__(
        self,
        instances: Sequence[Instance],
        roles: tuple[Role, ...],
        config: SimulationConfig,
        loop: Loop,
        refuses: Refusal,
    ) -> None:
        routing, seed = config.routing, config.seed
        policy = routing.policy if "decode" not in roles else routing.decode_policy or routing.policy
        self._instances = {instance.index: instance for instance in instances if instance.placement.role in roles}
        self._among: Router | None = None
        if self._instances:
            stream = generator(seed, f"routing.{'+'.join(roles)}")
            self._among = Router(policy, list(self._instances), stream, loop.least_loaded)
        self._ranks = {
            index: _rank_router(instance, routing.rank_policy, seed, loop)
            for index, instance in self._instances.items()
        }
        self._refuses = refuses
        self._closed: set[int] = set()
        self._one_of_pool: dict[str, Instance] = {}
        for instance in self._instances.values():
            self._one_of_pool.setdefault(instance.placement.pool, instance)

    def set_open(self, instance: Instance, is_open: bool) -> None:
        """From now on the instance gets requests, or gets none; others than these are ignored."""
        if instance.index in self._ranks:
            (self._closed.discard if is_open else self._closed.add)(instance.index)

    def refusal(self, request: Request) -> str | None:
        """Why none of the instances could ever hold the request."""
        return _common_reason(self._refusals(request))

    def choose(self, request: Request) -> tuple[Rank | None, str | None]:
        """A rank, or why none could ever hold the request; neither where those that could are closed."""
        assert self._among is not None, "a configuration with prefill instances has decode instances"
        refusals = self._refusals(request)
        reason = _common_reason(refusals)
        if reason is not None:
            return None, reason
        if not self._closed and all(reason is None for reason in refusals.values()):
            return self._rank_of(self._among.choose()), None
        accepting = [
            index
            for index, instance in self._instances.items()
            if index not in self._closed and refusals[instance.placement.pool] is None
        ]
        return (self._rank_of(self._among.choose(accepting)), None) if accepting else (None, None)

    def _rank_of(self, index: int) -> Rank:
        return self._instances[index].ranks[self._ranks[index].choose()]

    def _refusals(self, request: Request) -> dict[str, str | None]:
        """By pool."""
        return {pool: self._refuses(instance, request) for pool, instance in self._one_of_pool.items()}


def _common_reason(refusals: dict[str, str | None]) -> str | None:
    reasons = list(refusals.values())
    return None if None in reasons else reasons[0]


def _rank_router(instance: Instance, policy: RoutingPolicy | None, seed: int, loop: Loop) -> Router:
    """Lockstep waits for the rank with the most prompt tokens, and pads all to the largest batch of decodes."""

    def least(_among: NDArray[np.int32], by_tokens: bool, after: int, /) -> int:
        return loop.least_loaded_rank(instance.index, by_tokens, after)

    usual: RoutingPolicy = "least_tokens" if instance.placement.role == "prefill" else "least_requests"
    return Router(policy or usual, range(len(instance.ranks)), generator(seed, f"routing.{instance.name}"), least)
