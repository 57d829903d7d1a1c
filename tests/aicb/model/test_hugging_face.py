"""The config.json reader: equal to the built-in models, strict about what it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aicb import InputError, load_model
from aicb.model.architecture import DenseFfn, GroupedQueryAttention, LatentAttention

# As published, with the fields that do not change cost (token ids, RoPE scaling, quantisation) left in.
QWEN3_30B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
LLAMA_2_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}
CONFIGS = {
    "qwen3-30b-a3b": QWEN3_30B,
    "deepseek-v3": DEEPSEEK_V3,
    "llama-2-7b": LLAMA_2_7B,
    "qwen3-next-80b-a3b": QWEN3_NEXT,
}


def write(directory: Path, config: object) -> str:
    path = directory / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_config_gives_the_built_in_model(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, CONFIGS[name])
    assert load_model(path) == load_model(name)
    assert load_model(str(tmp_path)) == load_model(name)


def test_models_of_other_dimensions_are_not_equal(tmp_path: Path) -> None:
    assert load_model(write(tmp_path, QWEN3_30B | {"num_hidden_layers": 47})) != load_model("qwen3-30b-a3b")


def test_a_model_is_named_after_its_directory(tmp_path: Path) -> None:
    (tmp_path / "my-model").mkdir()
    assert load_model(write(tmp_path / "my-model", LLAMA_2_7B)).name == "my-model"


def test_head_dim_is_hidden_over_heads_where_neither_the_file_nor_the_class_has_it(tmp_path: Path) -> None:
    """Qwen3MoeConfig has no default of its own, as Qwen3Config does: 2048 / 32 = 64."""
    missing = {key: value for key, value in QWEN3_30B.items() if key != "head_dim"}
    for config, expected in ((QWEN3_30B, 128), (missing, 64), (QWEN3_30B | {"head_dim": None}, 64)):
        attention = load_model(write(tmp_path, config)).layers[0].attention
        assert isinstance(attention, GroupedQueryAttention)
        assert attention.head_dim == expected


def test_queries_of_deepseek_may_be_uncompressed(tmp_path: Path) -> None:
    """DeepSeek-V2-Lite projects queries directly: 7168·128·192 weights instead of 1536·(7168 + 1 + 128·192)."""
    model = load_model(write(tmp_path, DEEPSEEK_V3 | {"q_lora_rank": None}))
    attention = model.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert attention.q_lora_rank is None
    compressed = load_model("deepseek-v3").layers[0].attention.parameters(7168)
    assert attention.parameters(7168) - compressed == 7168 * 128 * 192 - 1536 * (7168 + 1 + 128 * 192)


def test_layer_types_decide_where_attention_is_linear(tmp_path: Path) -> None:
    types = ["full_attention" if (index + 1) % 4 == 0 else "linear_attention" for index in range(48)]
    assert load_model(write(tmp_path, QWEN3_NEXT | {"layer_types": types})) == load_model("qwen3-next-80b-a3b")
    with pytest.raises(InputError, match=r"config.json: layer_types: found 10 entries, expected 48"):
        load_model(write(tmp_path, QWEN3_NEXT | {"layer_types": types[:10]}))
    with pytest.raises(InputError, match=r"config.json: layer_types: found .* expected one of"):
        load_model(write(tmp_path, QWEN3_NEXT | {"layer_types": ["linear", *types[1:]]}))


def test_mlp_only_layers_are_dense(tmp_path: Path) -> None:
    model = load_model(write(tmp_path, QWEN3_30B | {"mlp_only_layers": [0, 5]}))
    expected = 2 * (3 * 2048 * 6144 - 128 * 3 * 2048 * 768 - 128 * 2048)
    assert model.parameters - load_model("qwen3-30b-a3b").parameters == expected


@pytest.mark.parametrize(("file", "name"), [("llama.json", "llama"), ("llama-2.7b.json", "llama-2.7b")])
def test_a_file_of_another_name_gives_the_model_its_stem(file: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text(json.dumps(LLAMA_2_7B), encoding="utf-8-sig")
    assert load_model(str(tmp_path / file)).name == name


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "awq", "bits": 4}, "quant_method: found 'awq', expected fp8 or no quantization_config"),
        ({"quant_method": "gptq"}, "quant_method: found 'gptq', expected fp8"),
        ({"quant_method": "compressed-tensors"}, "quant_method: found 'compressed-tensors', expected fp8"),
        ({"bits": 4}, "quant_method: found nothing, expected fp8"),
        (
            {"quant_method": "fp8"},
            r"weight_block_size: found nothing, expected \[128, 128\]; choose weights in the eng",
        ),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size: found \[64, 64\], expected"),
    ],
)
def test_a_quantisation_that_is_not_priced_is_refused(
    quantization: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, DEEPSEEK_V3 | {"quantization_config": quantization})
    with pytest.raises(InputError, match=f"config.json: quantization_config: {message}") as refused:
        load_model(path)
    assert "\n" not in str(refused.value)


def test_no_quantisation_and_that_of_deepseek_are_the_same_model(tmp_path: Path) -> None:
    assert load_model(write(tmp_path, DEEPSEEK_V3 | {"quantization_config": None})) == load_model("deepseek-v3")
    with pytest.raises(InputError, match="quantization_config: found 'fp8', expected an object or nothing"):
        load_model(write(tmp_path, DEEPSEEK_V3 | {"quantization_config": "fp8"}))


def test_as_many_dense_layers_as_layers_leave_no_experts(tmp_path: Path) -> None:
    model = load_model(write(tmp_path, DEEPSEEK_V3 | {"first_k_dense_replace": 61}))
    assert all(isinstance(layer.ffn, DenseFfn) for layer in model.layers)
    with pytest.raises(InputError, match="first_k_dense_replace: found 62, expected at most num_hidden_layers, 61"):
        load_model(write(tmp_path, DEEPSEEK_V3 | {"first_k_dense_replace": 62}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures: found \['GPT2LMHeadModel'\], expected one of Llama"),
        ({"architectures": None}, r"architectures: found None, expected one of"),
        ({"hidden_size": "2048"}, r"hidden_size: found '2048', expected an integer, 1 to"),
        ({"num_hidden_layers": 0}, r"num_hidden_layers: found 0, expected an integer, 1 to"),
        ({"num_experts": True}, r"num_experts: found True, expected an integer"),
        ({"num_key_value_heads": 5}, r"num_key_value_heads: found 5, expected a divisor of num_attention_heads 32"),
        ({"num_experts_per_tok": 129}, r"num_experts_per_tok: found 129, expected at most num_experts, 128"),
        ({"mlp_bias": True}, r"mlp_bias: found True, expected nothing or false \(not modelled"),
        ({"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping: found 50.0, expected nothing \(not modelled"),
        (
            {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 0},
            r"sliding_window: found 0, expected",
        ),
        ({"mlp_only_layers": [0, 48]}, r"mlp_only_layers: found \[0, 48\], expected indices 0 to 47"),
        ({"mlp_only_layers": [-1]}, r"mlp_only_layers: found \[-1\], expected indices 0 to 47"),
        ({"layer_types": ["full_attention"] * 47}, r"layer_types: found 47 entries, expected 48 \(num_hidden_layers\)"),
        ({"tie_word_embeddings": 1}, r"tie_word_embeddings: found 1, expected true or false"),
    ],
)
def test_a_wrong_field_is_refused_with_file_and_field(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = write(tmp_path, QWEN3_30B | change)
    with pytest.raises(InputError, match=f"config.json: {message}") as refused:
        load_model(path)
    assert str(refused.value).startswith(path)
    assert "\n" not in str(refused.value)


# Fields without a documented default, wherever a published file has them.
REQUIRED = {
    *("architectures", "hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"),
    *("max_position_embeddings", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("num_experts", "n_routed_experts", "n_shared_experts", "first_k_dense_replace", "num_experts_per_tok"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "linear_num_key_heads", "linear_num_value_heads"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"),
}


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in CONFIGS for field in sorted(REQUIRED & set(CONFIGS[name]))]
)
def test_a_field_without_a_default_is_required(name: str, field: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"config.json: {field}: found nothing, expected"):
        load_model(write(tmp_path, {key: value for key, value in CONFIGS[name].items() if key != field}))


def test_a_file_that_is_not_a_json_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("layers: 3", encoding="utf-8")
    with pytest.raises(InputError, match=r"config.json: found text that is not JSON"):
        load_model(str(tmp_path))
    with pytest.raises(InputError, match=r"config.json: found a JSON list, expected an object"):
        load_model(write(tmp_path, [1]))
    with pytest.raises(InputError, match=r"absent.json: found no such file, expected a config.json"):
        load_model(str(tmp_path / "absent.json"))
