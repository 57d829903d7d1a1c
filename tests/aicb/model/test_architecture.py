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
from aicb.model.key_span import KeySpan
from aicb.model.kv_groups import kv_groups

# name: (parameters, active parameters / 1e9 to three digits, KV bytes per token at 16 bit)
PUBLISHED = {
    "llama-2-7b": (6_738_415_616, 6.607, 524_288),
    "llama-2-13b": (13_015_864_320, 12.852, 819_200),
    "llama-2-70b": (68_976_648_192, 68.715, 327_680),
    "llama-3.1-8b": (8_030_261_248, 7.505, 131_072),
    "llama-3.1-70b": (70_553_706_496, 69.503, 327_680),
    "llama-3.1-405b": (405_853_388_800, 403.752, 516_096),
    "qwen3-0.6b": (596_049_920, 0.596, 114_688),
    "qwen3-1.7b": (1_720_574_976, 1.721, 114_688),
    "qwen3-4b": (4_022_468_096, 4.022, 147_456),
    "qwen3-8b": (8_190_735_360, 7.568, 147_456),
    "qwen3-14b": (14_768_307_200, 13.990, 163_840),
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
    "qwen2.5-0.5b": (494_032_768, 0.494, 12_288),
    "qwen2.5-1.5b": (1_543_714_304, 1.544, 28_672),
    "qwen2.5-3b": (3_085_938_688, 3.086, 36_864),
    "qwen2.5-7b": (7_615_616_512, 7.071, 57_344),
    "qwen2.5-14b": (14_770_033_664, 13.991, 196_608),
    "qwen2.5-32b": (32_763_876_352, 31.985, 262_144),
    "qwen2.5-72b": (72_706_203_648, 71.460, 327_680),
    "gpt-oss-20b": (20_914_757_184, 3.608, 49_152),
    "gpt-oss-120b": (116_829_156_672, 5.133, 73_728),
    "glm-4.5": (352_797_829_024, 32.856, 376_832),
    "glm-4.5-air": (106_852_251_264, 12.803, 188_416),
    "glm-4.6": (352_797_829_024, 32.856, 376_832),
    "minimax-m2": (228_689_764_864, 10.416, 253_952),
    "llama-4-scout": (107_769_861_120, 16.138, 196_608),
    "llama-4-maverick": (400_711_848_960, 16.150, 196_608),
}
# As announced, in billions: (all, active); for a mixture of experts rounded to whole ones.
ANNOUNCED = {
    "qwen2.5-7b": (7.62, None),
    "qwen3-4b": (4.0, None),
    "qwen3-14b": (14.8, None),
    "gpt-oss-20b": (20.91, 3.61),
    "gpt-oss-120b": (116.83, 5.13),
    "glm-4.5": (355, 32),
    "glm-4.5-air": (106, 12),
    "minimax-m2": (230, 10),
    "llama-4-scout": (109, 17),
    "llama-4-maverick": (400, 17),
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


@pytest.mark.parametrize("name", ANNOUNCED)
def test_totals_are_those_that_were_announced(name: str) -> None:
    """All: within 1 %, Scout with the 0.87 B of its vision tower. Active, to the digits announced: the embedding counts
    for Llama 4 (Meta: "17B active"), neither it nor the head for GLM (arXiv 2508.06471, table 1), else the head."""
    billions, active = ANNOUNCED[name]
    model = load_model(name)
    embedding = model.vocab * model.hidden
    tower = vision_tower_parameters() if name == "llama-4-scout" else 0
    assert (model.parameters + tower) / 1e9 == pytest.approx(billions, rel=0.01)
    counted = model.active_parameters + {"llam": embedding, "glm-": -embedding}.get(name[:4], 0)
    if active is not None:
        assert round(counted / 1e9, 2 if active != round(active) else 0) == active


def vision_tower_parameters() -> int:
    """Of Llama 4: 34 layers of width 1408 with biases, patches of 3·14² values, two products of 4096 on the way out."""
    width, mlp, layers = 1408, 5632, 34
    layer = 4 * (width * width + width) + (width + 1) * mlp + (mlp + 1) * width + 4 * width
    ends = 3 * 14**2 * width + width + (24**2 + 1) * width + 4 * width
    return layers * layer + ends + mlp * 4096 + 4096 * 4096 + 4096 * 5120


def test_scout_with_its_vision_tower_has_the_parameters_of_its_checkpoint() -> None:
    """108,641,793,536: the sum over the safetensors of meta-llama/Llama-4-Scout-17B-16E-Instruct."""
    assert load_model("llama-4-scout").parameters + vision_tower_parameters() == 108_641_793_536


@pytest.mark.parametrize(
    ("name", "tokens", "full_layers", "token_bytes", "kept"),
    [
        ("gpt-oss-120b", 100, 18, 2 * 8 * 64 * 2, 100),
        ("gpt-oss-120b", 5000, 18, 2 * 8 * 64 * 2, 128),
        ("gpt-oss-20b", 5000, 12, 2 * 8 * 64 * 2, 128),
        ("llama-4-scout", 8192, 12, 2 * 8 * 128 * 2, 8192),
        ("llama-4-scout", 20_000, 12, 2 * 8 * 128 * 2, 20_000 - 2 * 8192),
        ("glm-4.5-air", 5000, 46, 2 * 8 * 128 * 2, 0),
    ],
)
def test_layers_within_a_span_keep_what_it_still_shows(
    name: str, tokens: int, full_layers: int, token_bytes: int, kept: int
) -> None:
    model = load_model(name)
    others = len(model.layers) - full_layers
    assert model.kv_bytes(tokens) == token_bytes * (full_layers * tokens + others * kept)
    assert model.kv_bytes(1) == model.kv_bytes_per_token() == token_bytes * len(model.layers)
    assert model.kv_bytes(0) == 0


def test_gpt_oss_alternates_windows_of_128_with_full_attention_and_has_sinks() -> None:
    attentions = [layer.attention for layer in load_model("gpt-oss-20b").layers]
    assert all(isinstance(attention, GroupedQueryAttention) for attention in attentions)
    spans = [attention.span for attention in attentions if isinstance(attention, GroupedQueryAttention)]
    assert spans == [KeySpan("sliding", 128), None] * 12
    assert all(attention.has_sinks for attention in attentions if isinstance(attention, GroupedQueryAttention))


def test_llama_4_sees_chunks_with_positions_and_everything_without() -> None:
    attentions = [layer.attention for layer in load_model("llama-4-scout").layers[:8]]
    seen = [(a.span, a.rotary_dim, a.qk_norm) for a in attentions if isinstance(a, GroupedQueryAttention)]
    chunked = (KeySpan("chunked", 8192), 128, "weightless")
    assert seen == [chunked, chunked, chunked, (None, 0, "none")] * 2


def test_maverick_has_experts_in_every_second_layer() -> None:
    kinds = [type(layer.ffn) for layer in load_model("llama-4-maverick").layers]
    assert kinds == [DenseFfn, MoeFfn] * 24


@pytest.mark.parametrize(
    ("name", "layers", "whole", "spanned", "layer_bytes", "most"),
    [
        ("gpt-oss-120b", 18, 1, 1, 2 * 8 * 64 * 2, 9),
        ("llama-4-scout", 12, 1, 3, 2 * 8 * 128 * 2, 512),
        ("qwen2.5-7b", 28, 1, 0, 2 * 4 * 128 * 2, 0),
    ],
)
def test_groups_of_the_cache_have_equally_many_layers(
    name: str, layers: int, whole: int, spanned: int, layer_bytes: int, most: int
) -> None:
    """A window of 128 lies in at most ⌈127 / 16⌉ + 1 blocks of 16, a chunk of 8192 in 512."""
    groups = kv_groups(load_model(name), Partition(), Precision())
    assert (groups.token_bytes, groups.whole, groups.spanned) == (layers * layer_bytes, whole, spanned)
    assert groups.most_spanned_blocks(16) == most
    assert groups.blocks(100_000, 16) == whole * 6250 + spanned * most
    assert groups.blocks(17, 16) == 2 * (whole + spanned)


def test_mxfp4_is_refused_where_the_model_is_not_published_in_it() -> None:
    load_model("gpt-oss-20b").check(Precision("mxfp4"))
    with pytest.raises(InputError, match=r"weights: found mxfp4, expected bf16 or fp8 \(qwen3-8b is not published"):
        load_model("qwen3-8b").check(Precision("mxfp4"))


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


@given(name=st.sampled_from(sorted(PUBLISHED)), pp=st.integers(1, 24))
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
    nearest = "qwen3-1.7b, qwen3-8b, qwen3-4b"
    with pytest.raises(InputError, match=rf"found 'qwen3-7b', expected .* built-in name such as {nearest}$"):
        load_model("qwen3-7b")
    with pytest.raises(InputError, match="such as qwen3-235b-a22b"):
        load_model("qwen3-235b")


def test_a_stage_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="stage: found 2, expected 0…1"):
        kv_bytes_per_token_per_rank(load_model("qwen3-8b"), Partition(pp=2), Precision(), stage=2)
