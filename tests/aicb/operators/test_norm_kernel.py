"""Norms that run in one kernel with the all-reduce before them."""

from __future__ import annotations

import pytest

from aicb import Partition, Precision, get_gpu, load_model
from aicb.iteration.model import IterationModel
from aicb.kernels.elementwise import Elementwise
from aicb.operators.batch import Batch
from aicb.operators.lists import iteration_operators, token_operators
from aicb.operators.norm_kernel import FUSED_UP_TO_BYTES, check_norm_kernel, normalised_by
from aicb.operators.operator import Communication, Operator
from boundary.errors import InputError
from tests.validation.partitions_vs_engine import measurement

TOGETHER = "flashinfer::trtllm_allreduce_fusion"
NEXT = "qwen3-next-80b-a3b"
SERVERS = {
    "qwen3-8b": "h200-tp2-qwen3-8b",
    "glm-4.5-air": "h200-tp2-glm-4.5-air",
    "mixtral-8x7b": "h200-tp2-mixtral-8x7b",
}
HYBRID = {NEXT: "h200-tp2-qwen3-next-flashinfer"}


def listed(model: str, tokens: int, tp: int = 2) -> list[Operator]:
    parallel = load_model(model), Partition(tp=tp), Precision()
    return token_operators(*parallel, tokens=tokens, hybrid_kernels="compiled")


def fused(operators: list[Operator]) -> int:
    return sum(each.count for each in operators if isinstance(each.kernel, Communication) and each.kernel.is_normalised)


def norms(operators: list[Operator]) -> int:
    return sum(each.count for each in operators if each.name in ("input_norm", "post_attention_norm"))


def weights(operators: list[Operator]) -> int:
    return sum(each.count * each.weight_elements for each in operators)


@pytest.mark.parametrize("model", [*SERVERS, *HYBRID])
def test_as_many_all_reduces_normalise_as_in_the_engine(model: str) -> None:
    """Each of a decode step, and no other kernel of FlashInfer's."""
    kernels = measurement((SERVERS | HYBRID)[model])["kernels"]
    few, more = (
        sum(count for name, (count, _) in kernels[f"decode-1-{outputs}"].items() if TOGETHER in name)
        for outputs in (9, 33)
    )
    assert fused(normalised_by("flashinfer", listed(model, 1), 2)) == (more - few) / (33 - 9)


@pytest.mark.parametrize("model", [*SERVERS, "deepseek-v3", "gpt-oss-20b"])
def test_norms_of_layers_are_in_them_and_nothing_else_changes(model: str) -> None:
    apart, together = listed(model, 64), normalised_by("flashinfer", listed(model, 64), 2)
    assert norms(apart) == 2 * len(load_model(model).layers)
    assert norms(together) == 0
    assert fused(together) == norms(apart) + 1
    assert weights(together) == weights(apart)
    others = {each.name: (each.kernel, each.count) for each in together if not isinstance(each.kernel, Communication)}
    assert others == {
        each.name: (each.kernel, each.count)
        for each in apart
        if not isinstance(each.kernel, Communication) and each.name not in ("input_norm", "post_attention_norm")
    }


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_larger_ones_are_reduced_and_normalised_apart(tp: int) -> None:
    tokens = FUSED_UP_TO_BYTES[tp] // (2 * load_model("qwen3-8b").hidden)
    assert fused(normalised_by("flashinfer", listed("qwen3-8b", tokens, tp), tp)) == 73
    beyond = listed("qwen3-8b", tokens + 1, tp)
    assert normalised_by("flashinfer", beyond, tp) == beyond


def test_nothing_changes_with_one_rank() -> None:
    apart = listed("qwen3-8b", 8, tp=1)
    assert normalised_by("flashinfer", apart, 1) == apart


def test_a_hybrid_model_keeps_its_norms_after_attention_and_adds_shared_experts_before() -> None:
    """Of 97 all-reduces those after the experts and the embedding, 49, as FlashInfer's kernels in the engine."""
    apart, together = listed(NEXT, 8), normalised_by("flashinfer", listed(NEXT, 8), 2)
    assert fused(together) == 48 + 1
    assert weights(together) == weights(apart)
    counts = {each.name: each.count for each in together}
    assert counts["post_attention_norm"] == counts["shared_add"] == 48
    assert "input_norm" not in counts
    (added,) = [each.kernel for each in together if each.name == "shared_add"]
    assert added == Elementwise("add", 8, 2048, 3 * 2 * 8 * 2048)


def test_experts_that_ranks_share_leave_the_norm_before_attention_apart() -> None:
    """Their results are scattered, not all-reduced; dense layers' are."""
    operators = token_operators(load_model("deepseek-v3"), Partition(tp=2, dp=2, ep=4), Precision(), tokens=8)
    counts = {each.name: each.count for each in normalised_by("flashinfer", operators, 2)}
    assert "post_attention_norm" not in counts
    assert counts["input_norm"] == 58


def test_a_step_is_faster_by_its_norms_and_launches_fewer_kernels() -> None:
    def model(norm_kernel: str) -> IterationModel:
        parallel = (load_model("qwen3-8b"), Partition(tp=2), Precision(), get_gpu("h200"))
        return IterationModel(*parallel, norm_kernel=norm_kernel)  # type: ignore[arg-type]

    apart, together = model("apart"), model("flashinfer")
    batch = [Batch.decode([500] * 8)]
    saved_us = (apart.price(batch).compute_ps - together.price(batch).compute_ps) / 1e6
    assert 72 * 1.5 < saved_us < 72 * 3.5
    assert apart.launches(0).eager - together.launches(0).eager == 72


def test_lists_of_iterations_have_them_too() -> None:
    def operators(norm_kernel: str) -> list[Operator]:
        parallel = (load_model("qwen3-8b"), Partition(tp=2), Precision())
        return iteration_operators(*parallel, Batch.decode([9]), norm_kernel=norm_kernel)  # type: ignore[arg-type]

    assert (fused(operators("apart")), fused(operators("flashinfer"))) == (0, 73)


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(InputError, match=r"norm_kernel: found 'fast', expected one of apart, flashinfer"):
        check_norm_kernel("fast")
