"""Compute time of every layer by the parts that other simulators' formats distinguish.

A part is a word of AICB's vocabulary (``atten_qkv``, ``moe_expert_up``, …). Kernels without a word of their own
(quantisation, KV write, shared expert) count to the part they feed, so that a reader's sum is the layer's time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from aicb.estimators.estimator import Estimator
from aicb.experts.load import UniformLoad
from aicb.experts.profile import RankLoad, load_profile
from aicb.iteration.pricing import FUSED_OPERATORS
from aicb.kernels.elementwise import Elementwise
from aicb.model.architecture import GatedDeltaNet, Layer, Model, MoeFfn
from aicb.model.partition import MoeLayout, Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.lists import attention_operators, expert_operators, token_operators
from aicb.operators.operator import Communication, Operator, Phase

ServingPhase = Literal["prefill", "decode"]

PART_OF_OPERATOR = {
    "input_norm": "atten_norm",
    "attention_quant": "atten_qkv",
    "qkv": "atten_qkv",
    "qkv_a": "atten_qkv",
    "q": "atten_qkv",
    "q_a_norm": "atten_qkv",
    "q_b_quant": "atten_qkv",
    "q_b": "atten_qkv",
    "kv_a_norm": "atten_qkv",
    "q_norm": "atten_qkv",
    "k_norm": "atten_qkv",
    "qk_norm": "atten_qkv",
    "rope": "atten_rotary_emb",
    "rope_write": "atten_rotary_emb",
    "kv_write": "atten_rotary_emb",
    "output_gate": "atten_o",
    "o_quant": "atten_o",
    "o": "atten_o",
    "gdn_qkvz": "gdn_qkv",
    "gdn_ba": "gdn_qkv",
    "gdn_conv": "gdn_causal_conv",
    "gdn_gated_norm": "gdn_o",
    "gdn_out_quant": "gdn_o",
    "gdn_out": "gdn_o",
    "post_attention_norm": "moe_norm",
    "router": "moe_route_gate",
    "topk": "moe_route_select_experts",
    "moe_permute": "moe_expert_up",
    "moe_align": "moe_expert_up",
    "moe_shared_slot": "moe_expert_up",
    "moe_quant": "moe_expert_up",
    "moe_experts": "moe_expert_up",
    "moe_gate_up": "moe_expert_up",
    "moe_silu_mul": "moe_expert_act",
    "moe_down": "moe_expert_down",
    "moe_unpermute": "moe_expert_down",
    "moe_reduce": "moe_expert_down",
    "shared_quant": "shared_up",
    "shared_gate_up": "shared_up",
    "shared_silu_mul": "shared_act",
    "shared_down": "shared_down",
    "shared_gate": "shared_down",
    "shared_gate_mul": "shared_down",
    "shared_add": "shared_down",
    "ffn_quant": "mlp_up",
    "ffn_gate_up": "mlp_up",
    "ffn_silu_mul": "mlp_up",
    "ffn_down": "mlp_down",
}
"""Part of each kernel; other kernels of the attention phase are ``atten_flash``, or ``gdn_core`` in a GDN layer."""

NAMES = {
    "deepseek-v3": "DeepSeek-671B",
    "qwen3-235b-a22b": "Qwen3-Moe-235B",
    "qwen3-next-80b-a3b": "Qwen3-Next-80B",
}
"""Names that AICB's file names use; other models keep their own."""


