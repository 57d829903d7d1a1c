"""Feed-forward networks of the layers that a ``config.json`` describes."""

from __future__ import annotations

from dataclasses import dataclass

from aicb.model.architecture import DenseFfn, Ffn, MoeFfn
from aicb.model.config_attention import LLAMA_4
from aicb.model.config_fields import MOST_EXPERTS, Fields


@dataclass(frozen=True, slots=True)
class _ExpertNames:
    """Fields that hold the number of experts and their intermediate size."""

    experts: str
    intermediate: str


_LOCAL = _ExpertNames("num_local_experts", "intermediate_size")
_QWEN = _ExpertNames("num_experts", "moe_intermediate_size")
_ROUTED = _ExpertNames("n_routed_experts", "moe_intermediate_size")
_EXPERTS = {
    **dict.fromkeys(("MixtralForCausalLM", "GptOssForCausalLM", "MiniMaxM2ForCausalLM", LLAMA_4), _LOCAL),
    **dict.fromkeys(("Qwen3MoeForCausalLM", "Qwen3NextForCausalLM"), _QWEN),
    **dict.fromkeys(("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"), _ROUTED),
    "Glm4MoeForCausalLM": _ROUTED,
}
MOST_GROUPS = 16
"""Of experts; published models have 8."""
_CORRECTED = ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM")
"""Architectures whose router always has a correction bias."""
_SCORED_IN_FP32 = ("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM")
"""Architectures whose checkpoints have a router in fp32 (vLLM 0.24.0, ``glm4_moe.py``, ``minimax_m2.py``)."""


def networks(fields: Fields, architecture: str, layers: int) -> list[Ffn]:
    """[layers]"""
    if architecture not in _EXPERTS:
        return [DenseFfn(fields.integer("intermediate_size"))] * layers
    moe, is_dense = _moe(fields, architecture), _are_dense(fields, architecture, layers)
    if not any(is_dense):
        return [moe] * layers
    dense = DenseFfn(fields.integer("intermediate_size_mlp" if architecture == LLAMA_4 else "intermediate_size"))
    return [dense if here else moe for here in is_dense]


def _are_dense(fields: Fields, architecture: str, layers: int) -> list[bool]:
    """[layers] whether each has a dense network instead of experts."""
    match _EXPERTS[architecture]:
        case names if names is _QWEN:
            step, only = fields.integer("decoder_sparse_step", default=1), fields.indices("mlp_only_layers")
            _check_indices(fields, "mlp_only_layers", layers)
            return [index in only or (index + 1) % step != 0 for index in range(layers)]
        case names if names is _ROUTED:
            first = fields.integer("first_k_dense_replace", at_least=0)
            if first > layers:
                raise fields.refuse("first_k_dense_replace", f"at most num_hidden_layers, {layers}")
            frequency = fields.integer("moe_layer_freq", default=1)
            return [index < first or index % frequency != 0 for index in range(layers)]
    if architecture != LLAMA_4:
        return [False] * layers
    if sparse := fields.indices("moe_layers"):
        _check_indices(fields, "moe_layers", layers)
        return [index not in sparse for index in range(layers)]
    step = fields.integer("interleave_moe_layer_step", default=1)
    return [(index + 1) % step != 0 for index in range(layers)]


def _check_indices(fields: Fields, name: str, layers: int) -> None:
    if not all(0 <= index < layers for index in fields.indices(name)):
        raise fields.refuse(name, f"indices 0 to {layers - 1} (num_hidden_layers {layers})")


def _moe(fields: Fields, architecture: str) -> MoeFfn:
    names = _EXPERTS[architecture]
    is_renamed = names is _QWEN and not fields.has(_QWEN.experts) and fields.has(_LOCAL.experts)
    experts = _LOCAL.experts if is_renamed else names.experts  # Transformers 5 writes Qwen's under the other name
    count, intermediate = fields.integer(experts, at_most=MOST_EXPERTS), fields.integer(names.intermediate)
    per_token = fields.integer("num_experts_per_tok")
    if per_token > count:
        raise fields.refuse("num_experts_per_tok", f"at most {experts}, {count}")
    shared = _shared_intermediate(fields, architecture, intermediate)
    groups, groups_per_token = _groups(fields, architecture, count, per_token)
    return MoeFfn(
        experts=count,
        experts_per_token=per_token,
        intermediate=intermediate,
        shared_intermediate=shared,
        has_shared_gate=architecture == "Qwen3NextForCausalLM" and shared > 0,
        has_correction_bias=architecture in _CORRECTED
        or (architecture == "MiniMaxM2ForCausalLM" and fields.flag("use_routing_bias", default=True)),
        has_fp32_router=architecture in _SCORED_IN_FP32,
        has_biases=architecture == "GptOssForCausalLM",
        groups=groups,
        groups_per_token=groups_per_token,
    )


def _groups(fields: Fields, architecture: str, experts: int, per_token: int) -> tuple[int, int]:
    """Groups of experts, and how many of them a token may take its experts from."""
    if _EXPERTS[architecture] is not _ROUTED:
        return 1, 1
    groups, chosen = fields.integer("n_group", default=1), fields.integer("topk_group", default=1)
    if groups > MOST_GROUPS or experts % groups:
        raise fields.refuse("n_group", f"a divisor of the {experts} experts, at most {MOST_GROUPS}")
    if chosen > groups or chosen * (experts // groups) < per_token:
        raise fields.refuse(
            "topk_group", f"at most the {groups} groups, with the {per_token} experts of a token in them"
        )
    return groups, chosen


def _shared_intermediate(fields: Fields, architecture: str, intermediate: int) -> int:
    """Columns of the shared expert; 0 without one."""
    if architecture == LLAMA_4:
        return intermediate
    if architecture == "Qwen3NextForCausalLM":
        return fields.integer("shared_expert_intermediate_size", at_least=0)
    if _EXPERTS[architecture] is _ROUTED:
        return fields.integer("n_shared_experts", at_least=0, at_most=MOST_EXPERTS) * intermediate
    return 0
