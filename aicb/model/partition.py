"""Division of a model over the GPUs of one serving instance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from boundary.errors import InputError

MOST_RANKS = 2**16
"""Of each size; engines have hundreds."""


class PartitionError(InputError):
    """A model cannot be divided this way; the message names the dimension and both numbers."""


class MoeLayout(Enum):
    """Placement of experts and the way of tokens to them."""

    TENSOR = "tensor"
    """ep = 1: every rank holds all experts, each sliced by tp; all-reduce of [T, h]."""
    EXPERT_IN_TENSOR = "expert_in_tensor"
    """ep = tp, dp = 1: tokens are replicated in the group, E/ep whole experts per rank; all-reduce of [T, h]."""
    EXPERT_DATA = "expert_data"
    """ep = tp·dp, dp > 1: dispatch and combine all-to-all between data-parallel attention ranks."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Parallel sizes of one instance. It occupies ``tp · dp · pp`` GPUs.

    ``dp`` is data-parallel attention: ``dp`` ranks (of ``tp`` GPUs each) with their own requests and KV, which run
    every layer in lockstep when they share experts. ``ep`` is 1, or the ``tp · dp`` GPUs of a pipeline stage.

    Raises:
        PartitionError: a size is below 1, ``ep`` is neither 1 nor tp·dp, or redundant experts come without ep.
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    redundant_experts: int = 0
    """Physical expert slots beyond the model's experts: copies of popular ones (DeepSeek-V3 decodes with 288 slots)."""

    def __post_init__(self) -> None:
        for name in ("tp", "ep", "dp", "pp"):
            value = getattr(self, name)
            if not 1 <= value <= MOST_RANKS:
                raise PartitionError(f"{name}: found {value}, expected 1 to {MOST_RANKS}")
        if self.ep not in (1, self.tp * self.dp):
            raise PartitionError(
                f"ep: found {self.ep}, expected 1 or tp·dp = {self.tp * self.dp} (tp {self.tp}, dp {self.dp})"
            )
        if not 0 <= self.redundant_experts <= MOST_RANKS:
            raise PartitionError(f"redundant_experts: found {self.redundant_experts}, expected 0 to {MOST_RANKS}")
        if self.redundant_experts and self.ep == 1:
            raise PartitionError(f"redundant_experts: found {self.redundant_experts}, expected 0 where ep is 1")

    def __str__(self) -> str:
        return f"tp {self.tp}, ep {self.ep}, dp {self.dp}, pp {self.pp}"

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.tp * self.dp * self.pp

    @property
    def moe_layout(self) -> MoeLayout:
        """Layout of the routed experts of this instance."""
        if self.ep == 1:
            return MoeLayout.TENSOR
        return MoeLayout.EXPERT_IN_TENSOR if self.dp == 1 else MoeLayout.EXPERT_DATA

    def expert_slots_per_rank(self, experts: int) -> int:
        """Physical experts of one rank, ``G = (E + redundant) / ep``.

        Raises:
            PartitionError: the slots are not divisible by ``ep``.
        """
        slots = experts + self.redundant_experts
        if slots % self.ep:
            raise PartitionError(f"ep: found {self.ep}, expected a divisor of the {slots} expert slots of the model")
        return slots // self.ep


def split(size: int, tp: int, what: str) -> int:
    """``size / tp`` of a dimension that tensor parallelism divides exactly.

    Raises:
        PartitionError: it does not divide; ``what`` names the dimension.
    """
    if size % tp:
        raise PartitionError(f"tp: found {tp}, expected a divisor of the {size} {what} of the model")
    return size // tp


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    """``max(1, K / tp)``: with more ranks than KV heads each head is held by ``tp / K`` ranks.

    Raises:
        PartitionError: neither divides the other.
    """
    if tp <= kv_heads:
        return split(kv_heads, tp, "KV heads")
    if tp % kv_heads:
        raise PartitionError(f"tp: found {tp}, expected a multiple of the {kv_heads} KV heads of the model")
    return 1
