"""The shared expert of DeepSeek-V3 and GLM-4.5 as one more routed expert, which every token chooses.

SGLang 0.5.23 does so where no ranks share experts (``models/deepseek_v2.py`` and ``models/glm4_moe.py``,
``determine_num_fused_shared_experts``), unless the shared expert overlaps others or DeepEP brings tokens there, without
which there are no two half batches. From its sources; an engine of 0.5.17 did so
(``tests/data/engine/sglang-h200-layers.json.gz``: nine results of a token are summed).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aicb.experts.profile import RankLoad
from aicb.model.architecture import LatentAttention, Model, MoeFfn
from aicb.model.partition import MoeLayout, Partition
from aicb.model.precision import Precision, ceil_div
from aicb.operators.build import elementwise
from aicb.operators.ffn import INDEX_BYTES
from aicb.operators.operator import Operator, Phase

FUSING_EXPERTS = (128, 160, 256)
"""Routed experts of the models whose shared expert SGLang fuses: GLM-4.5-Air, GLM-4.5, DeepSeek-V3."""


def is_fused(model: Model, partition: Partition, precision: Precision) -> bool:
    """Whether SGLang fuses the shared expert of every MoE layer; not of DeepSeek-V3.2, another architecture to it."""
    if partition.moe_layout is not MoeLayout.TENSOR or precision.weights == "mxfp4":
        return False
    if any(isinstance(kind.attention, LatentAttention) and kind.attention.indexer for kind in model.kinds):
        return False
    networks = [kind.ffn for kind in model.kinds if isinstance(kind.ffn, MoeFfn)]
    return bool(networks) and all(_can_fuse(moe) for moe in networks)


def _can_fuse(moe: MoeFfn) -> bool:
    """The shared expert is like a routed one, of a model that scores experts with a correction bias."""
    is_like = moe.shared_intermediate == moe.intermediate and not moe.has_shared_gate
    return is_like and moe.has_correction_bias and moe.experts in FUSING_EXPERTS


def with_shared_expert(moe: MoeFfn, load: RankLoad, tokens: int) -> tuple[MoeFfn, RankLoad]:
    """The network with one expert more that each of the tokens chooses, and its load."""
    wider = replace(moe, experts=moe.experts + 1, experts_per_token=moe.experts_per_token + 1)
    return wider, RankLoad(load.rows + tokens, load.active_experts + 1, max(load.largest_expert_rows, tokens))


SLOT_KERNELS = 7
"""Of torch: two pads of a fill and a copy each, a sum, a division and a copy (``layers/moe/topk.py``,
``biased_grouped_topk_gpu``); 9.8 us of a layer of DeepSeek-V3 in an engine of 0.5.17, whatever the batch."""
SLOT_COLUMNS = 512


def shared_slot(moe: MoeFfn, tokens: int, count: int) -> list[Operator]:
    """The slot of the shared expert behind those that a token has chosen, with the weight of all of these: after
    FlashInfer's choice by groups, which takes numbers of experts that are powers of two. Small additions of torch stand
    for its kernels."""
    if moe.experts & (moe.experts - 1):
        return []
    rows = ceil_div(tokens * (moe.experts_per_token + 1), SLOT_COLUMNS)
    per_element = 2 * INDEX_BYTES
    size, kernels = (rows, SLOT_COLUMNS), SLOT_KERNELS * count
    return [elementwise("moe_shared_slot", "add", size, per_element, count=kernels, phase=Phase.EXPERTS)]


def without_shared_expert(operators: Iterable[Operator]) -> list[Operator]:
    """Operators of tokens but those of a shared expert apart."""
    return [each for each in operators if not each.name.startswith("shared_")]
