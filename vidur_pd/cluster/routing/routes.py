"""Routes of requests: where one is prefilled, what that rank serves of it, and where it decodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidur_pd.cluster.routing.ranks import RankRouter, RoutingKnowledge
from vidur_pd.config import DisaggregateConfig, Role, RoutingConfig
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.workload.request import Request

MustTravel = Callable[[Request], bool]
"""Whether a request that is prefilled on an instance for prompts needs another one to decode."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The rank that a request enters, and the part of its life that it serves there."""

    rank: Rank
    role: Role


class Routes(ABC):
    """Chooses ranks for requests. Instances that are closed get none."""

    @abstractmethod
    def enter(self, request: Request) -> tuple[Assignment | None, str | None]:
        """Where a request enters, or why nothing could ever hold it; neither where what could is closed."""

    @abstractmethod
    def destination(self, request: Request) -> Rank | None:
        """Where a prefilled request decodes; ``None`` while nothing that could hold it is in service.

        A rank of the instance that has prefilled it means that it goes on there.
        """

    @abstractmethod
    def set_open(self, instance: Instance, *, is_open: bool) -> None:
        """From now on the instance gets requests, or gets none."""

    def kv_left(self, request: Request) -> None:
        """The instance that has prefilled the request holds its KV no more."""
        del request

    def stays(self, request: Request) -> None:
        """The request decodes where it was prefilled, instead of at its destination."""
        del request

    def ended(self, request: Request) -> None:
        """The request gets no more tokens."""
        del request

    def rests(self, instance: Instance) -> None:
        """The last thing that there was to run on an instance has ended."""
        del instance


class SeparateRoutes(Routes):
    """Entry and destination are chosen by routers of their own, each when it is needed."""

    def __init__(
        self,
        instances: Sequence[Instance],
        config: RoutingConfig,
        knowledge: RoutingKnowledge,
        must_travel: MustTravel,
    ) -> None:
        self._must_travel = must_travel
        self._disaggregate = config.disaggregate
        self._entries = RankRouter(instances, ("prefill", "mixed"), config, knowledge, self._refusal)
        self._destinations = RankRouter(instances, ("decode",), config, knowledge, Instance.refusal)

    def enter(self, request: Request) -> tuple[Assignment | None, str | None]:
        if self._disaggregate is not None and (rank := self._local(request, self._disaggregate)) is not None:
            return Assignment(rank, "mixed"), None
        rank, reason = self._entries.choose(request)
        return None if rank is None else Assignment(rank, rank.instance.placement.role), reason

    def destination(self, request: Request) -> Rank | None:
        rank, reason = self._destinations.choose(request)
        assert reason is None, f"request {request.request_id} was let in although {reason}"
        return rank

    def _local(self, request: Request, rule: DisaggregateConfig) -> Rank | None:
        """The decode rank that does both parts of a request; ``None``: it is worth a prefill instance.

        Source: Dynamo 1.6.1's conditional disaggregation, ``isl_bounding``.
        """
        rank, _ = self._destinations.choose(request)
        if rank is None:
            return None
        new_tokens = request.context_tokens - rank.state.cached_tokens(request)
        is_short = new_tokens < rule.min_prompt_tokens
        return rank if is_short and new_tokens < rule.min_new_share * request.context_tokens else None

    def set_open(self, instance: Instance, *, is_open: bool) -> None:
        self._entries.set_open(instance, is_open)
        self._destinations.set_open(instance, is_open)

    def _refusal(self, instance: Instance, request: Request) -> str | None:
        """Why the instance, or every decode instance that would have to follow it, could never hold the request."""
        reason = Instance.refusal(instance, request)
        if reason is None and instance.placement.role == "prefill" and self._must_travel(request):
            reason = self._destinations.refusal(request)
        return reason
