"""Operators of one iteration: kernels and collectives, with shapes, FLOPs and bytes.

Shapes are per rank. Identical layers are listed once with their ``count``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from aicb.kernels.kernel import Kernel, KernelCost


class Phase(StrEnum):
    """Place of an operator in the per-phase breakdown of reports."""

    ATTENTION = "attention"
    """Kernels that depend on the lengths of requests: attention, MLA expansion and absorption, linear attention."""
    DENSE = "dense"
    """GEMMs that every token passes: projections, dense FFN, shared expert."""
    EXPERTS = "experts"
    """Router and routed experts, with the kernels between them."""
    HEAD = "head"
    """Embedding, final norm, LM head, sampling."""
    NORM = "norm_and_small"
    """Memory-bound kernels between projections: norms, RoPE, quantisation, activation, KV write."""
    COMMUNICATION = "communication"


@dataclass(frozen=True, slots=True)
class Communication:
    """Collective among the ranks of a group of the instance; priced by the caller of this package.

    ``size_bytes`` follows nccl-tests: the full buffer; for all_to_all what one rank sends in total.
    """

    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    size_bytes: int
    group: Literal["tp", "ep", "pp"]


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """One operator of an iteration, repeated ``count`` times (once per identical layer)."""

    name: str
    kernel: Kernel | Communication
    count: int
    phase: Phase
    cost: KernelCost
    """FLOPs and bytes of one execution; zero for a collective."""
    weight_elements: int
    """Parameters that the rank holds for one execution, inactive experts included; 0 for an operator without weights.

    Kernels that share weights in a mixed batch (prefill and decode variants of one layer) state them each.
    """

    @property
    def flops(self) -> float:
        """Algorithmic FLOPs of one execution."""
        return self.cost.flops

    @property
    def moved_bytes(self) -> float:
        """Bytes read and written by one execution, weights included once."""
        return self.cost.moved_bytes
