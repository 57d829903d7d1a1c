"""Ways by which engines bring tokens of data-parallel ranks to their experts, and results back.

``deepep_normal``, ``deepep_low_latency``: DeepEP's kernels; quantised tokens travel, one copy per node and rank or one
message per expert, and bf16 results.
``all_gather``: every rank gets the quantised tokens of all, with the experts that they chose, and computes those of its
own; a reduce-scatter in bf16 adds up (vLLM's ``allgather_reducescatter``, TensorRT-LLM without an all-to-all). Where
one rank has most of the tokens, they are broadcast and reduced.
``all_gather_bf16``: the same with bf16 tokens before they are routed (SGLang in decodes).
``all_reduce``: bf16 tokens of all ranks are gathered by an all-reduce, as are results (SGLang in prefills).
``broadcast``: every data-parallel rank in turn sends its bf16 tokens and router logits to all; an all-reduce adds up
(``naive`` of older vLLM).
``all_to_all``: one copy per distinct rank by all-to-all, quantised there and bf16 back (kernels of NVLink domains).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from aicb.experts.popularity import RankPopularity
from aicb.model.architecture import MoeFfn
from aicb.model.partition import Partition
from aicb.model.precision import activation_bytes_per_row
from aicb.operators.build import ACTIVATION_BYTES, RankShape, communicate
from aicb.operators.ffn import INDEX_BYTES, ROUTED_BYTES
from aicb.operators.operator import Operator, TokenExchange

DispatchKind = Literal[
    "deepep_normal", "deepep_low_latency", "all_gather", "all_gather_bf16", "all_reduce", "broadcast", "all_to_all"
]


@dataclass(frozen=True, slots=True)
class ExpertDispatch:
    """How tokens travel in iterations with prefills, and in those of decodes alone."""

    prefill: DispatchKind = "deepep_normal"
    decode: DispatchKind = "deepep_low_latency"

    def kind(self, *, is_decode: bool) -> DispatchKind:
        return self.decode if is_decode else self.prefill


DEEPEP = ExpertDispatch()

GATHERING: tuple[DispatchKind, ...] = ("all_gather", "all_gather_bf16", "all_reduce", "broadcast")
"""Kinds with which every rank gets the tokens of all."""


ADDING: tuple[DispatchKind, ...] = ("deepep_normal", "deepep_low_latency")
"""Kinds whose combine adds up the copies of a token while it receives them: that is in its time (DeepEP, kernels
``combine`` of ``intranode.cu``, ``internode.cu`` and ``internode_ll.cu``)."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Tokens of an iteration that travel."""

    own: int
    """Of the rank with the most; where a TP group divides its tokens, the rank's part."""
    group: int
    """Of all ranks."""
    popularity: tuple[RankPopularity, ...] | None = None
    """[ranks] of the experts that they go to; ``None``: even. Counts where DeepEP carries them."""
    is_quantised_there: bool = False
    """Whether the kernel of the experts takes bf16 tokens, so that they travel as such."""


def quantises_first(kind: DispatchKind, shape: RankShape, sent: Sent) -> bool:
    """Whether tokens travel quantised."""
    return shape.is_fp8 and not sent.is_quantised_there and kind not in ("all_gather_bf16", "all_reduce", "broadcast")


def travel(moe: MoeFfn, shape: RankShape, sent: Sent, kind: DispatchKind) -> tuple[Operator, Operator]:
    """Collectives that bring tokens to their experts, and results back."""
    bf16_bytes = shape.hidden * ACTIVATION_BYTES
    row_bytes = bf16_bytes
    if quantises_first(kind, shape, sent):
        row_bytes = activation_bytes_per_row(shape.hidden, shape.precision.dense)
    of_all = sent.group * bf16_bytes
    match kind:
        case "deepep_normal" | "deepep_low_latency":
            exchange = _exchange(moe, shape, sent, is_low_latency=kind == "deepep_low_latency")
            there = communicate(_THERE, "dispatch", sent.own * bf16_bytes, "ep", shape.count, exchange)
            return there, communicate(_BACK, "combine", sent.own * bf16_bytes, "ep", shape.count, exchange)
        case "all_to_all":
            copies = sent.own * copies_per_token(moe, shape.partition.ep)
            there = communicate(_THERE, "all_to_all", copies * row_bytes, "ep", shape.count)
            return there, communicate(_BACK, "all_to_all", copies * bf16_bytes, "ep", shape.count)
        case "all_gather" | "all_gather_bf16":
            values, *behind = _tensors(moe, shape, sent, kind)
            shares = tuple(size / values for size in behind)
            if kind == "all_gather" and (received := _received_from_one(shape.partition, sent)):
                there = communicate(_THERE, "broadcast", received * values, "ep", shape.count, behind=shares)
                return there, communicate(_BACK, "reduce", received * bf16_bytes, "ep", shape.count)
            there = communicate(_THERE, "all_gather", sent.group * values, "ep", shape.count, behind=shares)
            return there, communicate(_BACK, "reduce_scatter", of_all, "ep", shape.count)
        case "all_reduce":
            there = communicate(_THERE, "all_reduce", of_all, "ep", shape.count)
        case "broadcast":
            turns, logits_bytes = shape.partition.dp, moe.experts * ACTIVATION_BYTES
            of_one = sent.group / turns * (bf16_bytes + logits_bytes)
            there = communicate(_THERE, "broadcast", of_one, "ep", shape.count * turns)
    return there, communicate(_BACK, "all_reduce", of_all, "ep", shape.count)


