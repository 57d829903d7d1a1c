"""Absent keys of a config.json, and language models inside multimodal ones."""

from __future__ import annotations

from typing import Any

import pytest

from aicb import InputError, load_model
from aicb.model.architecture import GroupedQueryAttention, LatentAttention, Model, MoeFfn, span_of
from aicb.model.hugging_face import model_from_config
from aicb.model.key_span import KeySpan

Config = dict[str, Any]

PLAIN: Config = {
    "hidden_size": 4096,
    "intermediate_size": 1024,
    "max_position_embeddings": 32768,
    "num_attention_heads": 64,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
}
LOCAL: Config = {"num_local_experts": 8, "num_experts_per_tok": 2}
QWEN: Config = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
ROUTED: Config = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 512,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}
GROUPED: dict[str, Config] = {
    **{name: {} for name in ("Llama", "Mistral", "Qwen2", "Qwen3")},
    **dict.fromkeys(("Mixtral", "GptOss", "MiniMaxM2", "Llama4"), LOCAL),
    "Qwen3Moe": QWEN,
    "Qwen3Next": QWEN | {"shared_expert_intermediate_size": 512, "full_attention_interval": 1},
    "Glm4Moe": ROUTED,
}
LATENT: Config = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
INDEXED: Config = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}


def read(config: Config) -> Model:
    return model_from_config(config, name="", source="", where="config.json")


def plain(name: str, **fields: object) -> Config:
    return PLAIN | GROUPED[name] | {"architectures": [f"{name}ForCausalLM"]} | fields


def attention(config: Config, layer: int = 0) -> GroupedQueryAttention:
    found = read(config).layers[layer].attention
    assert isinstance(found, GroupedQueryAttention)
    return found


@pytest.mark.parametrize(
    ("name", "kv_heads", "head_dim", "span"),
    [
        ("Llama", 64, 64, None),
        ("Mistral", 8, 64, KeySpan("sliding", 4096)),
        ("Mixtral", 8, 64, None),
        ("Qwen2", 32, 64, None),
        ("Qwen3", 32, 128, None),
        ("Qwen3Moe", 4, 64, None),
        ("Qwen3Next", 2, 256, None),
        ("GptOss", 8, 64, KeySpan("sliding", 128)),
        ("Glm4Moe", 8, 64, None),
        ("MiniMaxM2", 8, 128, None),
        ("Llama4", 8, 128, KeySpan("chunked", 8192)),
    ],
)
def test_an_absent_key_has_the_default_of_its_class(
    name: str, kv_heads: int, head_dim: int, span: KeySpan | None
) -> None:
    """As ``configuration_*.py`` of Transformers 5.24 has them; 64 is 4096 / 64."""
    found = attention(plain(name))
    assert (found.kv_heads, found.head_dim, found.span) == (kv_heads, head_dim, span)
    assert found.rotary_dim == head_dim * {"Qwen3Next": 0.25, "Glm4Moe": 0.5}.get(name, 1)
    assert found.has_qkv_bias == (name in ("Qwen2", "GptOss"))
    assert not read(plain(name)).has_tied_embeddings


@pytest.mark.parametrize("name", GROUPED)
def test_null_is_not_an_absent_key(name: str) -> None:
    nothing = {"num_key_value_heads": None, "head_dim": None, "sliding_window": None, "attention_chunk_size": None}
    if name == "GptOss":
        nothing["sliding_window"] = 128  # half of its layers have one
    found = attention(plain(name, **nothing), layer=1)
    assert (found.kv_heads, found.head_dim, found.span) == (64, 64, None)


