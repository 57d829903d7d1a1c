"""Attention of the layers that a ``config.json`` describes."""

from __future__ import annotations

from aicb.model.architecture import (
    Attention,
    GatedDeltaNet,
    GroupedQueryAttention,
    Indexer,
    LatentAttention,
    QkNorm,
)
from aicb.model.config_fields import Fields
from aicb.model.config_rope import partial_rotary_factor
from aicb.model.key_span import KeySpan
from boundary.errors import InputError
from boundary.quoting import quoted

_LATENT = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM")
_SPARSE_TYPES = ("indexed_attention", "deepseek_sparse_attention")
"""Layers of DeepSeek-V3.2 as Transformers 5 writes them and vLLM knows them; published files do not list them."""
LLAMA_4 = "Llama4ForCausalLM"
_WINDOWED_IF_ASKED = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
_NOPE_INTERVAL = 4
"""Every fourth layer of Llama 4 has no positions (``no_rope_layer_interval`` in Transformers 4.51)."""


def attentions(fields: Fields, architecture: str, layers: int) -> list[Attention]:
    """[layers]"""
    types = layer_types(fields, layers)
    if architecture in _LATENT:
        is_sparse = architecture == "DeepseekV32ForCausalLM"
        _require(fields, types, {"full_attention", *(_SPARSE_TYPES if is_sparse else ())})
        return [_latent_attention(fields, is_sparse=is_sparse)] * layers
    if architecture == "Qwen3NextForCausalLM":
        _require(fields, types, {"full_attention", "linear_attention"})
        interval = fields.integer("full_attention_interval", default=4)
        is_linear = [name == "linear_attention" for name in types or []] or [
            (index + 1) % interval != 0 for index in range(layers)
        ]
        linear = _gated_delta_net(fields) if any(is_linear) else None
        full = [_grouped(fields, architecture, None, has_positions=True)] * layers
        return [linear if linear and here else there for here, there in zip(is_linear, full, strict=True)]
    _require(fields, types, {"full_attention", "sliding_attention", "chunked_attention"})
    has_positions = _have_positions(fields, architecture, layers)
    spans = _spans(fields, architecture, types, has_positions)
    kinds = dict.fromkeys(zip(spans, has_positions, strict=True))
    made = {kind: _grouped(fields, architecture, kind[0], has_positions=kind[1]) for kind in kinds}
    return [made[kind] for kind in zip(spans, has_positions, strict=True)]


def layer_types(fields: Fields, layers: int) -> list[str] | None:
    """[layers] as the field of this name says, where it is given."""
    types = fields.value("layer_types")
    if types is None:
        return None
    fields.read.update(("sliding_window", "attention_chunk_size"))  # only listed layers have them
    if not isinstance(types, list):
        raise fields.refuse("layer_types", "a list with an entry for each layer")
    if len(types) != layers:
        raise InputError(
            f"{fields.where}: layer_types: found {len(types)} entries, expected {layers} (num_hidden_layers)"
        )
    return types


def _require(fields: Fields, types: list[str] | None, known: set[str]) -> None:
    for name in types or []:
        if not isinstance(name, str) or name not in known:
            expected = f"one of {', '.join(sorted(known))} for each layer"
            raise InputError(f"{fields.where}: layer_types: found {quoted(name)}, expected {expected}")


def _have_positions(fields: Fields, architecture: str, layers: int) -> list[bool]:
    """[layers] whether queries and keys are turned by RoPE."""
    if architecture != LLAMA_4:
        return [True] * layers
    listed = fields.indices("no_rope_layers")  # 1 where a layer has RoPE, against its name
    if listed and len(listed) != layers:
        raise fields.refuse("no_rope_layers", f"{layers} entries (num_hidden_layers)")
    interval = fields.integer("no_rope_layer_interval", default=_NOPE_INTERVAL)
    return [bool(flag) for flag in listed] or [(index + 1) % interval != 0 for index in range(layers)]


def _spans(
    fields: Fields, architecture: str, types: list[str] | None, has_positions: list[bool]
) -> list[KeySpan | None]:
    """[layers] keys that a query sees."""
    layers = len(has_positions)
    if types is None:
        types = _default_types(fields, architecture, has_positions)
    elif architecture in _WINDOWED_IF_ASKED:
        is_asked = fields.flag("use_sliding_window", default=False)
        if "sliding_attention" in types and not is_asked:
            raise fields.refuse("use_sliding_window", "true where layer_types has sliding_attention")
    sliding = KeySpan("sliding", fields.integer("sliding_window")) if "sliding_attention" in types else None
    chunked = KeySpan("chunked", fields.integer("attention_chunk_size")) if "chunked_attention" in types else None
    by_type = {"full_attention": None, "sliding_attention": sliding, "chunked_attention": chunked}
    return [by_type[types[index]] for index in range(layers)]