ONE_WAY_SPEED = 1.4
"""Bytes that a broadcast brings one way while an all-gather brings one in each direction: 1.39 to 1.43 times as many
from 8,192 tokens of 4 KB on, of reduces and reduce-scatters 1.55 to 1.61
(``tests/data/network/h200-unequal-ranks.json``)."""


def _received_from_one(partition: Partition, sent: Sent) -> float:
    """Tokens that the rank with the fewest receives, where those of one rank outweigh the others'; else 0.

    Ranks whose tokens differ broadcast them one by one, in one call of NCCL, and results are reduced to each in the
    same way (vLLM 0.24.0, ``all_gatherv`` and ``reduce_scatterv`` of ``pynccl.py``). That takes as long as one
    broadcast of what the rank with the fewest receives, or as a gather of all, whichever is longer. Ranks but the one
    with the most are taken to be equal, which is exact for two of them.
    """
    if partition.dp == 1:
        return 0.0
    in_group = partition.ep / partition.dp
    fewest = max(sent.group - sent.own * in_group, 0) / (partition.dp - 1) / in_group
    received, of_equals = sent.group - fewest, sent.group * (partition.ep - 1) / partition.ep
    return received if received > ONE_WAY_SPEED * of_equals else 0.0


def _tensors(moe: MoeFfn, shape: RankShape, sent: Sent, kind: DispatchKind) -> list[int]:
    """Bytes of a token in each tensor that a gather has, by a call of its own: values, scales, weights and experts."""
    if kind == "all_gather_bf16":
        return [shape.hidden * ACTIVATION_BYTES]
    chosen = [part * moe.experts_per_token for part in (ROUTED_BYTES - INDEX_BYTES, INDEX_BYTES)]
    if not quantises_first(kind, shape, sent):
        return [shape.hidden * ACTIVATION_BYTES, *chosen]
    return [shape.hidden, activation_bytes_per_row(shape.hidden, shape.precision.dense) - shape.hidden, *chosen]


_THERE, _BACK = "moe_dispatch", "moe_combine"


def _exchange(moe: MoeFfn, shape: RankShape, sent: Sent, *, is_low_latency: bool) -> TokenExchange:
    mean_share = sent.group / shape.partition.ep / sent.own if sent.own else 1.0
    return TokenExchange(
        is_low_latency=is_low_latency,
        hidden=shape.hidden,
        is_fp8=shape.is_fp8,
        experts=moe.experts,
        experts_per_token=moe.experts_per_token,
        groups=moe.groups,
        groups_per_token=moe.groups_per_token,
        popularity=sent.popularity,
        mean_share=round(min(mean_share, 1.0), 3),
    )


def copies_per_token(moe: MoeFfn, ep: int) -> float:
    """Distinct ranks of the experts that a token chooses uniformly, its own rank included.

    ``ep · (1 − Σ_j P(j) · C(P − j·m, k) / C(P, k))``: of the groups in which a rank has experts, m each, j are among
    those of the token, whose P experts it chooses from.
    """
    per_rank, per_group = moe.experts // ep, moe.experts // moe.groups
    held = max(1, per_rank // per_group)
    in_group, pool = per_rank // held, moe.groups_per_token * per_group
    missed = sum(
        math.comb(held, chosen)
        * math.comb(moe.groups - held, moe.groups_per_token - chosen)
        * math.comb(max(pool - chosen * in_group, 0), moe.experts_per_token)
        for chosen in range(min(held, moe.groups_per_token) + 1)
    )
    return ep * (1.0 - missed / math.comb(moe.groups, moe.groups_per_token) / math.comb(pool, moe.experts_per_token))
