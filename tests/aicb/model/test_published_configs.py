"""Published configurations of many models: described as the built-in ones are, or refused by the field in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aicb import InputError, load_model
from aicb.model.architecture import GroupedQueryAttention, MoeFfn
from aicb.model.catalog import built_in_models
from aicb.model.key_span import KeySpan

Config = dict[str, Any]

# With the fields that change nothing (token ids, RoPE, dropout), as they are published.
QWEN_2_5_7B: Config = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
GPT_OSS_20B: Config = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
        "quant_method": "mxfp4",
    },
    "rope_scaling": {"factor": 32.0, "rope_type": "yarn", "original_max_position_embeddings": 4096},
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
GPT_OSS_120B = GPT_OSS_20B | {
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_hidden_layers": 36,
    "num_local_experts": 128,
}
GLM_4_5_AIR: Config = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "rope_scaling": None,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_qk_norm": False,
    "vocab_size": 151552,
}
GLM_4_5 = GLM_4_5_AIR | {
    "first_k_dense_replace": 3,
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 160,
    "num_hidden_layers": 92,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
}
MINIMAX_M2: Config = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "attn_type_list": [1] * 62,
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "max_position_embeddings": 196608,
    "mlp_intermediate_size": 8192,
    "model_type": "minimax_m2",
    "mtp_transformer_layers": 1,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "num_mtp_modules": 3,
    "qk_norm_type": "per_layer",
    "quantization_config": {"fmt": "float8_e4m3fn", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rotary_dim": 64,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200064,
}
LLAMA_4_TEXT: Config = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "head_dim": 128,
    "hidden_size": 5120,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "model_type": "llama4_text",
    "no_rope_layers": [],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "rope_scaling": {"factor": 16.0, "rope_type": "llama3"},
    "use_qk_norm": True,
    "vocab_size": 202048,
}
MAVERICK_TEXT = LLAMA_4_TEXT | {
    "interleave_moe_layer_step": 2,
    "max_position_embeddings": 1048576,
    "num_local_experts": 128,
    "use_qk_norm": False,
}


def llama_4(text: Config) -> Config:
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "boi_token_index": 200080,
        "model_type": "llama4",
        "text_config": text,
        "vision_config": {"hidden_size": 1408, "num_hidden_layers": 34},
    }


DESCRIBED: dict[str, Config] = {
    "qwen2.5-7b": QWEN_2_5_7B,
    "gpt-oss-20b": GPT_OSS_20B,
    "gpt-oss-120b": GPT_OSS_120B,
    "glm-4.5-air": GLM_4_5_AIR,
    "glm-4.5": GLM_4_5,
    "glm-4.6": GLM_4_5 | {"max_position_embeddings": 202752},
    "minimax-m2": MINIMAX_M2,
    "llama-4-scout": llama_4(LLAMA_4_TEXT),
    "llama-4-maverick": llama_4(MAVERICK_TEXT),
}


def read(directory: Path, config: Config) -> Any:
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return load_model(str(directory))


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_published_config_gives_the_built_in_model(name: str, tmp_path: Path) -> None:
    found, built_in = read(tmp_path, DESCRIBED[name]), load_model(name)
    assert found == built_in
    assert found.published_weights == built_in.published_weights
    assert found.draft_layers == built_in.draft_layers


def test_models_with_layers_that_draft() -> None:
    with_layers = {"deepseek-v3", "deepseek-r1", "deepseek-v3.2", "glm-4.5", "glm-4.5-air", "glm-4.6", "minimax-m2"}
    found = {name for name in built_in_models() if load_model(name).draft_layers}
    assert found == with_layers | {"qwen3-next-80b-a3b"}


@pytest.mark.parametrize(
    ("name", "hidden", "layers", "heads", "kv_heads", "intermediate", "vocab", "is_tied"),
    [
        ("qwen2.5-0.5b", 896, 24, 14, 2, 4864, 151936, True),
        ("qwen2.5-1.5b", 1536, 28, 12, 2, 8960, 151936, True),
        ("qwen2.5-3b", 2048, 36, 16, 2, 11008, 151936, True),
        ("qwen2.5-14b", 5120, 48, 40, 8, 13824, 152064, False),
        ("qwen2.5-32b", 5120, 64, 40, 8, 27648, 152064, False),
        ("qwen2.5-72b", 8192, 80, 64, 8, 29568, 152064, False),
    ],
)
def test_every_size_of_qwen_2_5_is_built_in(
    name: str,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    is_tied: bool,
    tmp_path: Path,
) -> None:
    own = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocab}
    own |= {"num_key_value_heads": kv_heads, "intermediate_size": intermediate, "tie_word_embeddings": is_tied}
    assert read(tmp_path, QWEN_2_5_7B | own) == load_model(name)


def without(config: Config, *names: str) -> Config:
    return {key: value for key, value in config.items() if key not in names}


def test_layers_of_gpt_oss_alternate_also_where_the_file_does_not_list_them(tmp_path: Path) -> None:
    assert read(tmp_path, without(GPT_OSS_20B, "layer_types")) == load_model("gpt-oss-20b")


def test_a_window_of_qwen_begins_at_max_window_layers(tmp_path: Path) -> None:
    asked = QWEN_2_5_7B | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    spans = [layer.attention.span for layer in read(tmp_path, asked).layers]
    assert spans == [None] * 20 + [KeySpan("sliding", 4096)] * 8


def test_a_window_of_mistral_is_that_of_every_layer(tmp_path: Path) -> None:
    mistral = without(QWEN_2_5_7B, "use_sliding_window", "max_window_layers") | {
        "architectures": ["MistralForCausalLM"]
    }
    spans = {layer.attention.span for layer in read(tmp_path, mistral | {"sliding_window": 4096}).layers}
    assert spans == {KeySpan("sliding", 4096)}
    assert {layer.attention.span for layer in read(tmp_path, mistral | {"sliding_window": None}).layers} == {None}


def test_biases_of_attention_are_weights(tmp_path: Path) -> None:
    """Qwen2.5-7B: 28·128 + 2·4·128 per layer, and with those of the output projection of Llama 3584 more."""
    attention = read(tmp_path, QWEN_2_5_7B).layers[0].attention
    plain = read(tmp_path, QWEN_2_5_7B | {"architectures": ["LlamaForCausalLM"], "sliding_window": None})
    biased = read(
        tmp_path, QWEN_2_5_7B | {"architectures": ["LlamaForCausalLM"], "sliding_window": None, "attention_bias": True}
    )
    assert attention.parameters(3584) - plain.layers[0].attention.parameters(3584) == 28 * 128 + 2 * 4 * 128
    assert biased.layers[0].attention.parameters(3584) - attention.parameters(3584) == 3584
    assert isinstance(attention, GroupedQueryAttention)


def test_the_router_bias_of_minimax_may_be_missing(tmp_path: Path) -> None:
    network = read(tmp_path, MINIMAX_M2 | {"use_routing_bias": False}).layers[0].ffn
    assert isinstance(network, MoeFfn)
    assert not network.has_correction_bias


LLAMA = without(QWEN_2_5_7B, "sliding_window", "use_sliding_window", "max_window_layers") | {
    "architectures": ["LlamaForCausalLM"]
}
DEEPSEEK: Config = {
    **without(GLM_4_5_AIR, "attention_bias", "use_qk_norm", "head_dim"),
    **{"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512, "q_lora_rank": 1536},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
}
# name: (configuration as far as it says what is in the way, the refusal)
REFUSED: dict[str, tuple[Config, str]] = {
    "Gemma-3 27B": ({"architectures": ["Gemma3ForConditionalGeneration"]}, "architectures: found"),
    "Qwen2-57B-A14B": ({"architectures": ["Qwen2MoeForCausalLM"]}, "architectures: found"),
    "MiniMax-Text-01": ({"architectures": ["MiniMaxText01ForCausalLM"]}, "architectures: found"),
    "Kimi-Linear": ({"architectures": ["KimiLinearForCausalLM"]}, "architectures: found"),
    "GLM-5": ({"architectures": ["GlmMoeDsaForCausalLM"]}, "architectures: found"),
    "MiMo-V2-Flash": ({"architectures": ["MiMoV2FlashForCausalLM"]}, "architectures: found"),
    "a file without architectures": (without(LLAMA, "architectures"), "architectures: found nothing, expected one of"),
    "DeepSeek-V3.2 under the name of V3": (DEEPSEEK | {"index_topk": 2048}, "index_topk: found 2048, expected nothing"),
    "MLA under the name of Llama": (LLAMA | {"kv_lora_rank": 512}, "kv_lora_rank: found 512, expected nothing"),
    "experts under the name of Llama": (
        LLAMA | {"num_local_experts": 8},
        "num_local_experts: found 8, expected nothing",
    ),
    "a window under the name of Llama": (
        LLAMA | {"sliding_window": 4096},
        "sliding_window: found 4096, expected nothing",
    ),
    "biases of the network": (LLAMA | {"mlp_bias": True}, "mlp_bias: found True, expected nothing or false"),
    "a shared expert of Qwen3": (
        GPT_OSS_20B | {"shared_expert_intermediate_size": 512},
        "shared_expert_intermediate_size: found 512, expected nothing or 0",
    ),
    "linear layers of MiniMax": (
        MINIMAX_M2 | {"attn_type_list": [0, 1] * 31},
        r"attn_type_list: found \[0, 1, .*, expected 1 for each layer",
    ),
    "MiniMax with a norm per head": (
        MINIMAX_M2 | {"qk_norm_type": "per_head"},
        "qk_norm_type: found 'per_head', expected",
    ),
    "layers of an unknown kind": (
        GPT_OSS_20B | {"layer_types": ["sliding_attention", "compressed_attention"] * 12},
        "layer_types: found 'compressed_attention', expected one of chunked_attention, full_attention, slid",
    ),
    "linear layers outside Qwen3-Next": (
        LLAMA | {"layer_types": ["linear_attention"] * 28},
        "layer_types: found 'linear_attention', expected one of",
    ),
    "a window without a length": (
        GPT_OSS_20B | {"sliding_window": None},
        "sliding_window: found None, expected an int",
    ),
    "gpt-oss in NVFP4": (
        GPT_OSS_20B | {"quantization_config": {"quant_method": "modelopt"}},
        "quantization_config: quant_method: found 'modelopt', expected fp8",
    ),
    "Llama in MXFP4": (
        LLAMA | {"quantization_config": {"quant_method": "mxfp4"}},
        "quantization_config: quant_method: found 'mxfp4', expected fp8",
    ),
    "GLM-4.6-FP8": (
        GLM_4_5 | {"quantization_config": {"quant_method": "compressed-tensors"}},
        "quantization_config: quant_method: found 'compressed-tensors', expected fp8",
    ),
    "Llama 4 with RoPE listed for other layers": (
        llama_4(LLAMA_4_TEXT | {"no_rope_layers": [1, 1, 1, 0]}),
        r"text_config: no_rope_layers: found \[1, 1, 1, 0\], expected 48 entries",
    ),
    "Llama 4 without its text part": (without(llama_4(LLAMA_4_TEXT), "text_config"), "text_config: found nothing"),
    "shared KV of Gemma 3n": (
        LLAMA | {"num_kv_shared_layers": 10},
        "num_kv_shared_layers: found 10, expected nothing or 0",
    ),
    "an encoder": (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder: found True, expected nothing or false"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_described_is_refused_by_its_field(name: str, tmp_path: Path) -> None:
    config, message = REFUSED[name]
    with pytest.raises(InputError, match=f"config.json: {message}") as refused:
        read(tmp_path, config)
    assert "\n" not in str(refused.value)