def _default_types(fields: Fields, architecture: str, has_positions: list[bool]) -> list[str]:
    """[layers] where ``layer_types`` is missing, as the architecture's configuration in Transformers fills it."""
    layers = len(has_positions)
    full, sliding = "full_attention", "sliding_attention"
    if architecture == LLAMA_4 and fields.has("attention_chunk_size"):
        return ["chunked_attention" if here else full for here in has_positions]
    if architecture == "GptOssForCausalLM":
        return [full if index % 2 else sliding for index in range(layers)]
    if architecture in _WINDOWED_IF_ASKED:
        has_first = architecture != "Qwen3MoeForCausalLM"  # whose window is that of every layer
        first = fields.integer("max_window_layers", default=layers, at_least=0) if has_first else 0
        has_window = fields.has("sliding_window")
        is_asked = fields.flag("use_sliding_window", default=False) and has_window
        return [sliding if is_asked and index >= first else full for index in range(layers)]
    if architecture in ("MistralForCausalLM", "MixtralForCausalLM") and fields.has("sliding_window"):
        return [sliding] * layers
    return [full] * layers


def _grouped(fields: Fields, architecture: str, span: KeySpan | None, *, has_positions: bool) -> GroupedQueryAttention:
    heads = fields.integer("num_attention_heads")
    head_dim = _head_dim(fields, heads)
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    is_next = architecture == "Qwen3NextForCausalLM"
    has_qkv_bias, has_output_bias = _have_biases(fields, architecture)
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=_rotary_dim(fields, architecture, head_dim) if has_positions else 0,
        qk_norm=_qk_norm(fields, architecture, has_positions=has_positions),
        has_output_gate=fields.flag("attn_output_gate", default=is_next),
        has_qkv_bias=has_qkv_bias,
        has_output_bias=has_output_bias,
        has_sinks=architecture == "GptOssForCausalLM",
        span=span,
    )


def _head_dim(fields: Fields, heads: int) -> int:
    """``head_dim`` of the file or its class; hidden/heads where neither has it."""
    if fields.has("head_dim"):
        return fields.integer("head_dim")
    hidden = fields.integer("hidden_size")
    if hidden % heads:
        raise fields.refuse("head_dim", f"a value, as hidden_size {hidden} is not divisible by {heads} heads")
    return hidden // heads


def _rotary_dim(fields: Fields, architecture: str, head_dim: int) -> int:
    if architecture == "MiniMaxM2ForCausalLM" and fields.has("rotary_dim"):
        return fields.integer("rotary_dim", at_most=head_dim)
    return round(head_dim * partial_rotary_factor(fields))


def _qk_norm(fields: Fields, architecture: str, *, has_positions: bool) -> QkNorm:
    if architecture.startswith("Qwen3"):
        return "per_head"
    if architecture == "MiniMaxM2ForCausalLM" and fields.flag("use_qk_norm", default=True):
        fields.choice("qk_norm_type", "per_layer", ("per_layer",))
        return "whole"
    if architecture == "Glm4MoeForCausalLM" and fields.flag("use_qk_norm", default=False):
        return "per_head"
    if architecture == LLAMA_4 and fields.flag("use_qk_norm", default=True) and has_positions:
        return "weightless"
    return "none"


def _have_biases(fields: Fields, architecture: str) -> tuple[bool, bool]:
    """Whether the projections of queries, keys and values add a bias, and whether that of the output does."""
    if architecture == "Qwen2ForCausalLM":
        return True, False
    has_bias = fields.flag("attention_bias", default=False)
    return has_bias, has_bias and architecture != "Glm4MoeForCausalLM"


def _latent_attention(fields: Fields, *, is_sparse: bool) -> LatentAttention:
    return LatentAttention(
        heads=fields.integer("num_attention_heads"),
        q_lora_rank=fields.integer("q_lora_rank") if is_sparse or fields.has("q_lora_rank") else None,
        kv_lora_rank=fields.integer("kv_lora_rank"),
        qk_nope_head_dim=fields.integer("qk_nope_head_dim"),
        qk_rope_head_dim=fields.integer("qk_rope_head_dim"),
        v_head_dim=fields.integer("v_head_dim"),
        indexer=_indexer(fields) if is_sparse else None,
    )


def _indexer(fields: Fields) -> Indexer:
    """Queries of the indexer are projected from the compressed query, which `_latent_attention` requires with it."""
    return Indexer(
        heads=fields.integer("index_n_heads"),
        head_dim=fields.integer("index_head_dim"),
        topk=fields.integer("index_topk"),
    )


def _gated_delta_net(fields: Fields) -> GatedDeltaNet:
    head_dim = fields.integer("linear_key_head_dim")
    if fields.integer("linear_value_head_dim") != head_dim:
        raise fields.refuse("linear_value_head_dim", f"linear_key_head_dim, {head_dim}")
    return GatedDeltaNet(
        key_heads=fields.integer("linear_num_key_heads"),
        value_heads=fields.integer("linear_num_value_heads"),
        head_dim=head_dim,
        conv_width=fields.integer("linear_conv_kernel_dim", at_least=2),
    )
