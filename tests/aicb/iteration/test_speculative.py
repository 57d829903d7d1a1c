"""Drafting and verifying several tokens per step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aicb import (
    Batch,
    InputError,
    Partition,
    Precision,
    RankBatches,
    ZipfLoad,
    get_gpu,
    instance_memory,
    load_model,
)
from aicb.estimators.selection import select_estimator
from aicb.experts.profile import load_profile
from aicb.iteration.host import HostModel
from aicb.iteration.model import PHASES, IterationModel
from aicb.iteration.pricing import Pricing
from aicb.iteration.speculative import Drafting
from aicb.kernels.kernel import Kernel
from aicb.operators.drafter import Drafter, draft_parameters
from aicb.operators.lists import head_operators
from aicb.operators.memory import draft_weight_bytes
from aicb.operators.operator import Phase

H200, FP8 = get_gpu("h200"), Precision("fp8")
QWEN = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), H200)
DEEPSEEK = IterationModel(load_model("deepseek-v3"), Partition(tp=8, ep=8), FP8, H200)


@pytest.mark.parametrize(
    ("drafts", "acceptance", "tokens"), [(1, 0.85, 1.85), (3, 0.5, 1.875), (2, 1.0, 3.0), (4, 0.0, 1.0)]
)
def test_expected_tokens_are_a_geometric_sum(drafts: int, acceptance: float, tokens: float) -> None:
    """(1 − a^(k+1)) / (1 − a): 1 + 0.85; 1 + 1/2 + 1/4 + 1/8; 3; 1."""
    assert Drafting(drafts, acceptance).expected_tokens == pytest.approx(tokens)


def test_the_draft_layer_of_deepseek_has_the_published_parameters() -> None:
    """11,610,068,224 with embedding and head not counted again: one MoE layer, a projection of 2h to h, five norms."""
    assert draft_parameters(load_model("deepseek-v3")) == 11_610_068_224


def test_the_draft_layer_is_stored_beside_the_model() -> None:
    """bf16, one rank: 2 bytes per parameter, and MLA's absorbed copies of 2·128·128·512 elements; the router's
    correction bias and norms are bf16 as all else. On 32 ranks a rank stores its 8 of 256 experts."""
    deepseek = load_model("deepseek-v3")
    absorbed = 2 * 128 * 128 * 512
    assert draft_weight_bytes(Drafter.mtp(deepseek, Partition(), Precision()), Partition()) == 2 * (
        11_610_068_224 + absorbed
    )
    others = 248 * 44_040_192
    partition = Partition(dp=32, ep=32)
    assert draft_weight_bytes(Drafter.mtp(deepseek, partition, Precision()), partition) == 2 * (
        11_610_068_224 + absorbed - others
    )


def test_the_last_stage_also_stores_the_embedding_for_drafts() -> None:
    """With one stage it is there already; with four it is 129280·7168 bf16 elements more."""
    deepseek = load_model("deepseek-v3")
    partitions = [Partition(dp=8, ep=8, pp=pp) for pp in (1, 4)]
    one, four = (draft_weight_bytes(Drafter.mtp(deepseek, each, FP8), each) for each in partitions)
    assert four - one == 2 * 129_280 * 7168


def test_the_draft_layer_takes_kv_memory_of_one_more_layer() -> None:
    qwen = load_model("qwen3-8b")
    plain = instance_memory(qwen, Partition(), Precision(), H200)
    layer = Drafter.mtp(qwen, Partition(), Precision())
    drafting = instance_memory(qwen, Partition(), Precision(), H200, drafter=layer)
    assert drafting.kv_bytes_per_token_per_rank * 36 == plain.kv_bytes_per_token_per_rank * 37
    assert drafting.weights_bytes - plain.weights_bytes == 2 * draft_parameters(qwen)
    assert drafting.num_kv_blocks < plain.num_kv_blocks * 36 / 37


@pytest.mark.parametrize("model", [QWEN, DEEPSEEK], ids=["gqa", "mla"])
def test_verification_reads_the_kv_once_for_all_queries(model: IterationModel) -> None:
    """Attention of two queries costs less than twice that of one, and not less than one."""
    attention = PHASES.index(Phase.ATTENTION)
    batch = [Batch.decode([16_000] * 16)]
    steady = IterationModel(model.model, model.partition, model.precision, replace(H200, clock=None))
    one, two = (steady.price(batch, queries=queries).phase_ps[attention] for queries in (1, 2))
    assert one <= two < 1.7 * one


def test_verification_runs_projections_over_all_tokens() -> None:
    """32 requests with 3 drafts are 128 tokens: dense GEMMs and head cost what 128 decodes cost."""
    dense, head = PHASES.index(Phase.DENSE), PHASES.index(Phase.HEAD)
    model = IterationModel(load_model("qwen3-8b"), Partition(), Precision(), replace(H200, clock=None))
    verified = model.price([Batch.decode([2000] * 32)], queries=4)
    plain = model.price([Batch.decode([2000] * 128)])
    assert verified.phase_ps[dense] == plain.phase_ps[dense]
    assert verified.phase_ps[head] == plain.phase_ps[head]


def test_a_step_is_verification_and_one_pass_per_draft() -> None:
    step = DEEPSEEK.speculative([Batch.decode([4000] * 8)], Drafting(drafts=3, acceptance=0.8))
    assert len(step.draft_passes) == 3
    assert step.compute_ps == step.verification.compute_ps + sum(cost.compute_ps for cost in step.draft_passes)
    assert step.draft_passes[0].compute_ps >= step.draft_passes[1].compute_ps
    assert step.expected_tokens == pytest.approx(2.952)


def test_a_draft_pass_costs_less_than_a_tenth_of_the_model_with_what_prepares_its_inputs() -> None:
    step = DEEPSEEK.speculative([Batch.decode([4000] * 8)], Drafting())
    (draft,) = step.draft_passes
    assert draft.host_ps == round(HostModel().step_us * 1e6)
    assert step.verification.compute_ps / 61 < draft.compute_ps < step.verification.compute_ps / 10


def test_drafting_pays_off_for_small_batches() -> None:
    """DeepSeek-V3 report: about 1.8 times the tokens per second with one draft; here of compute time alone."""
    batch = [Batch.decode([4000] * 8)]
    gain = DEEPSEEK.price(batch).compute_ps / DEEPSEEK.speculative(batch, Drafting(1, 0.85)).compute_ps_per_token
    assert 1.2 < gain < 1.85


def test_only_the_last_stage_drafts() -> None:
    model = IterationModel(load_model("deepseek-v3"), Partition(tp=8, ep=8, pp=2), FP8, H200)
    batch = [Batch.decode([4000] * 8)]
    assert model.speculative(batch, Drafting(2), stage=0).draft_passes == ()
    assert len(model.speculative(batch, Drafting(2), stage=1).draft_passes) == 2


def test_idle_ranks_verify_dummies() -> None:
    model = IterationModel(load_model("deepseek-v3"), Partition(dp=4, ep=4), FP8, H200)
    idle = Batch.empty()
    step = model.speculative([Batch.decode([900] * 8), idle, idle, idle], Drafting(2))
    assert step.compute_ps == model.speculative([Batch.decode([900] * 8)] * 4, Drafting(2)).compute_ps


@pytest.mark.parametrize("model", [QWEN, DEEPSEEK], ids=["gqa", "mla"])
def test_decodes_beside_a_prompt_verify_drafts_with_one_reading_of_their_kv(model: IterationModel) -> None:
    """16 requests of 16,000 tokens with a draft each and a prompt of 600: projections of 632 tokens, logits of 33 rows,
    and attention that takes as much longer than with one query as in a step of decodes alone."""
    steady = IterationModel(
        model.model, model.partition, model.precision, replace(H200, clock=None), max_batched_tokens=512
    )
    mixed = Batch(np.array([1] * 16 + [600]), np.array([16_000] * 16 + [600]), 17)
    two, one = (steady.price([mixed], queries=queries) for queries in (2, 1))
    apart = steady.price([Batch(np.array([1] * 32 + [600]), np.array([16_000, 15_999] * 16 + [600]), 33)])
    dense, head, attention = (PHASES.index(phase) for phase in (Phase.DENSE, Phase.HEAD, Phase.ATTENTION))
    assert two.phase_ps[dense] == apart.phase_ps[dense]
    assert two.phase_ps[head] == apart.phase_ps[head]
    assert two.phase_ps[attention] < apart.phase_ps[attention]
    alone = [steady.price([Batch.decode([16_000] * 16)], queries=each).phase_ps[attention] for each in (2, 1)]
    difference = two.phase_ps[attention] - one.phase_ps[attention]
    assert difference == pytest.approx(alone[0] - alone[1], rel=0.1, abs=0.03 * alone[1])


@pytest.mark.parametrize(("drafts", "tokens"), [(1, 1.85), (2, 2.18), (3, 2.44)])
def test_drafts_of_deepseeks_layer_yield_by_default_what_is_published(drafts: int, tokens: float) -> None:
    """DeepSeek-V3 report: 0.85 of one draft. SGLang, 2025-07-17: 2.18 tokens per step of three, 2.44 of four."""
    assert Drafting(drafts).expected_tokens == pytest.approx(tokens, abs=0.005)


def test_more_drafts_than_anybody_published_have_no_default() -> None:
    with pytest.raises(InputError, match=r"acceptance: found none for 4 drafts, expected it to be stated"):
        Drafting(4)
    assert Drafting(4, 0.5).acceptances == (0.5,) * 4


@pytest.mark.parametrize(("drafts", "acceptance"), [(0, 0.5), (1, 1.5), (1, -0.1)])
def test_wrong_drafting_is_refused(drafts: int, acceptance: float) -> None:
    with pytest.raises(InputError, match=r"Drafting\.(drafts|acceptance): found"):
        Drafting(drafts, acceptance)


@pytest.mark.parametrize(
    ("drafting", "tokens"),
    [
        (Drafting(3, (0.8, 0.5, 0.25)), 1 + 0.8 + 0.4 + 0.1),
        (Drafting(2, (1.0, 0.0)), 2.0),
        (Drafting(2, (0.5, 0.5), "ngram", match=0.4), 1 + 0.4 * 0.75),
    ],
)
def test_expected_tokens_are_products_of_what_each_position_is_accepted_with(drafting: Drafting, tokens: float) -> None:
    assert drafting.expected_tokens == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"drafts": 3, "acceptance": (0.5, 0.5)}, "found 2 values, expected one for each of 3 drafts"),
        ({"drafts": 2, "acceptance": (0.5, 1.5)}, r"acceptance: found 1\.5, expected 0 to 1"),
        ({"method": "ngram", "match": -0.5}, r"match: found -0\.5, expected 0 to 1"),
        ({"method": "eagle", "match": 0.5}, r"match: found 0\.5, expected 1 with eagle, which always drafts"),
    ],
)
def test_wrong_acceptance_models_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Drafting(**fields)


QWEN_0_6B = load_model("qwen3-0.6b")
BF16 = Precision()
BEHIND_QWEN = {
    "eagle": Drafter.eagle(QWEN.model, Partition(), BF16),
    "draft_model": Drafter.of_model(QWEN_0_6B, QWEN.model, Partition(), BF16),
}


@pytest.mark.parametrize("method", BEHIND_QWEN)
def test_a_drafter_is_stored_beside_the_model(method: str) -> None:
    """bf16. The head: a layer of Qwen3-8B without its first norm, [2h] to [h]. Qwen3-0.6B: all it has, its embedding
    and head being one."""
    layer = QWEN.model.layers[-1]
    head = layer.attention.parameters(4096) + layer.ffn.parameters(4096) + 4096 + 2 * 4096 * 4096
    parameters = {"eagle": head, "draft_model": QWEN_0_6B.parameters}[method]
    drafter = BEHIND_QWEN[method]
    assert draft_weight_bytes(drafter, Partition()) == 2 * parameters
    plain = instance_memory(QWEN.model, Partition(), BF16, H200)
    drafting = instance_memory(QWEN.model, Partition(), BF16, H200, drafter=drafter)
    assert drafting.weights_bytes - plain.weights_bytes == 2 * parameters
    # K and V of 8 heads of 128, bf16: 4096 bytes per token and layer of either model
    layers = 36 + (1 if method == "eagle" else 28)
    assert drafting.kv_bytes_per_token_per_rank == drafting.kv_groups.token_bytes == layers * 4096
    assert drafting.activation_bytes == plain.activation_bytes
    freed = plain.available_kv_bytes - 2 * parameters
    assert drafting.num_kv_blocks == freed // (16 * layers * 4096)


def test_a_head_is_bf16_behind_an_fp8_model_with_its_kv() -> None:
    drafter = Drafter.eagle(QWEN.model, Partition(tp=2), Precision("fp8", "fp8"))
    assert drafter.precision == Precision("bf16", "fp8")
    assert not [op for op in drafter.token_operators(8) if op.name == "draft_quant"]


def test_a_draft_model_is_divided_as_its_target_or_not_at_all() -> None:
    """Qwen3-0.6B, two ranks: half of all but the norms. On one rank each: all of it on both."""
    target = (QWEN.model, Partition(tp=2), BF16)
    halves, whole = Drafter.of_model(QWEN_0_6B, *target), Drafter.of_model(QWEN_0_6B, *target, tp=1)
    assert draft_weight_bytes(whole, Partition(tp=2)) == 2 * QWEN_0_6B.parameters
    assert 0.5 < draft_weight_bytes(halves, Partition(tp=2)) / (2 * QWEN_0_6B.parameters) < 0.51
    with pytest.raises(InputError, match="draft_tp: found 4, expected 1 or the tp 2 of the target"):
        Drafter.of_model(QWEN_0_6B, *target, tp=4)


@pytest.mark.parametrize("method", ["eagle", "draft_model"])
def test_experts_that_change_are_those_of_a_layer_and_not_of_a_draft_model(method: str) -> None:
    """Both have routed experts of 128; those of a model of its own lie where they lay."""
    target, partition = load_model("qwen3-235b-a22b"), Partition(tp=8, ep=8)
    drafters = {
        "eagle": Drafter.eagle(target, partition, FP8),
        "draft_model": Drafter.of_model(load_model("qwen3-30b-a3b"), target, partition, FP8),
    }
    model = IterationModel(target, partition, FP8, H200, queries=3, drafter=drafters[method])
    skewed = model.with_experts(load_profile(ZipfLoad(2.0), (128, 8), partition))
    drafting, batches = Drafting(2, 0.7, method), [Batch.decode([900] * 64)]  # type: ignore[arg-type]
    assert skewed.price(batches) != model.price(batches)
    is_same = skewed.draft_passes(batches, drafting) == model.draft_passes(batches, drafting)
    assert is_same == (method == "draft_model")


def test_a_draft_model_with_another_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match=r"found llama-3\.1-8b with a vocabulary of 128256, expected the 151936"):
        Drafter.of_model(load_model("llama-3.1-8b"), QWEN.model, Partition(), BF16)


def drafted_by(method: str, **fields: Any) -> IterationModel:
    return IterationModel(QWEN.model, Partition(), BF16, H200, drafter=BEHIND_QWEN[method], **fields)


def test_passes_of_a_draft_model_are_its_own_iterations() -> None:
    """Three drafts for eight requests of 1000 tokens, four of them verified: the model runs over the five tokens that
    end at 1001, then over one that ends at 1002 and at 1003; without the host's step, launched in piecewise graphs."""
    drafting = Drafting(3, 0.7, "draft_model")
    batch = [Batch.decode([1000] * 8)]
    step = drafted_by("draft_model", queries=4).speculative(batch, drafting)
    host = HostModel().of_drafts()
    alone = IterationModel(QWEN_0_6B, Partition(), BF16, H200, queries=4, host=host)
    at_1001 = alone._iteration(RankBatches.decode(np.full(8, 1001), [8]), 0, 5, 8)
    later = [alone.price_device([Batch.decode([kv] * 8)]) for kv in (1002, 1003)]
    assert [cost.compute_ps for cost in step.draft_passes] == [at_1001.compute_ps, *(each.compute_ps for each in later)]
    piecewise_us = host.launch_us + 28 * 4 * host.piece_launch_us
    assert {cost.launch_ps for cost in step.draft_passes} == {round(piecewise_us * 1e6)}


