"""Dimensions of a model from a Hugging Face ``config.json``.

Fields that do not change cost or size (initialisers, token ids) are ignored. Features that would, and that the reader
of the architecture has not asked for, are refused by their field. A checkpoint may be quantised to fp8 in blocks of
128 by 128, or to mxfp4 experts in gpt-oss, though the format of weights is chosen with the engine; other quantisations
are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aicb.model.architecture import Layer, Model
from aicb.model.config_attention import attentions
from aicb.model.config_classes import has_tied_embeddings, language_model
from aicb.model.config_ffn import networks
from aicb.model.config_fields import MOST_LAYERS, Fields
from aicb.model.config_rope import max_context_tokens
from aicb.model.precision import WeightDtype
from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.text_files import read_text

COSTLY: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "qkv_bias", "bias", "use_bias", "lm_head_bias"), (False,)),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm", "attn_output_gate", "use_sliding_window"), (False,)),
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention"), (False,)),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "attn_window_size", "window_size"), ()),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "index_topk", "index_n_heads"), ()),
    **dict.fromkeys(("linear_num_key_heads", "linear_attn_config", "mamba_d_state", "ssm_state_size"), ()),
    **dict.fromkeys(("quantization_config", "vision_config", "attn_logit_softcapping"), ()),
    **dict.fromkeys(("hybrid_layer_pattern", "hybrid_override_pattern", "cross_attention_layers"), ([],)),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"), ()),
    **dict.fromkeys(("n_shared_experts", "shared_expert_intermediate_size", "shared_intermediate_size"), (0,)),
    **dict.fromkeys(("num_kv_shared_layers", "first_k_dense_replace", "zero_expert_num"), (0,)),
    **dict.fromkeys(("mlp_only_layers", "moe_layers"), ([],)),
    **dict.fromkeys(("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"), (1,)),
}
"""Fields that change cost where an architecture has them, with the values that do not. Of a multimodal model the text
part is read, in whose section a quantisation would be out of place."""
_FP8_BLOCK = [128, 128]
"""Weights that share a scale (DeepSeek-V3 technical report, § 3.3)."""


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
        InputError: an architecture that is not supported, a missing or malformed field, a feature that is not modelled.
    """
    whole = Fields(config, where)
    architecture, fields = language_model(whole)
    published = _published_weights(whole, architecture)
    count = fields.integer("num_hidden_layers", at_most=MOST_LAYERS)
    of_layers = zip(attentions(fields, architecture, count), networks(fields, architecture, count), strict=True)
    layers = [Layer(attention, network) for attention, network in of_layers]
    kinds = tuple(dict.fromkeys(layers))
    model = Model(
        name=name,
        source=source,
        hidden=fields.integer("hidden_size"),
        vocab=fields.integer("vocab_size"),
        has_tied_embeddings=has_tied_embeddings(whole, fields),
        max_context_tokens=max_context_tokens(fields),
        kinds=kinds,
        pattern=tuple(kinds.index(layer) for layer in layers),
        published_weights=published,
        draft_layers=_draft_layers(fields, architecture),
    )
    _refuse_unread(fields)
    return model


def _draft_layers(fields: Fields, architecture: str) -> int:
    """Qwen3-Next's configuration does not name the layer that its checkpoint has (``mtp.*``)."""
    name = "num_mtp_modules" if architecture == "MiniMaxM2ForCausalLM" else "num_nextn_predict_layers"
    return fields.integer(name, int(architecture == "Qwen3NextForCausalLM"), at_least=0, at_most=MOST_LAYERS)


def _refuse_unread(fields: Fields) -> None:
    """Refuses what would change the cost of an architecture that does not know it."""
    for name, harmless in COSTLY.items():
        value = fields.values.get(name)
        if name not in fields.read and value is not None and value not in harmless:
            expected = " or ".join(["nothing", *(str(each).lower() for each in harmless)])
            raise fields.refuse(name, f"{expected} (not modelled in this architecture)")
    kinds = fields.values.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise fields.refuse("attn_type_list", "1 for each layer (linear attention of MiniMax is not modelled)")


def _published_weights(fields: Fields, architecture: str) -> WeightDtype:
    if not fields.has("quantization_config"):
        return "bf16"
    value = fields.values["quantization_config"]
    if not isinstance(value, dict):
        raise fields.refuse("quantization_config", "an object or nothing")
    quantization = Fields(value, f"{fields.where}: quantization_config")
    method = value.get("quant_method")
    if method == "mxfp4" and architecture == "GptOssForCausalLM":
        return "mxfp4"
    if method != "fp8":
        raise quantization.refuse("quant_method", "fp8 or no quantization_config; choose weights in the engine")
    if value.get("weight_block_size") != _FP8_BLOCK:
        raise quantization.refuse("weight_block_size", f"{_FP8_BLOCK}; choose weights in the engine")
    return "fp8"
