"""Operators of one iteration: kernels and collectives, with shapes, FLOPs and bytes.

Shapes are per rank. Identical layers are listed once with their ``count``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from aicb.experts.popularity import RankPopularity
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


CollectiveName = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send_recv",
    "dispatch",
    "combine",
]


CommunicationGroup = Literal["tp", "ep", "pp", "workers", "ffn_tp"]
"""A TP, EP or PP group; attention workers and FFN workers; or FFN workers that divide a network."""


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """Kernels of DeepEP that bring tokens to their experts, or results back, and how tokens choose their experts."""

    is_low_latency: bool
    """One message per expert; else one copy per node and rank (normal)."""
    hidden: int
    is_fp8: bool
    """Tokens are quantised where they are dispatched."""
    experts: int
    experts_per_token: int
    groups: int = 1
    groups_per_token: int = 1
    """A token's experts are in so many groups."""
    popularity: tuple[RankPopularity, ...] | None = None
    """[ranks]; ``None``: even."""
    mean_share: float = 1.0
    """Tokens of the mean rank, as a share of those of the rank with the most, which decides how long all take."""


@dataclass(frozen=True, slots=True)
class WorkerExchange:
    """Rows of tokens between attention workers and FFN workers, which are other GPUs, straight from worker to worker.

    The group are the attention workers, then the FFN workers; its messages are those of DeepEP's low-latency kernels.
    """

    attention_workers: int
    hidden: int
    is_fp8: bool
    """Rows are quantised where they leave attention workers."""
    copies: tuple[float, ...]
    """[FFN workers] copies of a row of one attention worker that each gets, or sends back, on average."""
    by_node: tuple[int, int, int, int] | None = None
    """Experts, experts per token, groups, and groups per token, where one copy goes to each node, and NVLink takes it
    to the workers there."""
    mean_share: float = 1.0
    """As that of `TokenExchange`."""


@dataclass(frozen=True, slots=True)
class Communication:
    """Collective among the ranks of a group of the instance; priced by the caller of this package.

    ``size_bytes`` follows nccl-tests: the full buffer; for all_to_all what one rank sends in total. For dispatch and
    combine, which have an ``exchange``, it is the bf16 values of the tokens of the rank with the most, once each.
    """

    op: CollectiveName
    size_bytes: int
    group: CommunicationGroup
    exchange: TokenExchange | WorkerExchange | None = None
    behind: tuple[float, ...] = ()
    """Sizes of more collectives of this kind in the same group of calls, as shares of this one's."""
    is_normalised: bool = False
    """Whether FlashInfer's kernel all-reduces, adds the residual and normalises at once."""


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
