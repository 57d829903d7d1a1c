"""Which rank serves a request: an instance among those of some roles, then one of its data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vidur_pd.config import Role, RoutingConfig
from vidur_pd.instance import Instance, Rank
from vidur_pd.request import Request
from vidur_pd.routing.router import Router
from vidur_pd.workload import generator

Refusal = Callable[[Instance, Request], str | None]
"""Why an instance could never hold a request; the instances of a pool are alike."""


class RankRouter:
    """Chooses among the ranks of the instances of some roles. Instances that are closed get no requests."""

    def __init__(
        self, instances: Sequence[Instance], roles: tuple[Role, ...], config: RoutingConfig, seed: int, refuses: Refusal
    ) -> None:
        self._instances = [instance for instance in instances if instance.placement.role in roles]
        stream = generator(seed, f"routing.{'+'.join(roles)}")
        self._among = Router(config.policy, self._instances, stream) if self._instances else None
        self._ranks = {
            instance.index: Router(config.rank_policy, instance.ranks, generator(seed, f"routing.{instance.name}"))
            for instance in self._instances
        }
        self._refuses = refuses
        self._closed: set[int] = set()
        self._one_of_pool: dict[str, Instance] = {}
        for instance in self._instances:
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
            return self._ranks[self._among.choose().index].choose(), None

        def accepts(candidate: Instance) -> bool:
            return candidate.index not in self._closed and refusals[candidate.placement.pool] is None

        if not any(map(accepts, self._instances)):
            return None, None
        return self._ranks[self._among.choose(accepts).index].choose(), None

    def _refusals(self, request: Request) -> dict[str, str | None]:
        """By pool."""
        return {pool: self._refuses(instance, request) for pool, instance in self._one_of_pool.items()}


def _common_reason(refusals: dict[str, str | None]) -> str | None:
    reasons = list(refusals.values())
    return None if None in reasons else reasons[0]
