"""Dimensions of a model from a Hugging Face ``config.json``.

Fields that do not change cost or size (initialisers, token ids, RoPE scaling) are ignored; architecture features that
would, but are not modelled (biases, sliding windows), are refused. A checkpoint may be quantised to fp8 in blocks of
128 by 128, the one quantisation that is priced, though the format of weights is chosen with the engine; others are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aicb.model.architecture import (
    Attention,
    DenseFfn,
    Ffn,
    GatedDeltaNet,
    GroupedQueryAttention,
    Indexer,
    LatentAttention,
    Layer,
    Model,
    MoeFfn,
)
from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.quoting import quoted
from boundary.text_files import read_text

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
)
_LATENT = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM")


MOST_ELEMENTS = 2**24
"""Of one dimension: hidden, intermediate or head size, vocabulary; a hundred times those in use."""
MOST_LAYERS = 10_000
MOST_EXPERTS = 4096
"""Of a layer; their loads are drawn one by one. The largest published models have some hundreds."""
MOST_CONTEXT_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Fields:
    """A configuration whose fields are checked as they are read."""

    values: Mapping[str, object]
    where: str

    def refuse(self, name: str, expected: str) -> InputError:
        found = quoted(self.values[name]) if name in self.values else "nothing"
        return InputError(f"{self.where}: {name}: found {found}, expected {expected}")

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, at_least: int = 1, at_most: int = MOST_ELEMENTS) -> int:
        if default is not None and not self.has(name):
            return default
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.refuse(name, f"an integer, {at_least} to {at_most}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def fraction(self, name: str, default: float) -> float:
        value = self.values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise self.refuse(name, "a number above 0 and at most 1")
        return float(value)

    def indices(self, name: str) -> list[int]:
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.refuse(name, "a list of layer indices")
        return value


def read_config_file(path: Path) -> Model:
    """The model that a ``config.json`` describes, named after its folder; a file of another name gives its own.

    Raises:
        InputError: the file cannot be read, is not a JSON object, or `model_from_config` refuses it.
    """
    config = parse_json(read_text(path, "a config.json"), str(path), "a config.json")
    if not isinstance(config, dict):
        raise InputError(f"{path}: found a JSON {type(config).__name__}, expected an object")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return model_from_config(config, name=name, source=str(path), where=str(path))


def model_from_config(config: Mapping[str, object], *, name: str, source: str, where: str) -> Model:
    """The model that the fields of a ``config.json`` describe; ``where`` names the file in messages.

    Raises:
        InputError: an architecture that is not supported, a missing or malformed field.
    """
    fields = _Fields(config, where)
    architecture = _architecture(fields)
    _refuse_unmodelled(fields)
    _check_quantization(fields)
    count = fields.integer("num_hidden_layers", at_most=MOST_LAYERS)
    _check_layer_indices(fields, count)
    layers = [
        Layer(_attention(fields, architecture, index), _ffn(fields, architecture, index)) for index in range(count)
    ]
    kinds = tuple(dict.fromkeys(layers))
    return Model(
        name=name,
        source=source,
        hidden=fields.integer("hidden_size"),
        vocab=fields.integer("vocab_size"),
        has_tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        max_context_tokens=fields.integer("max_position_embeddings", at_most=MOST_CONTEXT_TOKENS),
        kinds=kinds,
        pattern=tuple(kinds.index(layer) for layer in layers),
    )


def _architecture(fields: _Fields) -> str:
    listed = fields.values.get("architectures")
    found = listed[0] if isinstance(listed, list) and listed else None
    if found not in ARCHITECTURES:
        raise fields.refuse("architectures", f"one of {', '.join(ARCHITECTURES)}")
    return str(found)


def _refuse_unmodelled(fields: _Fields) -> None:
    for name in ("attention_bias", "mlp_bias"):
        if fields.flag(name, default=False):
            raise fields.refuse(name, "false (biases are not modelled)")
    if fields.flag("use_sliding_window", default=fields.has("sliding_window")):
        name = "sliding_window" if fields.has("sliding_window") else "use_sliding_window"
        raise fields.refuse(name, "no sliding window (not modelled)")


def _check_quantization(fields: _Fields) -> None:
    if not fields.has("quantization_config"):
        return
    value = fields.values["quantization_config"]
    if not isinstance(value, dict):
        raise fields.refuse("quantization_config", "an object or nothing")
    quantization = _Fields(value, f"{fields.where}: quantization_config")
    if value.get("quant_method") != "fp8":
        raise quantization.refuse("quant_method", "fp8 or no quantization_config; choose weights in the engine")
    if value.get("weight_block_size") != _FP8_BLOCK:
        raise quantization.refuse("weight_block_size", f"{_FP8_BLOCK}; choose weights in the engine")


_FP8_BLOCK = [128, 128]
"""Weights that share a scale (DeepSeek-V3 technical report, § 3.3)."""


def _check_layer_indices(fields: _Fields, layers: int) -> None:
    for index in fields.indices("mlp_only_layers"):
        if not 0 <= index < layers:
            raise fields.refuse("mlp_only_layers", f"indices 0 to {layers - 1} (num_hidden_layers {layers})")
    if fields.integer("first_k_dense_replace", default=0, at_least=0) > layers:
        raise fields.refuse("first_k_dense_replace", f"at most num_hidden_layers, {layers}")
    types = fields.values.get("layer_types")
    if isinstance(types, list) and len(types) != layers:
        raise InputError(
            f"{fields.where}: layer_types: found {len(types)} entries, expected {layers} (num_hidden_layers)"
        )


def _attention(fields: _Fields, architecture: str, index: int) -> Attention:
    if architecture in _LATENT:
        return _latent_attention(fields, is_sparse=architecture == "DeepseekV32ForCausalLM")
    is_next = architecture == "Qwen3NextForCausalLM"
    if is_next and _is_linear_layer(fields, index):
        return _gated_delta_net(fields)
    heads = fields.integer("num_attention_heads")
    head_dim = _head_dim(fields, heads)
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=round(head_dim * fields.fraction("partial_rotary_factor", default=0.25 if is_next else 1.0)),
        has_head_norm=architecture.startswith("Qwen3"),
        has_output_gate=is_next,
    )


def _head_dim(fields: _Fields, heads: int) -> int:
    """``head_dim`` where it is given; hidden/heads is only the default, and wrong for Qwen3."""
    if fields.has("head_dim"):
        return fields.integer("head_dim")
    hidden = fields.integer("hidden_size")
    if hidden % heads:
        raise fields.refuse("head_dim", f"a value, as hidden_size {hidden} is not divisible by {heads} heads")
    return hidden // heads


def _latent_attention(fields: _Fields, *, is_sparse: bool) -> LatentAttention:
    return LatentAttention(
        heads=fields.integer("num_attention_heads"),
        q_lora_rank=fields.integer("q_lora_rank") if is_sparse or fields.has("q_lora_rank") else None,
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
        indexer=_indexer(fields) if is_sparse else None,
    )


def _indexer(fields: _Fields) -> Indexer:
    """Queries of the indexer are projected from the compressed query, which `_latent_attention` requires with it."""
    return Indexer(
        heads=fields.integer("index_n_heads"),
        head_dim=fields.integer("index_head_dim"),
        topk=fields.integer("index_topk"),
    )


def _is_linear_layer(fields: _Fields, index: int) -> bool:
    types = fields.values.get("layer_types")
    if types is None:
        return (index + 1) % fields.integer("full_attention_interval", default=4) != 0
    if not isinstance(types, list) or types[index] not in _LAYER_TYPES:
        raise fields.refuse("layer_types", f"one of {', '.join(_LAYER_TYPES)} for each layer")
    return bool(types[index] == "linear_attention")


_LAYER_TYPES = ("linear_attention", "full_attention")


def _gated_delta_net(fields: _Fields) -> GatedDeltaNet:
    head_dim = fields.integer("linear_key_head_dim")
    if fields.integer("linear_value_head_dim") != head_dim:
        raise fields.refuse("linear_value_head_dim", f"linear_key_head_dim, {head_dim}")
    return GatedDeltaNet(
        key_heads=fields.integer("linear_num_key_heads"),
        value_heads=fields.integer("linear_num_value_heads"),
        head_dim=head_dim,
        conv_width=fields.integer("linear_conv_kernel_dim", at_least=2),
    )


def _ffn(fields: _Fields, architecture: str, index: int) -> Ffn:
    match architecture:
        case "MixtralForCausalLM":
            return _moe(fields, architecture, experts="num_local_experts", intermediate="intermediate_size")
        case "Qwen3MoeForCausalLM" | "Qwen3NextForCausalLM":
            step = fields.integer("decoder_sparse_step", default=1)
            is_dense = index in fields.indices("mlp_only_layers") or (index + 1) % step != 0
            experts = "num_experts"
        case "DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM" | "DeepseekV32ForCausalLM":
            first = fields.integer("first_k_dense_replace", at_least=0)
            is_dense = index < first or index % fields.integer("moe_layer_freq", default=1) != 0
            experts = "n_routed_experts"
        case _:
            is_dense = True
    if is_dense:
        return DenseFfn(fields.integer("intermediate_size"))
    return _moe(fields, architecture, experts=experts, intermediate="moe_intermediate_size")


def _moe(fields: _Fields, architecture: str, *, experts: str, intermediate: str) -> MoeFfn:
    count, expert_intermediate = fields.integer(experts, at_most=MOST_EXPERTS), fields.integer(intermediate)
    if fields.integer("num_experts_per_tok") > count:
        raise fields.refuse("num_experts_per_tok", f"at most {experts}, {count}")
    match architecture:
        case "Qwen3NextForCausalLM":
            shared = fields.integer("shared_expert_intermediate_size", at_least=0)
        case "DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM" | "DeepseekV32ForCausalLM":
            shared = fields.integer("n_shared_experts", at_least=0, at_most=MOST_EXPERTS) * expert_intermediate
        case _:
            shared = 0
    return MoeFfn(
        experts=count,
        experts_per_token=fields.integer("num_experts_per_tok"),
        intermediate=expert_intermediate,
        shared_intermediate=shared,
        has_shared_gate=architecture == "Qwen3NextForCausalLM" and shared > 0,
        has_correction_bias=architecture in ("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"),
    )
