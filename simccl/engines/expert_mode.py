"""Contract of DeepEP's modes of dispatch and combine: bytes, copies, measured kernels, flows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from simccl.collective import Algorithm
from simccl.communicator.communicator import Communicator
from simccl.communicator.shape import CommunicatorShape
from simccl.engines.expert_choice import ExpertChoice
from simccl.engines.expert_routing import TokenRouting
from simccl.plan.flows import PlannedFlows
from simccl.plan.lowering import PortRates
from simccl.plan.postcondition import Postcondition

SCALE_BLOCK = 128
"""Values that share one scale in FP8."""
NO_LIMIT = float("inf")


class Phase(StrEnum):
    """Way of the tokens: to their experts, or back."""

    DISPATCH = "dispatch"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """Times of one kernel, fitted to measurements; `simccl.engines.deepep` has the form."""

    base_us: float
    per_doubling_us: float
    nvlink_gbytes_per_s: float
    """Bytes to ranks of the own node, the own rank included; on several nodes of low latency no limit."""
    nic_gbytes_per_s: float
    exponent: float


class ExpertMode(ABC):
    """Way to carry tokens to experts and back."""

    name: ClassVar[Algorithm]
    on_one_node: ClassVar[Mapping[Phase, ExpertKernel]]
    on_several_nodes: ClassVar[Mapping[Phase, ExpertKernel]]

    @abstractmethod
    def dispatch_bytes(self, hidden: int, top_k: int, *, fp8: bool) -> int:
        """Bytes of one token in a dispatch, with scales and what says where it belongs (DeepEP V1)."""

    @abstractmethod
    def combine_bytes(self, hidden: int, top_k: int) -> int:
        """Bytes of one token in a combine, in BF16."""

    @abstractmethod
    def copies(self, choice: ExpertChoice, at: CommunicatorShape) -> tuple[float, float]:
        """Copies of one token that NVLink and the NIC of one GPU carry, on average."""

    @abstractmethod
    def planned(
        self,
        routing: TokenRouting,
        communicator: Communicator,
        rates: PortRates,
        token_bytes: int,
        *,
        is_combine: bool,
    ) -> tuple[Postcondition, PlannedFlows]:
        """Data that must be delivered, and the flows that do it.

        Raises:
            InputError: ranks over which the mode cannot be laid.
        """

    def kernel(self, phase: Phase, at: CommunicatorShape) -> ExpertKernel:
        """The kernel that runs."""
        return (self.on_one_node if at.nodes == 1 else self.on_several_nodes)[phase]


def values_bytes(hidden: int, *, fp8: bool) -> int:
    """Bytes of the values of one token, with their scales."""
    return hidden + 4 * (hidden // SCALE_BLOCK) if fp8 else 2 * hidden
