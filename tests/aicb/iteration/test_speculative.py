"""Drafting and verifying several tokens per step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aicb import Batch, InputError, Partition, Precision, get_gpu, instance_memory, load_model
from aicb.iteration.model import PHASES, IterationModel
from aicb.iteration.speculative import Drafting
from aicb.operators.memory import draft_weight_bytes
from aicb.operators.mtp import draft_parameters
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
    assert draft_weight_bytes(deepseek, Partition(), Precision()) == 2 * (11_610_068_224 + absorbed)
    others = 248 * 44_040_192
    partition = Partition(dp=32, ep=32)
    assert draft_weight_bytes(deepseek, partition, Precision()) == 2 * (11_610_068_224 + absorbed - others)


def test_the_last_stage_also_stores_the_embedding_for_drafts() -> None:
    """With one stage it is there already; with four it is 129280·7168 bf16 elements more."""
    deepseek = load_model("deepseek-v3")
    one, four = (draft_weight_bytes(deepseek, Partition(dp=8, ep=8, pp=pp), FP8) for pp in (1, 4))
    assert four - one == 2 * 129_280 * 7168


def test_the_draft_layer_takes_kv_memory_of_one_more_layer() -> None:
    qwen = load_model("qwen3-8b")
    plain = instance_memory(qwen, Partition(), Precision(), H200)
    drafting = instance_memory(qwen, Partition(), Precision(), H200, has_draft_layer=True)
    assert drafting.kv_bytes_per_token_per_rank * 36 == plain.kv_bytes_per_token_per_rank * 37
    layer = 2 * (draft_parameters(qwen))
    assert drafting.weights_bytes - plain.weights_bytes == layer
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


def test_a_draft_pass_costs_less_than_a_tenth_of_the_model_and_no_host_step() -> None:
    step = DEEPSEEK.speculative([Batch.decode([4000] * 8)], Drafting())
    (draft,) = step.draft_passes
    assert draft.host_ps == 0
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


def test_prefills_cannot_be_verified() -> None:
    mixed = Batch(np.array([1, 100]), np.array([50, 100]), 2)
    with pytest.raises(InputError, match="queries: found 2 in a batch with prefills"):
        QWEN.speculative([mixed], Drafting())


@pytest.mark.parametrize(("drafts", "acceptance"), [(0, 0.5), (1, 1.5), (1, -0.1)])
def test_wrong_drafting_is_refused(drafts: int, acceptance: float) -> None:
    with pytest.raises(InputError, match=r"Drafting\.(drafts|acceptance): found"):
        Drafting(drafts, acceptance)
