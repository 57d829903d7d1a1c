"""Contexts of a config.json, computed by hand by vLLM's rule."""

from __future__ import annotations

from typing import Any

import pytest

from aicb import InputError
from aicb.model.architecture import GroupedQueryAttention
from aicb.model.hugging_face import model_from_config

QWEN_3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}


def context(**fields: object) -> int:
    return model_from_config(QWEN_3 | fields, name="", source="", where="config.json").max_context_tokens


def test_yarn_multiplies_the_length_before_scaling() -> None:
    """Qwen3's documented recipe: 32,768 · 4 = 131,072, whatever the 40,960 that are stated."""
    recipe = {"factor": 4.0, "original_max_position_embeddings": 32768}
    assert context(rope_scaling={"rope_type": "yarn", **recipe}) == 131072
    assert context(rope_scaling={"type": "yarn", **recipe}) == 131072
    assert context(rope_scaling={"type": "yarn", "rope_type": "yarn", **recipe}) == 131072
    assert context(rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **recipe}) == 131072
    assert context(rope_scaling=None, rope_parameters={"rope_type": "yarn", **recipe}) == 131072
    assert context(rope_scaling={"type": "yarn", **recipe}, max_position_embeddings=131072) == 131072
    assert context(rope_scaling={"type": "yarn", "mrope_section": [16, 24, 24], **recipe}) == 131072


def test_yarn_takes_the_length_before_scaling_from_outside_the_block_or_from_what_is_stated() -> None:
    block = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 32768}
    assert context(rope_scaling=block, original_max_position_embeddings=8192) == 2 * 8192
    assert context(rope_scaling={"rope_type": "yarn", "factor": 2.5}) == 102400  # 40,960 · 2.5


@pytest.mark.parametrize(
    ("block", "tokens"),
    [
        (None, 40960),
        ({}, 40960),
        ({"rope_theta": 1e6}, 40960),
        ({"rope_type": "default", "mrope_section": [24, 20, 20]}, 40960),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 40960),
        ({"type": "mrope", "rope_type": "default"}, 40960),
        ({"rope_type": "linear", "factor": 2}, 81920),
        ({"type": "dynamic", "factor": 1.5}, 61440),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 40960),
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}, 40960),
        ({"type": "su", "rope_type": "longrope"}, 40960),
    ],
)
def test_a_factor_counts_where_the_stated_length_is_not_scaled_yet(block: object, tokens: int) -> None:
    assert context(rope_scaling=block) == tokens
    assert context(rope_parameters=block) == tokens


def test_the_smallest_stated_length_counts() -> None:
    assert context(seq_length=8192, max_seq_len=65536) == 8192
    assert context(max_sequence_length=8192, rope_scaling={"type": "linear", "factor": 4}) == 32768
    assert context(n_positions=None) == 40960


def test_model_max_length_counts_alone() -> None:
    assert context(model_max_length=65536, seq_length=8192) == 65536


def test_gpt_oss_without_scaling_has_that_of_its_class() -> None:
    """``GptOssConfig``: YaRN, 4,096 · 32."""
    fields = {"architectures": ["GptOssForCausalLM"], "num_local_experts": 32, "num_experts_per_tok": 4}
    assert context(**fields, max_position_embeddings=4096) == 131072


@pytest.mark.parametrize("place", ["rope_parameters", "rope_scaling"])
def test_the_share_of_a_head_that_turns_is_read_from_the_block_of_the_scaling(place: str) -> None:
    block = {"partial_rotary_factor": 0.5, "rope_theta": 1e4, "rope_type": "default"}
    fields = {"architectures": ["LlamaForCausalLM"], place: block, "partial_rotary_factor": 0.25}
    model = model_from_config(QWEN_3 | fields, name="", source="", where="")
    attention = model.layers[0].attention
    assert isinstance(attention, GroupedQueryAttention)
    assert attention.rotary_dim == 64


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_scaling": [4]}, r"rope_scaling: found \[4\], expected an object or nothing"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: factor: found nothing, expected a number, 1 to"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": "4"}},
            "rope_parameters: factor: found '4', expected a n",
        ),
        ({"rope_scaling": {"type": "llama3", "factor": True}}, "rope_scaling: factor: found True, expected a number"),
        ({"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "rope_scaling: factor: found 0.5, expected a number, 1"),
        (
            {"rope_scaling": {"type": "ntk", "factor": 4}},
            "rope_scaling: type: found 'ntk', expected one of default, mr",
        ),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"rope_scaling: rope_type: found \['yarn'\], expected one of"),
        ({"rope_scaling": {"factor": 4}}, "rope_scaling: rope_type: found nothing, expected one of default"),
        (
            {"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 4}},
            "rope_scaling: type: found 'yarn', expected linear, as rope_type is",
        ),
        (
            {"rope_scaling": {"rope_type": "default", "factor": 4}},
            "rope_scaling: factor: found 4, expected nothing with rope_type default",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4}}},
            "rope_parameters: full_attention: found {.*}, expected one scaling for all layers, not one for each kind",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 0}},
            "rope_scaling: original_max_position_embeddings: found 0, expected an integer, 1 to",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2**30}},
            "rope_scaling: factor: found 1073741824, expected a context of at most 2147483647 tokens, not 4398046",
        ),
        ({"max_seq_len": 8192.5}, "max_seq_len: found 8192.5, expected an integer, 1 to"),
    ],
)
def test_a_wrong_scaling_is_refused_by_its_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=f"^config.json: {message}") as refused:
        context(**fields)
    assert "\n" not in str(refused.value)