def test_qwen3_without_head_dim_has_the_heads_of_its_class() -> None:
    """Qwen3-0.6B: 16 heads of 128 over a hidden size of 1,024, of which 64 would be an equal share."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    }
    assert read(config) == load_model("qwen3-0.6b")


def test_a_window_that_is_asked_for_without_a_length_has_that_of_the_class() -> None:
    spans = [span_of(layer.attention) for layer in read(plain("Qwen2", use_sliding_window=True)).layers]
    assert spans == [None] * 28 + [KeySpan("sliding", 4096)] * 4


def test_a_window_of_qwen3_with_experts_is_that_of_every_layer() -> None:
    config = plain("Qwen3Moe", use_sliding_window=True, max_window_layers=28, sliding_window=1024)
    assert {span_of(layer.attention) for layer in read(config).layers} == {KeySpan("sliding", 1024)}


def deepseek(name: str, **fields: object) -> Config:
    index = INDEXED if name == "DeepseekV32" else {}
    return PLAIN | LATENT | ROUTED | index | {"architectures": [f"{name}ForCausalLM"]} | fields


@pytest.mark.parametrize("name", ["DeepseekV2", "DeepseekV3", "DeepseekV32"])
def test_queries_of_deepseek_are_compressed_where_the_file_does_not_say(name: str) -> None:
    found = read(deepseek(name)).layers[0].attention
    assert isinstance(found, LatentAttention)
    assert found.q_lora_rank == 1536


def test_experts_of_deepseek_v3_2_are_in_the_groups_of_its_class() -> None:
    ffn = read(deepseek("DeepseekV32")).layers[1].ffn
    assert isinstance(ffn, MoeFfn)
    assert (ffn.groups, ffn.groups_per_token) == (8, 4)


def test_a_default_that_does_not_fit_is_named_as_one() -> None:
    message = r"num_key_value_heads: found nothing \(by default 32\), expected a divisor of num_attention_heads 28"
    with pytest.raises(InputError, match=message):
        read(plain("Qwen2", num_attention_heads=28, hidden_size=3584))


def test_experts_of_qwen_may_have_the_name_that_transformers_5_writes() -> None:
    """``Qwen3MoeConfig`` keeps ``num_experts`` as ``num_local_experts`` (``attribute_map``)."""
    config = plain("Qwen3Moe")
    renamed = {key: value for key, value in config.items() if key != "num_experts"} | {"num_local_experts": 8}
    assert read(renamed) == read(config)
    with pytest.raises(InputError, match="num_local_experts: found 8, expected nothing"):
        read(config | {"num_local_experts": 8})


@pytest.mark.parametrize("kind", ["full_attention", "indexed_attention", "deepseek_sparse_attention"])
def test_layers_of_deepseek_v3_2_may_be_listed(kind: str) -> None:
    assert read(deepseek("DeepseekV32", layer_types=[kind] * 32)) == read(deepseek("DeepseekV32"))
    with pytest.raises(InputError, match=r"layer_types: found 'sparse', expected one of"):
        read(deepseek("DeepseekV32", layer_types=["sparse"] * 32))


# Published files, without what changes nothing.
QWEN_2_5_VL_7B: Config = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "hidden_size": 3584,
    "image_token_id": 151655,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "model_type": "qwen2_5_vl",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vision_config": {"depth": 32, "hidden_size": 1280, "num_heads": 16},
    "vocab_size": 152064,
}
QWEN_3_VL_4B: Config = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "head_dim": 128,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "vision_config": {"depth": 24, "hidden_size": 1024},
}
QWEN_3_VL_30B: Config = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "model_type": "qwen3_vl_moe",
    "text_config": {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_vl_moe_text",
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "vocab_size": 151936,
    },
    "tie_word_embeddings": False,
    "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": "qwen3_vl_moe"},
}
MISTRAL_SMALL_3_1: Config = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "spatial_merge_size": 2,
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "max_position_embeddings": 131072,
        "model_type": "mistral",
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "vocab_size": 131072,
    },
    "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
}
LLAVA_1_5_7B: Config = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "vocab_size": 32064,
    },
    "vision_config": {"hidden_size": 1024, "model_type": "clip_vision_model"},
    "vocab_size": 32064,
}


@pytest.mark.parametrize(
    ("config", "parameters", "kv_bytes", "context"),
    [
        # Qwen2.5-7B, Qwen3-4B and Qwen3-30B-A3B to the last weight.
        (QWEN_2_5_VL_7B, 7_615_616_512, 57_344, 128_000),
        (QWEN_3_VL_4B, 4_022_468_096, 147_456, 262_144),
        (QWEN_3_VL_30B, 30_532_122_624, 98_304, 262_144),
        # 40 · (5120·(2·4096 + 2·1024) + 3·5120·32768 + 2·5120) + 2·131072·5120 + 5120; 40 · 2 · 8 · 128 · 2 bytes.
        (MISTRAL_SMALL_3_1, 23_572_403_200, 163_840, 131_072),
        # Llama-2-7B with 64 tokens more: 6,738,415,616 + 2 · 64 · 4096.
        (LLAVA_1_5_7B, 6_738_939_904, 524_288, 4_096),
    ],
)
def test_the_language_model_of_a_published_multimodal_config(
    config: Config, parameters: int, kv_bytes: int, context: int
) -> None:
    model = read(config)
    assert (model.parameters, model.kv_bytes_per_token(), model.max_context_tokens) == (parameters, kv_bytes, context)


def test_multimodal_qwen_is_the_text_model_of_its_size_but_for_the_context() -> None:
    for config, name in (
        (QWEN_2_5_VL_7B, "qwen2.5-7b"),
        (QWEN_3_VL_4B, "qwen3-4b"),
        (QWEN_3_VL_30B, "qwen3-30b-a3b"),
    ):
        found, built_in = read(config), load_model(name)
        assert found.kinds == built_in.kinds
        assert found.has_tied_embeddings == built_in.has_tied_embeddings


def test_a_flat_file_is_the_same_with_a_section() -> None:
    outer = ("architectures", "model_type", "vision_config", "image_token_id")
    inner = {key: value for key, value in QWEN_2_5_VL_7B.items() if key not in outer}
    nested = {"architectures": QWEN_2_5_VL_7B["architectures"], "model_type": "qwen2_5_vl", "text_config": inner}
    assert read(nested) == read(QWEN_2_5_VL_7B)


@pytest.mark.parametrize(
    ("outer", "inner", "is_tied"),
    [(None, None, False), (None, True, True), (False, True, False), (True, False, True), (True, None, True)],
)
def test_the_outer_tie_of_embeddings_precedes_the_inner(outer: bool | None, inner: bool | None, is_tied: bool) -> None:
    text = MISTRAL_SMALL_3_1["text_config"] | ({} if inner is None else {"tie_word_embeddings": inner})
    config = MISTRAL_SMALL_3_1 | {"text_config": text} | ({} if outer is None else {"tie_word_embeddings": outer})
    assert read(config).has_tied_embeddings == is_tied


def test_a_wrapper_of_any_class_reads_what_model_type_says() -> None:
    """Ministral 3: YaRN of its class, 16,384 · 16, and no window, as Mistral would have without a value."""
    text = {key: value for key, value in MISTRAL_SMALL_3_1["text_config"].items() if key != "sliding_window"}
    ministral = read(MISTRAL_SMALL_3_1 | {"text_config": text | {"model_type": "ministral3"}})
    assert ministral.kinds == read(MISTRAL_SMALL_3_1).kinds
    assert ministral.max_context_tokens == 262144
    windowed = read(MISTRAL_SMALL_3_1 | {"text_config": text})
    assert {span_of(layer.attention) for layer in windowed.layers} == {KeySpan("sliding", 4096)}


def test_a_language_model_of_experts_in_a_wrapper_has_its_dense_layers() -> None:
    text = {
        **{"model_type": "glm4v_moe_text", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46},
        **{"num_attention_heads": 96, "head_dim": 128, "vocab_size": 151552, "max_position_embeddings": 65536},
        **{"moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_routed_experts": 128, "n_shared_experts": 1},
        **{"first_k_dense_replace": 1},
    }
    found, built_in = read({"architectures": ["Glm4vMoeForConditionalGeneration"], "text_config": text}), "glm-4.5-air"
    assert found.kinds == load_model(built_in).kinds
    assert isinstance(found.layers[1].ffn, MoeFfn)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "gemma3_text"}},
            "text_config: model_type: found 'gemma3_text', expected one of llama, mistral,",
        ),
        (
            {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"model_type": ["mistral"]}},
            r"text_config: model_type: found \['mistral'\], expected one of llama",
        ),
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"model_type": "gemma3_text"}},
            r"architectures: found \['Gemma3ForConditionalGeneration'\], expected one of Llama, .*, Llama4 \(each with "
            "ForCausalLM\\), or a multimodal model of docs/models.md, not one with a text_config of 'gemma3_text'$",
        ),
        (
            {"architectures": ["SmolVLMForConditionalGeneration"], "text_config": {"model_type": "llama"}},
            r"architectures: found \['SmolVLMForConditionalGeneration'\], expected a multimodal model of "
            r"docs/models.md; to describe its language model, save text_config \(a llama\) as a file with "
            r'"architectures": \["LlamaForCausalLM"\]$',
        ),
        ({"architectures": ["LlavaForConditionalGeneration"]}, "text_config: found nothing, expected an object"),
        (
            {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": {}},
            "text_config: num_hidden_layers: found nothing, expected an integer",
        ),
    ],
)
def test_a_multimodal_model_that_is_not_read_is_refused_with_what_to_do(config: Config, message: str) -> None:
    with pytest.raises(InputError, match=f"^config.json: {message}") as refused:
        read(config)
    assert len(str(refused.value)) < 400
