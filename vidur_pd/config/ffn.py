"""FFN workers of a pool's instances: what a YAML file may say of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aicb.model.worker_split import MOST_MICRO_BATCHES, Messages, SharedExpertPlace
from boundary.fields import Count, Number, Section

Degree = Annotated[Count, Field(le=2**20)]
"""GPUs, ranks or instances."""


class FfnConfig(Section):
    """FFN workers of an instance (attention-FFN split, AFD): ``tp · dp`` more GPUs, which compute the feed-forward
    networks and hold no KV, while the instance's other GPUs compute attention (docs/afd.md)."""

    tp: Degree = 1
    """Workers that divide dense networks, and routed experts where ``ep`` is 1."""
    ep: Degree = 1
    """1, or all ``tp · dp`` workers: whole routed experts, as many on each."""
    dp: Degree = 1
    """Groups of ``tp`` workers, each of which computes as many tokens as the others."""
    redundant_experts: Annotated[Number, Field(le=2**20)] = 0
    """Expert slots beyond the model's experts."""
    hardware: str | None = None
    """Their GPU; ``None``: that of the pool. Workers with another GPU stand on servers of their own."""
    micro_batches: Annotated[Count, Field(le=MOST_MICRO_BATCHES)] = 3
    """Batches are cut into so many, which take turns: while one is on FFN workers, others are on attention workers."""
    messages: Messages = "per_expert"
    """Rows of a token that travel: one per chosen expert, as DeepEP's low-latency kernels send, in iterations of
    decodes; one per FFN worker that has any of them, also with prompts; or one per server, where NVLink takes it on,
    as with DeepEP's normal kernels."""
    shared_expert: SharedExpertPlace = "attention"
    """Workers that compute the shared expert."""

    @property
    def gpus(self) -> int:
        return self.tp * self.dp
