"""Parameter, KV and state counts of the built-in models against published totals, and the pipeline split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicb import InputError, Partition, Precision, built_in_models, load_model, stage_layers
from aicb.model.architecture import (
    DenseFfn,
    GatedDeltaNet,
    GroupedQueryAttention,
    LatentAttention,
    MoeFfn,
    kv_bytes_per_token_per_rank,
    state_bytes_per_rank,
)

# name: (parameters, active parameters / 1e9 to three digits, KV bytes per token at 16 bit)
PUBLISHED = {
    "llama-2-7b": (6_738_415_616, 6.607, 524_288),
    "llama-2-13b": (13_015_864_320, 12.852, 819_200),
    "llama-2-70b": (68_976_648_192, 68.715, 327_680),
    "llama-3.1-8b": (8_030_261_248, 7.505, 131_072),
    "llama-3.1-70b": (70_553_706_496, 69.503, 327_680),
    "llama-3.1-405b": (405_853_388_800, 403.752, 516_096),
    "qwen3-0.6b": (596_049_920, 0.596, 114_688),
    "qwen3-8b": (8_190_735_360, 7.568, 147_456),
    "qwen3-32b": (32_762_123_264, 31.984, 262_144),
    "mixtral-8x7b": (46_702_792_704, 12.749, 131_072),
    "mixtral-8x22b": (140_630_071_296, 38.960, 229_376),
    "qwen3-30b-a3b": (30_532_122_624, 3.042, 98_304),
    "qwen3-235b-a22b": (235_093_634_560, 21.568, 192_512),
    "qwen3-coder-480b-a35b": (480_154_875_392, 34.541, 253_952),
    "deepseek-v3": (671_026_419_200, 36.626, 70_272),
    "deepseek-r1": (671_026_419_200, 36.626, 70_272),
    "deepseek-v3.2": (671_026_419_200 + 61 * 13_959_424, 37.477, 70_272 + 61 * 132),
    "kimi-k2": (1_026_408_232_448, 31.687, 70_272),
    "qwen3-next-80b-a3b": (79_674_391_296, 3.564, 24_576),
}


def test_every_built_in_model_has_a_published_total() -> None:
    assert built_in_models() == sorted(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_kv_match_the_published_totals(name: str) -> None:
    parameters, active_billions, kv_bytes = PUBLISHED[name]
    model = load_model(name)
    assert model.parameters == parameters
    assert round(model.active_parameters / 1e9, 3) == active_billions
    assert model.kv_bytes_per_token("bf16") == kv_bytes
    if name != "deepseek-v3.2":
        assert model.kv_bytes_per_token("fp8") * 2 == kv_bytes


def test_an_fp8_cache_of_sparse_attention_has_656_bytes_of_latent_and_132_of_index_key() -> None:
    """512 e4m3, 4 fp32 scales and 64 bf16 of FlashMLA's layout; 128 e4m3 and an fp32 scale, in 61 layers."""
    model = load_model("deepseek-v3.2")
    assert model.kv_bytes_per_token("fp8") == 61 * (512 + 16 + 128 + 132)
    for tp in (1, 8):
        assert kv_bytes_per_token_per_rank(model, Partition(tp=tp), Precision(kv="fp8")) == 61 * 788


def test_the_indexer_has_queries_keys_head_weights_and_a_layer_norm() -> None:
    """1536·64·128 + 7168·(128 + 64) + 2·128 = 13,959,424."""
    attention = load_model("deepseek-v3.2").layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert attention.indexer is not None
    assert attention.indexer.parameters(7168, 1536) == 13_959_424
    assert attention.parameters(7168) == 187_107_328 + 13_959_424


def test_layers_have_the_published_parameters() -> None:
    """One attention and one routed expert of each model family, from the model cards' dimensions."""
    deepseek, qwen_next = load_model("deepseek-v3"), load_model("qwen3-next-80b-a3b")
    assert deepseek.layers[0].attention.parameters(7168) == 187_107_328
    assert load_model("kimi-k2").layers[0].attention.parameters(7168) == 101_124_096
    assert load_model("qwen3-235b-a22b").layers[0].attention.parameters(4096) == 71_303_424
    assert load_model("qwen3-30b-a3b").layers[0].attention.parameters(2048) == 18_874_624
    assert qwen_next.layers[0].attention.parameters(2048) == 33_718_464
    assert qwen_next.layers[3].attention.parameters(2048) == 27_263_488
    experts = {"deepseek-v3": 44_040_192, "qwen3-coder-480b-a35b": 47_185_920, "qwen3-next-80b-a3b": 3_145_728}
    for name, expected in experts.items():
        model = load_model(name)
        ffn = model.layers[-1].ffn
        assert isinstance(ffn, MoeFfn)
        assert ffn.expert_parameters(model.hidden) == expected


