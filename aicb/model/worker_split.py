"""Division of an instance into attention workers and FFN workers, which are other GPUs (attention-FFN split, AFD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aicb.model.architecture import Model, MoeFfn
from aicb.model.partition import MoeLayout, Partition, PartitionError

Messages = Literal["per_expert", "per_worker", "per_node"]
"""Rows of a token that travel: one per chosen expert (DeepEP's low-latency kernels), one per FFN worker with any, or
one per node with any, and from there by NVLink (DeepEP's normal kernels)."""
SharedExpertPlace = Literal["attention", "ffn"]
"""Workers that compute the shared expert."""

MOST_MICRO_BATCHES = 16
"""More than pipelines of four resources can use."""


@dataclass(frozen=True, slots=True)
class WorkerSplit:
    """Attention workers are ``dp`` ranks of ``tp`` GPUs with requests and KV of their own; FFN workers have none.

    Of FFN workers, ``ep`` > 1 divides the routed experts, as many whole ones on each; dense networks are divided by
    ``tp``, and each of the ``dp`` groups computes as many tokens as the others. With ``ep`` 1 routed experts are
    divided as dense networks are.

    Raises:
        PartitionError: pipeline stages, experts on attention workers, or FFN workers between which tokens would have to
            be replicated.
    """

    attention: Partition
    ffn: Partition
    micro_batches: int = 2
    """Micro-batches that a batch is divided into, fewer where it has fewer requests."""
    messages: Messages = "per_expert"
    shared_expert: SharedExpertPlace = "attention"

    def __post_init__(self) -> None:
        if not 1 <= self.micro_batches <= MOST_MICRO_BATCHES:
            raise PartitionError(f"ffn.micro_batches: found {self.micro_batches}, expected 1 to {MOST_MICRO_BATCHES}")
        if self.attention.pp > 1 or self.ffn.pp > 1:
            raise PartitionError(f"pp: found {self.attention.pp}, expected 1 with FFN workers")
        if self.messages == "per_node" and (self.ffn.ep == 1 or self.shared_expert == "ffn"):
            found = "ep 1" if self.ffn.ep == 1 else "shared_expert ffn"
            raise PartitionError(f"ffn.messages: found per_node with {found}, expected per_expert or per_worker")
        if self.attention.ep > 1:
            raise PartitionError(f"ep: found {self.attention.ep}, expected 1, as experts are on FFN workers (ffn.ep)")
        if self.ffn.moe_layout is MoeLayout.EXPERT_IN_TENSOR:
            raise PartitionError(
                f"ffn.ep: found {self.ffn.ep} with tp {self.ffn.tp}, dp 1, expected 1, or dp above 1: rows go straight "
                "to the workers of their experts"
            )

    def check(self, model: Model) -> None:
        """Raises: PartitionError, where the model has no routed experts to divide, or too few."""
        networks = [kind.ffn for kind in model.kinds]
        experts = [network.experts for network in networks if isinstance(network, MoeFfn)]
        if self.ffn.ep > 1 and not experts:
            raise PartitionError(f"ffn.ep: found {self.ffn.ep}, expected 1, as {model.name} has no routed experts")
        for count in experts:
            self.ffn.expert_slots_per_rank(count)
        if self.shared_expert == "ffn" and not any(
            isinstance(network, MoeFfn) and network.shared_intermediate for network in networks
        ):
            raise PartitionError(f"ffn.shared_expert: found ffn, expected attention, as {model.name} has none")

    @property
    def gpus(self) -> int:
        """GPUs of both kinds of workers."""
        return self.attention.gpus + self.ffn.gpus

    def ffn_tokens(self, group_tokens: int) -> int:
        """Tokens of each group of FFN workers that divides networks, of those of all attention workers."""
        return -(-group_tokens // self.ffn.dp)

    def __str__(self) -> str:
        ffn = f"tp {self.ffn.tp}, ep {self.ffn.ep}, dp {self.ffn.dp}"
        return f"attention workers tp {self.attention.tp}, dp {self.attention.dp}; FFN workers {ffn}"