@dataclass(frozen=True, slots=True)
class ExportJob:
    """An export: ``batch_size`` equal requests per data-parallel rank.

    ``seq_tokens`` is the prompt length of a prefill and the KV length of a decode.
    """

    model: Model
    partition: Partition
    precision: Precision
    phase: ServingPhase
    batch_size: int
    seq_tokens: int

    @property
    def tokens(self) -> int:
        """``m`` of the formats: tokens that one rank computes."""
        return self.batch_size * (self.seq_tokens if self.phase == "prefill" else 1)

    @property
    def model_name(self) -> str:
        return NAMES.get(self.model.name, self.model.name)

    def stem(self, batch_word: str) -> str:
        """File name without its extension; ``batch_word`` is what the format calls the batch size."""
        part = self.partition
        return (
            f"{self.model_name}-world_size{part.gpus}-tp{part.tp}-pp{part.pp}-ep{part.ep}"
            f"-{batch_word}{self.batch_size}-seq{self.seq_tokens}-{self.phase}"
        )

    @property
    def all_reduce_bytes(self) -> int:
        """bf16 ``[m, h]``."""
        return 2 * self.tokens * self.model.hidden

    def dispatch_bytes(self, moe: MoeFfn) -> tuple[int, int]:
        """Dispatch (fp8 with scales: 0.515625 of bf16) and combine of one rank, as SimAI's generator sizes them."""
        combine = 2 * self.tokens * self.model.hidden * moe.experts_per_token // self.partition.tp
        return combine * 33 // 64, combine


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer: what it is, and the time of its parts [µs]."""

    layer: Layer
    part_us: dict[str, float]
    estimated_us: float

    @property
    def has_gdn(self) -> bool:
        return isinstance(self.layer.attention, GatedDeltaNet)

    def total_us(self, *prefixes: str) -> float:
        """Sum of the parts whose names start with one of these."""
        return sum(time for part, time in self.part_us.items() if part.startswith(prefixes))


def layer_costs(job: ExportJob, estimator: Estimator) -> list[LayerCost]:
    """All layers in order; equal layers share one value. Routed experts are those of the slowest rank.

    Raises:
        InputError: the model cannot be divided this way.
    """
    costs = [_layer_cost(job, layer, estimator) for layer in job.model.kinds]
    return [costs[kind] for kind in job.model.pattern]


def _layer_cost(job: ExportJob, layer: Layer, estimator: Estimator) -> LayerCost:
    floor_us = estimator.price(Elementwise("add", 1, 1, 0)).time_us
    operators = [op for op in _layer_operators(job, layer) if op.phase is not Phase.HEAD]
    has_fused_norm = any(op.name == "q_norm" for op in operators)
    part_us: dict[str, float] = {}
    estimated_us = 0.0
    for operator in operators:
        if isinstance(operator.kernel, Communication):
            continue
        found = estimator.price(operator.kernel)
        time_us, is_estimate = found.time_us, found.is_estimate
        time_us -= floor_us if has_fused_norm and operator.name in FUSED_OPERATORS else 0.0
        part = _part(operator, layer)
        part_us[part] = part_us.get(part, 0.0) + time_us
        estimated_us += time_us if is_estimate else 0.0
    return LayerCost(layer, part_us, estimated_us)


def _layer_operators(job: ExportJob, layer: Layer) -> list[Operator]:
    """Operators of a model of this one layer."""
    model, partition = replace(job.model, kinds=(layer,), pattern=(0,)), replace(job.partition, pp=1)
    lengths = np.full(job.batch_size, job.seq_tokens, dtype=np.int64)
    batch = Batch.decode(lengths) if job.phase == "decode" else Batch.prefill(lengths.tolist())
    shares_experts = partition.moe_layout is MoeLayout.EXPERT_DATA

    def load(moe: MoeFfn, tokens: int) -> RankLoad:
        return load_profile(UniformLoad(), (moe.experts, moe.experts_per_token), partition)(tokens)

    return [
        *token_operators(model, partition, job.precision, tokens=job.tokens),
        *attention_operators(model, partition, job.precision, batch),
        *expert_operators(
            model,
            partition,
            job.precision,
            tokens=job.tokens,
            group_tokens=job.tokens * (partition.dp if shares_experts else 1),
            is_decode=job.phase == "decode",
            load=load,
        ),
    ]


def _part(operator: Operator, layer: Layer) -> str:
    has_gdn, is_dense = isinstance(layer.attention, GatedDeltaNet), not isinstance(layer.ffn, MoeFfn)
    if operator.name == "attention_quant" and has_gdn:
        return "gdn_qkv"
    if operator.name == "post_attention_norm" and is_dense:
        return "mlp_up"
    return PART_OF_OPERATOR.get(operator.name) or ("gdn_core" if has_gdn else "atten_flash")
