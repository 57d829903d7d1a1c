"""Configuration classes of Hugging Face's Transformers: what an absent key means, and where a language model is.

A key that is absent has the default of its class; ``null`` is a value. Defaults are those of Transformers 5.24
(``models/*/configuration_*.py``; 4.57 has the same where it has the class), of keys that published files leave out.
Vision towers and projectors of multimodal models are not part of what is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aicb.model.config_fields import Fields
from boundary.errors import InputError
from boundary.quoting import quoted


@dataclass(frozen=True, slots=True)
class _ConfigClass:
    """A class by what its absent keys mean."""

    architecture: str
    """As which its layers are read."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Where they differ from what the readers of layers take."""
    sizes: Mapping[str, object] = field(default_factory=dict)
    """Dimensions that files of early wrappers (LLaVA 1.5) leave out of ``text_config`` where they are the default."""


def _sizes(hidden: int, intermediate: int, layers: int, heads: int, vocab: int, context: int) -> dict[str, object]:
    return {
        **{"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers},
        **{"num_attention_heads": heads, "vocab_size": vocab, "max_position_embeddings": context},
    }


def _yarn(factor: float, original: int) -> dict[str, object]:
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}


_LLAMA, _MISTRAL, _QWEN_2, _QWEN_3 = "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
_QWEN_3_MOE, _GLM_4_MOE, _LLAMA_4 = "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "Llama4ForCausalLM"
_OF_FILES: Mapping[str, _ConfigClass] = {
    "llama": _ConfigClass(_LLAMA, {}, _sizes(4096, 11008, 32, 32, 32000, 2048)),
    "mistral": _ConfigClass(
        _MISTRAL, {"num_key_value_heads": 8, "sliding_window": 4096}, _sizes(4096, 14336, 32, 32, 32000, 131072)
    ),
    "qwen2": _ConfigClass(
        _QWEN_2,
        {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
        _sizes(4096, 22016, 32, 32, 151936, 32768),
    ),
    "qwen3": _ConfigClass(
        _QWEN_3, {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28}
    ),
    "mixtral": _ConfigClass("MixtralForCausalLM", {"num_key_value_heads": 8}),
    "qwen3_moe": _ConfigClass(_QWEN_3_MOE, {"num_key_value_heads": 4, "sliding_window": 4096}),
    "qwen3_next": _ConfigClass(
        "Qwen3NextForCausalLM", {"num_key_value_heads": 2, "head_dim": 256, "partial_rotary_factor": 0.25}
    ),
    "deepseek_v2": _ConfigClass("DeepseekV2ForCausalLM", {"q_lora_rank": 1536}),
    "deepseek_v3": _ConfigClass("DeepseekV3ForCausalLM", {"q_lora_rank": 1536}),
    "deepseek_v32": _ConfigClass("DeepseekV32ForCausalLM", {"q_lora_rank": 1536, "n_group": 8, "topk_group": 4}),
    "gpt_oss": _ConfigClass(
        "GptOssForCausalLM",
        {
            **{"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "attention_bias": True},
            "rope_parameters": _yarn(32.0, 4096),
        },
    ),
    "glm4_moe": _ConfigClass(_GLM_4_MOE, {"num_key_value_heads": 8, "partial_rotary_factor": 0.5}),
    "minimax_m2": _ConfigClass("MiniMaxM2ForCausalLM", {"num_key_value_heads": 8, "head_dim": 128}),
    "llama4_text": _ConfigClass(_LLAMA_4, {"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192}),
}
"""By ``model_type``. ``head_dim`` is hidden/heads in the others: Qwen3's mixture of experts has no default of its own
(``getattr`` in ``modeling_qwen3_moe.py``)."""
_OF_SECTIONS: Mapping[str, _ConfigClass] = {
    "ministral3": _ConfigClass(
        _MISTRAL, {"num_key_value_heads": 8, "head_dim": 128, "rope_parameters": _yarn(16.0, 16384)}
    ),
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text"),
        _ConfigClass(_QWEN_2, {"num_key_value_heads": 8, "sliding_window": 4096, "max_window_layers": 80}),
    ),
    "qwen3_vl_text": _ConfigClass(_QWEN_3, {"num_key_value_heads": 32, "head_dim": 128}),
    "qwen3_vl_moe_text": _ConfigClass(_QWEN_3_MOE, {"num_key_value_heads": 16}),
    "glm4v_moe_text": _ConfigClass(
        _GLM_4_MOE, {"num_key_value_heads": 8, "partial_rotary_factor": 0.5, "attention_bias": True}
    ),
    "kimi_k2": _OF_FILES["deepseek_v3"],
}
"""Classes of ``text_config`` alone: their decoders are those of the architecture in cost. Positions have three parts,
the first layers add what a vision tower saw (Qwen-VL), queries are scaled by their position (Ministral 3)."""
_CLASSES = {**_OF_FILES, **_OF_SECTIONS}
_ARCHITECTURES = {each.architecture: each for each in _OF_FILES.values()}
_WRAPPERS_OF_ONE = {
    "Llama4ForConditionalGeneration": "llama4_text",
    "Qwen2VLForConditionalGeneration": "qwen2_vl_text",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl_text",
    "Qwen3VLForConditionalGeneration": "qwen3_vl_text",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl_moe_text",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe_text",
}
"""Multimodal models with a text class of their own, whatever ``model_type`` says (``sub_configs_defaults``)."""
_WRAPPERS_OF_ANY = {
    **dict.fromkeys(("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"), "llama"),
    **dict.fromkeys(("LlavaOnevisionForConditionalGeneration", "InternVLForConditionalGeneration"), "qwen2"),
    "Mistral3ForConditionalGeneration": "mistral",
    "KimiK25ForConditionalGeneration": "deepseek_v3",
}
"""Multimodal models around the class that ``model_type`` of ``text_config`` names, and the one where it names none
(``AutoModel.from_config(config.text_config)`` in ``modeling_*.py``)."""
_FLAT = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
"""Wrappers published without ``text_config``, its keys next to ``vision_config``."""


def language_model(whole: Fields) -> tuple[str, Fields]:
    """The architecture of a file's language model, and its fields: the file's own, or those of its ``text_config``.

    Raises:
        InputError: an architecture or a language model inside one that is not read.
    """
    listed = whole.value("architectures")
    found = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else ""
    if found in _ARCHITECTURES:
        return found, replace(whole, defaults=_ARCHITECTURES[found].defaults)
    if found in _FLAT and not whole.has("text_config"):
        whole.read.add("vision_config")
        inner = _CLASSES[_WRAPPERS_OF_ONE[found]]
        return inner.architecture, replace(whole, defaults=inner.defaults)
    if found not in _WRAPPERS_OF_ONE and found not in _WRAPPERS_OF_ANY:
        raise _unknown(whole)
    text = whole.section("text_config")
    name = _WRAPPERS_OF_ONE.get(found) or text.value("model_type", _WRAPPERS_OF_ANY[found])
    if not isinstance(name, str) or name not in _CLASSES:
        raise text.refuse("model_type", f"one of {', '.join(_CLASSES)}")
    inner = _CLASSES[name]
    return inner.architecture, replace(text, defaults={**inner.sizes, **inner.defaults})


def has_tied_embeddings(whole: Fields, text: Fields) -> bool:
    """``tie_word_embeddings`` of the file, by which Transformers 5 and vLLM go, else of its ``text_config``, by which
    Transformers 4 went.

    Where neither has it, the head is one of its own, against `Mistral3Config` of Transformers 5: Mistral Small 3.1 has
    23.6 of its 24.0 billion weights in a language model with a head.
    """
    name = "tie_word_embeddings"
    return (whole if whole.has(name) else text).flag(name, default=False)


def _unknown(whole: Fields) -> InputError:
    """The refusal of ``architectures``, with what to do where the language model inside is one that is read."""
    text = whole.values.get("text_config")
    name = text.get("model_type") if isinstance(text, dict) else None
    if isinstance(name, str) and name in _CLASSES:
        inner = f'text_config (a {name}) as a file with "architectures": ["{_CLASSES[name].architecture}"]'
        expected = f"a multimodal model of docs/models.md; to describe its language model, save {inner}"
    else:
        known = ", ".join(each.removesuffix("ForCausalLM") for each in _ARCHITECTURES)
        inner = "" if name is None else f", not one with a text_config of {quoted(name)}"
        expected = f"one of {known} (each with ForCausalLM), or a multimodal model of docs/models.md{inner}"
    return whole.refuse("architectures", expected)