def test_a_pass_of_an_eagle_head_is_the_sum_of_its_operators() -> None:
    """One request of 2000 tokens with one draft, at one clock: embedding, projection, one layer without its first norm
    over two tokens, attention of two queries, one row of logits; each at what the estimator says, but
    that RoPE and the norm of keys are launched with the norm of queries."""
    steady = replace(H200, clock=None)
    model = IterationModel(QWEN.model, Partition(), BF16, steady, drafter=BEHIND_QWEN["eagle"], queries=2)
    (cost,) = model.speculative([Batch.decode([2000])], Drafting(1, 0.7, "eagle")).draft_passes
    drafter, estimator = BEHIND_QWEN["eagle"], select_estimator("auto", steady, BF16)
    listed = [*drafter.token_operators(2), *head_operators(drafter.model, Partition(), BF16, rows=1)]
    assert "input_norm" not in {operator.name for operator in listed}
    assert "draft_projection" in {operator.name for operator in listed}
    kernels_us = sum(estimator.price(op.kernel).time_us for op in listed if isinstance(op.kernel, Kernel))
    fused_us = 2 * Pricing(estimator, steady, BF16).launch_floor_us
    attention_us = cost.phase_ps[PHASES.index(Phase.ATTENTION)] / 1e6
    assert attention_us > 0
    inputs_us = HostModel().step_us
    assert cost.compute_ps / 1e6 == pytest.approx(kernels_us - fused_us + attention_us + inputs_us, rel=1e-6)


