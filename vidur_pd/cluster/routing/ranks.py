"""Which rank serves a request: an instance among those of some roles, then one of its data-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from netsim.units import PS_PER_S
from vidur_pd.cluster.routing.policy import Candidate, RoutingContext
from vidur_pd.cluster.routing.router import Router, RouterSetting, Span, router_of, routing_options
from vidur_pd.config import RankPolicy, Role, RoutingConfig
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.scheduling import RequestView
from vidur_pd.workload import generator
from vidur_pd.workload.request import Request

USUAL_RANK_POLICY: Final[Mapping[Role, RankPolicy]] = {
    "prefill": "least_tokens",
    "mixed": "least_requests",
    "decode": "least_requests",
}
"""Lockstep waits for the rank with the most prompt tokens, and pads all ranks to the largest batch of decodes."""

Refusal = Callable[[Instance, Request], str | None]
"""Why an instance could never hold a request; the instances of a pool are identical."""


class RankChoice:
    """Chooses among the data-parallel ranks of an instance."""

    def __init__(self, policy: RankPolicy | None) -> None:
        """``policy``: by default as usual for the role of the instance."""
        self._policy = policy
        self._of_instance: dict[int, Router] = {}
        """By index of an instance of several ranks that has been chosen."""

    def rank_of(self, instance: Instance, request: Request) -> Rank:
        if len(instance.ranks) == 1:
            return instance.ranks[0]
        if instance.index not in self._of_instance:
            ranks = [
                Candidate(f"{instance.name} rank {rank.index}", rank.index, [rank.state]) for rank in instance.ranks
            ]
            policy = self._policy or USUAL_RANK_POLICY[instance.placement.role]
            self._of_instance[instance.index] = router_of(policy, ranks, "routing.rank_policy")
        place = self._of_instance[instance.index].choose(request)
        assert place is not None, "ranks of an open instance are open"
        return instance.ranks[place]


@dataclass(frozen=True, slots=True)
class RoutingKnowledge:
    """What routers among instances may know in addition to loads and caches."""

    seed: int
    now_ps: Callable[[], int]
    hash_block_tokens: int
    session_of: Callable[[RequestView], int]
    transfer_s: Callable[[Rank, RequestView], float]
    """Expected time of a request's KV transfer to a rank."""
    tier_tokens: Callable[[Rank, Request, int], Mapping[str, int]] | None = None
    """By kind of tier, how much of a request a rank's tiers go on with from a token on."""


class RankRouter:
    """Chooses among the ranks of the instances of some roles. Instances that are closed get no requests."""

    def __init__(
        self,
        instances: Sequence[Instance],
        roles: tuple[Role, ...],
        config: RoutingConfig,
        knowledge: RoutingKnowledge,
        refuses: Refusal,
    ) -> None:
        self._instances = [instance for instance in instances if instance.placement.role in roles]
        self._place = {instance.index: place for place, instance in enumerate(self._instances)}
        self._spans = _spans(self._instances)
        self._ranks = RankChoice(config.rank_policy)
        field = "decode_policy" if "decode" in roles and config.decode_policy is not None else "policy"
        policy = getattr(config, field)
        self._refuses = refuses
        if self._instances:
            random = generator(knowledge.seed, f"routing.{'+'.join(roles)}")
            context = RoutingContext(random, knowledge.now_ps, knowledge.hash_block_tokens, knowledge.session_of)
            options = routing_options(config, "decode_policy" if "decode" in roles else "policy")
            setting = RouterSetting(context, options, round(config.index_delay_s * PS_PER_S))
            candidates = [self._candidate(place, knowledge) for place in range(len(self._instances))]
            self._among = router_of(policy, candidates, f"routing.{field}", random, setting)

    def _candidate(self, place: int, knowledge: RoutingKnowledge) -> Candidate:
        instance = self._instances[place]
        first = instance.ranks[0]
        transfer_s = partial(knowledge.transfer_s, first) if instance.placement.role == "decode" else None
        return Candidate(
            instance.name,
            place,
            [rank.state for rank in instance.ranks],
            role=instance.placement.role,
            block_tokens=first.state.block_tokens,
            transfer_s=transfer_s,
            tiers=[partial(knowledge.tier_tokens, rank) for rank in instance.ranks] if knowledge.tier_tokens else (),
        )

    def set_open(self, instance: Instance, is_open: bool) -> None:
        """From now on the instance gets requests, or gets none; others than these are ignored."""
        if instance.index in self._place:
            self._among.set_open(self._place[instance.index], is_open)

    def refusal(self, request: Request) -> str | None:
        """Why none of the instances could ever hold the request."""
        reasons = []
        for first, _ in self._spans.values():
            reason = self._refuses(self._instances[first], request)
            if reason is None:
                return None
            reasons.append(reason)
        return reasons[0]

    def choose(self, request: Request) -> tuple[Rank | None, str | None]:
        """A rank, or why none could ever hold the request; neither where those that could are closed."""
        assert self._instances, "a configuration with prefill instances has decode instances"
        refusals = self._refusals(request)
        reason = _common_reason(refusals)
        if reason is not None:
            return None, reason
        place = self._among.choose(
            request, [self._spans[pool] for pool, refusal in refusals.items() if refusal is None]
        )
        return None if place is None else self._ranks.rank_of(self._instances[place], request), None

    def _refusals(self, request: Request) -> dict[str, str | None]:
        """By pool."""
        return {pool: self._refuses(self._instances[first], request) for pool, (first, _) in self._spans.items()}


def _spans(instances: Sequence[Instance]) -> dict[str, Span]:
    """By pool, whose instances follow each other."""
    spans: dict[str, Span] = {}
    for place, instance in enumerate(instances):
        first, last = spans.get(instance.placement.pool, (place, place))
        assert last == place, "instances stand pool by pool"
        spans[instance.placement.pool] = (first, place + 1)
    return spans


def _common_reason(refusals: dict[str, str | None]) -> str | None:
    reasons = list(refusals.values())
    return None if None in reasons else reasons[0]
