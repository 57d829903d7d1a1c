"""Routing in the configuration: which policies there are, and their options."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from boundary.fields import Count, NotBool, Section
from boundary.quoting import quoted
from vidur_pd.config.names import one_of

RANK_POLICIES: Final = ("least_tokens", "least_requests", "round_robin")
CORE_ROUTING: Final = (*RANK_POLICIES, "random")
NAMED_ROUTING: Final = {
    "prefix_affine": "PrefixAffine",
    "kv_aware": "KvAware",
    "session": "Session",
    "power_of_two": "PowerOfTwo",
    "free_memory": "FreeMemory",
    "network_aware": "NetworkAware",
}
"""Module in ``vidur_pd/cluster/routing/policies``, and the class in it."""
ROUTING_POLICIES: Final = (*CORE_ROUTING, *NAMED_ROUTING)
SPLITWISE: Final = "splitwise"
RoutingPolicy = Annotated[str, one_of(*ROUTING_POLICIES)]
EntryPolicy = Annotated[str, one_of(*ROUTING_POLICIES, SPLITWISE)]
RankPolicy = Annotated[str, one_of(*RANK_POLICIES)]


class SplitwiseConfig(Section):
    """How Splitwise chooses the two machines of a request (`vidur_pd.cluster.routing.splitwise`)."""

    scheduler: Literal["mixed_pool", "kv_jsq", "kv_token_jsq", "kv_round_robin"] = "mixed_pool"
    max_pending_tokens: Count = 8192
    """A prompt machine on which requests queue gets no prompt that makes more tokens pending; of ``mixed_pool``."""


class DisaggregateConfig(Section):
    """Which requests get a prefill instance of their own; the others are prefilled where they decode.

    Both limits have to be met from below for a request to stay (Dynamo's conditional disaggregation).
    """

    min_prompt_tokens: Count = 2048
    """Tokens of the prompt that the decode instance has not cached; so many are worth a prefill instance."""
    min_new_share: Annotated[float, NotBool, Field(ge=0, le=1e6)] = 0.7
    """The same as a share of the prompt; 1 and above: it does not matter, but for a cached prompt with 1."""


class RoutingConfig(Section):
    """How requests are assigned to the instances of some roles, and to the data-parallel ranks of an instance.

    ``least_tokens``: the fewest prompt tokens that are not computed yet; where decodes run, plus the context of all
    requests there. ``least_requests``: the lowest 4 · waiting + running. Of equal candidates the first.
    """

    policy: EntryPolicy = "least_tokens"
    """Among prefill and mixed instances when a request arrives, and among decode instances if they have no other."""
    policy_options: dict[str, Any] = Field(default_factory=dict)
    """What only this policy knows (`Routing.Options` of its class says which fields there are)."""
    decode_policy: RoutingPolicy | None = None
    """Among decode instances: at the arrival in modes that push, else at the end of the prefill."""
    decode_policy_options: dict[str, Any] = Field(default_factory=dict)
    """The same of the policy among decode instances; without ``decode_policy``, those of ``policy_options``."""
    index_delay_s: Annotated[float, NotBool, Field(ge=0, le=1000)] = 0.0
    """How late routers among instances hear of loads and of what is cached."""
    disaggregate: DisaggregateConfig | None = None
    """``None``: every request that needs a decode instance is prefilled on another."""
    rank_policy: RankPolicy | None = None
    """Within an instance. ``None``: ``least_tokens`` where it prefills only, as the rank with the most prompt tokens
    holds up the others, else ``least_requests``, as vLLM's data-parallel front end."""
    splitwise: SplitwiseConfig | None = None
    """With ``policy: splitwise``, which chooses the prefill and the decode instance of a request together."""

    @property
    def is_splitwise(self) -> bool:
        return self.policy == SPLITWISE

    @property
    def has_mixed_pool(self) -> bool:
        """Any instance may have to prefill, decode, or both."""
        return self.is_splitwise and (self.splitwise or SplitwiseConfig()).scheduler == "mixed_pool"

    @property
    def watches_links(self) -> bool:
        """The choice of decode instances may look at links: a policy that does, or one of the user's own."""
        policy = self.decode_policy or self.policy
        return policy == "network_aware" or ":" in policy

    @property
    def decode_instances_prefill(self) -> bool:
        """Decode instances may have to prefill."""
        return self.has_mixed_pool or self.disaggregate is not None

    def options_of(self, field: str) -> dict[str, Any]:
        """Stated options of ``policy`` or ``decode_policy``."""
        is_own = field == "decode_policy" and (self.decode_policy is not None or self.decode_policy_options)
        return self.decode_policy_options if is_own else self.policy_options

    @model_validator(mode="after")
    def _network_is_for_transfers(self) -> RoutingConfig:
        if self.policy == "network_aware":
            raise ValueError(
                "policy: found network_aware, expected it as decode_policy: it chooses by the transfer from the "
                "prefill instance"
            )
        return self

    @model_validator(mode="after")
    def _splitwise_is_alone(self) -> RoutingConfig:
        if self.is_splitwise and (self.disaggregate is not None or self.index_delay_s):
            field = "index_delay_s" if self.disaggregate is None else "disaggregate"
            raise ValueError(f"{field}: found with policy splitwise, expected it without: it has rules of its own")
        if self.splitwise is not None and not self.is_splitwise:
            raise ValueError(f"splitwise: found with policy {quoted(self.policy)}, expected policy splitwise")
        if self.is_splitwise and self.decode_policy is not None:
            raise ValueError(
                f"decode_policy: found {quoted(self.decode_policy)}, expected none with policy splitwise, which "
                "chooses both instances"
            )
        return self
