"""How a model is divided over the GPUs of one serving instance."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aicb.errors import InputError


class PartitionError(InputError):
    """A model cannot be divided this way; the message names the dimension."""


class MoeLayout(Enum):
    """Where experts live and how tokens reach them (facts: Megatron/vLLM/DeepSeek serving layouts)."""

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
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "ep", "dp", "pp"):
            value = getattr(self, name)
            if value < 1:
                raise PartitionError(f"{name}: found {value}, expected at least 1")
        if self.ep not in (1, self.tp * self.dp):
            raise PartitionError(
                f"ep: found {self.ep}, expected 1 or tp·dp = {self.tp * self.dp} (tp {self.tp}, dp {self.dp})"
            )

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.tp * self.dp * self.pp

    @property
    def moe_layout(self) -> MoeLayout:
        if self.ep == 1:
            return MoeLayout.TENSOR
        return MoeLayout.EXPERT_IN_TENSOR if self.dp == 1 else MoeLayout.EXPERT_DATA