@pytest.mark.parametrize("method", BEHIND_QWEN)
def test_prompts_cost_passes_of_the_drafter(method: str) -> None:
    """A prompt of 1000: the first pass is a prefill of as many tokens (one more for a model), the second a decode."""
    drafting = Drafting(2, 0.7, method)  # type: ignore[arg-type]
    model = drafted_by(method, queries=3)
    first, second = model.draft_passes([Batch.prefill([1000])], drafting)
    extra = 1 if method == "draft_model" else 0
    drafter = model._drafting_model
    assert first.compute_ps == drafter.price_device([Batch.prefill([1000 + extra])]).compute_ps
    assert second.compute_ps == drafter.price_device([Batch.decode([1001 + extra])]).compute_ps
    assert first.compute_ps > second.compute_ps


def test_decodes_beside_a_prompt_are_drafted_for_with_it() -> None:
    """One row of logits for each, a chunk that samples nothing included; the decode has two queries in the pass."""
    drafting, model = Drafting(1, 0.7, "eagle"), drafted_by("eagle", queries=2)
    mixed = Batch(np.array([1, 500]), np.array([300, 800]), logit_rows=1)
    (cost,) = model.draft_passes([mixed], drafting)
    drafter = model._drafting_model
    assert cost.compute_ps == drafter._iteration(RankBatches.of([mixed]), 0, 2, rows=2).compute_ps
    alike = drafter.price([Batch(np.array([1, 1, 500]), np.array([300, 299, 800]), logit_rows=2)])
    dense, attention = PHASES.index(Phase.DENSE), PHASES.index(Phase.ATTENTION)
    assert cost.phase_ps[dense] == pytest.approx(alike.phase_ps[dense], rel=1e-3)
    assert cost.phase_ps[attention] < alike.phase_ps[attention]


def test_ngrams_cost_no_pass() -> None:
    step = QWEN.speculative([Batch.decode([900] * 8)], Drafting(3, 0.5, "ngram", 0.5))
    assert step.draft_passes == ()
    assert step.verification.compute_ps == QWEN.price([Batch.decode([900] * 8)], queries=4).compute_ps


def test_a_layer_that_drafts_runs_its_experts_in_the_engines_kernel() -> None:
    """Both models have the same layer of experts; the passes of one gather its rows as vLLM does."""
    batch = Batch.decode([4096] * 8)
    passes = {
        kernel: IterationModel(load_model("deepseek-v3"), Partition(), FP8, H200, experts_kernel=kernel)
        .speculative([batch], Drafting(1, 0.8))
        .draft_passes[0]
        .compute_ps
        for kernel in ("deep_gemm", "triton")
    }
    assert passes["triton"] != passes["deep_gemm"]