def test_deepseek_starts_with_three_dense_layers_of_18432() -> None:
    ffns = [layer.ffn for layer in load_model("deepseek-v3").layers]
    assert ffns[:3] == [DenseFfn(18432)] * 3
    assert all(isinstance(ffn, MoeFfn) for ffn in ffns[3:])


def test_qwen3_next_attends_fully_in_every_fourth_layer() -> None:
    attentions = [layer.attention for layer in load_model("qwen3-next-80b-a3b").layers]
    full = [index for index, attention in enumerate(attentions) if isinstance(attention, GroupedQueryAttention)]
    assert full == list(range(3, 48, 4))
    assert sum(isinstance(attention, GatedDeltaNet) for attention in attentions) == 36
    attention = attentions[3]
    assert isinstance(attention, GroupedQueryAttention)
    assert attention.rotary_dim == 64


def test_qwen3_235b_head_dim_is_not_hidden_over_heads() -> None:
    """4096 / 64 heads would be 64; the model uses 128."""
    attention = load_model("qwen3-235b-a22b").layers[0].attention
    assert isinstance(attention, GroupedQueryAttention)
    assert attention.head_dim == 128


def test_qwen3_next_keeps_a_fixed_state_per_request() -> None:
    """36 layers x (32·128·128 state + 3·8192 convolution) elements; only the state is fp32 where asked."""
    model = load_model("qwen3-next-80b-a3b")
    assert model.state_bytes("bf16") == 39_518_208
    assert model.state_bytes("fp32") == 77_266_944
    assert load_model("qwen3-8b").state_bytes("fp32") == 0


def test_sixty_one_layers_are_divided_as_vllm_does() -> None:
    sizes = {pp: [len(stage) for stage in stage_layers(load_model("deepseek-v3"), pp)] for pp in (1, 2, 4)}
    assert sizes == {1: [61], 2: [31, 30], 4: [15, 15, 16, 15]}


@given(name=st.sampled_from(sorted(PUBLISHED)), pp=st.integers(1, 28))
def test_stages_cover_every_layer_once(name: str, pp: int) -> None:
    model = load_model(name)
    stages = stage_layers(model, pp)
    assert [index for stage in stages for index in stage] == list(range(len(model.pattern)))
    assert max(map(len, stages)) - min(map(len, stages)) <= 1
    counted = sum(count for stage in stages for _, count in model.count_layers(stage))
    assert counted == len(model.pattern)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InputError, match="pp: found 37, expected at most the 36 layers"):
        stage_layers(load_model("qwen3-8b"), 37)


@given(
    name=st.sampled_from(sorted(PUBLISHED)), pp=st.sampled_from([1, 2, 3, 4]), kv_dtype=st.sampled_from(["bf16", "fp8"])
)
def test_kv_of_all_stages_is_the_kv_of_the_model(name: str, pp: int, kv_dtype: str) -> None:
    model, precision = load_model(name), Precision(kv=kv_dtype)
    per_stage = [kv_bytes_per_token_per_rank(model, Partition(pp=pp), precision, stage) for stage in range(pp)]
    assert sum(per_stage) == model.kv_bytes_per_token(precision.kv)
    states = [state_bytes_per_rank(model, Partition(pp=pp), precision, stage) for stage in range(pp)]
    assert sum(states) == model.state_bytes()


@pytest.mark.parametrize(
    ("name", "tp", "copies"),
    [
        ("qwen3-235b-a22b", 4, 1),
        ("qwen3-235b-a22b", 8, 2),
        ("qwen3-next-80b-a3b", 2, 1),
        ("qwen3-next-80b-a3b", 8, 4),
        ("llama-3.1-70b", 8, 1),
        ("deepseek-v3", 8, 8),
    ],
)
def test_tensor_parallel_ranks_hold_replicated_kv_heads_and_whole_latents(name: str, tp: int, copies: int) -> None:
    """With t > K KV heads each is held t/K times; an MLA latent is held by every rank."""
    model = load_model(name)
    per_rank = kv_bytes_per_token_per_rank(model, Partition(tp=tp), Precision())
    assert per_rank * tp == copies * model.kv_bytes_per_token()


def test_tensor_parallelism_divides_the_recurrent_state() -> None:
    model = load_model("qwen3-next-80b-a3b")
    assert state_bytes_per_rank(model, Partition(tp=4), Precision(state="fp32")) * 4 == 77_266_944


def test_an_unknown_model_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(InputError, match=r"found 'qwen3-7b', expected .* built-in name such as qwen3-8b"):
        load_model("qwen3-7b")


def test_a_stage_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="stage: found 2, expected 0…1"):
        kv_bytes_per_token_per_rank(load_model("qwen3-8b"), Partition(pp=2), Precision(), stage=2)
