"""Small kernels around experts' products, as vLLM runs them, and their times (docs/accuracy/engines.md)."""

from __future__ import annotations

import pytest

from aicb import Batch
from aicb.estimators.selection import select_estimator
from aicb.iteration.model import IterationModel
from aicb.iteration.overlap import Overlap
from aicb.kernels.elementwise import Elementwise
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.dispatch import ExpertDispatch
from aicb.operators.lists import expert_operators, iteration_operators
from aicb.operators.moe_kernels import MoeKernels, check_moe_kernels, moe_kernels_of
from aicb.operators.operator import Operator
from boundary.errors import InputError
from tests.validation.engine_figures import read_measurement

BF16, FP8 = Precision(), Precision("fp8")
ONE = Partition()


def listed(
    model: str, tokens: int, kernels: MoeKernels = "vllm", partition: Partition = ONE, precision: Precision = BF16
) -> dict[str, Operator]:
    operators = expert_operators(
        load_model(model),
        partition,
        precision,
        tokens=tokens,
        group_tokens=tokens * partition.dp,
        is_decode=True,
        experts_kernel="triton" if precision.weights == "fp8" else "deep_gemm",
        moe_kernels=kernels,
        dispatch=ExpertDispatch("all_gather", "all_gather"),
    )
    return {operator.name: operator for operator in operators}


def small(operators: dict[str, Operator], name: str) -> Elementwise:
    kernel = operators[name].kernel
    assert isinstance(kernel, Elementwise)
    return kernel


@pytest.mark.parametrize(
    ("model", "precision", "most"), [("qwen3-30b-a3b", BF16, 4), ("deepseek-v3", FP8, 8), ("mixtral-8x7b", BF16, 1)]
)
def test_few_pairs_are_not_sorted(model: str, precision: Precision, most: int) -> None:
    """128 experts, 8 of a token: 4 tokens are a quarter of them; 256, 8: 8 tokens; 8, 2: one token."""
    few, more = (listed(model, tokens, precision=precision) for tokens in (most, most + 1))
    assert small(few, "moe_align").name == "expert_copy"
    assert small(few, "moe_align").moved_bytes == 4
    assert small(more, "moe_align").name == "moe_align"


@pytest.mark.parametrize(
    ("model", "kernel"),
    [("qwen3-30b-a3b", "topk_softmax"), ("mixtral-8x7b", "topk"), ("deepseek-v3", "grouped_topk")],
)
def test_its_own_kernel_chooses_among_128_and_more_experts_by_softmax(model: str, kernel: str) -> None:
    batch = Batch.decode([100] * 3)
    by_kernels = {
        kernels: {
            each.name: each
            for each in iteration_operators(load_model(model), ONE, BF16, batch, moe_kernels=kernels)  # type: ignore[arg-type]
        }
        for kernels in ("generic", "vllm")
    }
    assert small(by_kernels["vllm"], "topk").name == kernel
    assert small(by_kernels["generic"], "topk").name == kernel.removesuffix("_softmax")
    assert small(by_kernels["vllm"], "topk").moved_bytes == small(by_kernels["generic"], "topk").moved_bytes


def test_pairs_are_always_sorted_where_ranks_share_experts() -> None:
    assert small(listed("qwen3-30b-a3b", 1, partition=Partition(dp=2, ep=2)), "moe_align").name == "moe_align"


def test_more_than_four_experts_are_summed_by_torch() -> None:
    """Three tokens: 24 rows of 2,048 read, 3 written; of two experts 6 of 4,096."""
    eight, two = listed("qwen3-30b-a3b", 3), listed("mixtral-8x7b", 3)
    assert small(eight, "moe_unpermute") == Elementwise("moe_sum", 24, 2048, 2 * 2048 * (24 + 3))
    assert small(two, "moe_unpermute") == Elementwise("unpermute", 6, 4096, 2 * 4096 * (6 + 3))


@pytest.mark.parametrize(("model", "precision"), [("qwen3-30b-a3b", BF16), ("deepseek-v3", FP8)])
def test_its_own_kernel_activates(model: str, precision: Precision) -> None:
    assert small(listed(model, 3, precision=precision), "moe_silu_mul").name == "silu_and_mul"
    assert small(listed(model, 3, "generic", precision=precision), "moe_silu_mul").name == "silu_mul"


def test_results_are_copied_once() -> None:
    """Of all tokens, or of the rank's own where they come back from others."""
    alone, shared = listed("qwen3-30b-a3b", 3), listed("qwen3-30b-a3b", 3, partition=Partition(dp=2, ep=2))
    for operators in (alone, shared):
        assert small(operators, "moe_output") == Elementwise("expert_copy", 3, 2048, 3 * 2048 * 4)
    assert list(shared)[-2:] == ["moe_combine", "moe_output"]


def test_kernels_of_mxfp4_sum_by_themselves() -> None:
    assert {"moe_unpermute", "moe_output"}.isdisjoint(listed("gpt-oss-20b", 3, precision=Precision("mxfp4")))


def test_generic_kernels_neither_copy_nor_leave_pairs_unsorted() -> None:
    operators = listed("qwen3-30b-a3b", 1, "generic")
    assert "moe_output" not in operators
    assert small(operators, "moe_align").name == "moe_align"
    assert small(operators, "moe_unpermute").name == "unpermute"


def test_hybrid_models_copy_results_once() -> None:
    found = iteration_operators(
        load_model("qwen3-next-80b-a3b"),
        ONE,
        BF16,
        Batch.decode([100]),
        hybrid_kernels="compiled",
        moe_kernels="vllm",
    )
    assert sum(each.count for each in found if each.name == "moe_output") == 48


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(InputError, match="moe_kernels: found 'torch', expected one of generic, sglang, vllm"):
        check_moe_kernels("torch")


def sum_us(gpu: str, tokens: int, experts: int, hidden: int) -> float:
    """Of decodes at the clock of light loads."""
    rows, law = tokens * experts, get_gpu("h200").clock
    assert law is not None
    priced = select_estimator("auto", get_gpu(gpu), BF16).price(
        Elementwise("moe_sum", rows, hidden, 2 * hidden * (rows + tokens))
    )
    assert priced.is_estimate == (gpu != "h200")
    return priced.time_us * (law.reference_mhz / law.light_mhz if tokens < 300 else 1.0)


@pytest.mark.parametrize(
    ("tokens", "experts", "hidden", "engine_us"),
    [
        *((1, 8, 2048, 4.7), (1, 10, 2048, 5.25), (1, 8, 7168, 4.7)),
        *((1024, 8, 2048, 18.3), (1024, 10, 2048, 22.05), (1024, 8, 7168, 47.2)),
    ],
)
def test_sums_take_as_long_as_in_other_steps(tokens: int, experts: int, hidden: int, engine_us: float) -> None:
    """In single layers of eager engines (``tests/data/engine/vllm-eager-layers.json.gz``), which the table is not from;
    their kernels were 4 to 6 % longer than in the steps that it is from."""
    assert sum_us("h200", tokens, experts, hidden) == pytest.approx(engine_us, rel=0.08)


def test_sums_on_an_h100_take_as_long_as_there() -> None:
    """In decodes of 2 to 160 requests of Qwen3-30B-A3B, DP 2 and EP 2; transferred."""
    measured = {
        row["requests"]: row["kernels"]["sum"] for row in read_measurement("vllm-h100-host-parts")["decode_kernels"]
    }
    assert sorted(measured) == [2, 16, 64, 160]
    assert {tokens: sum_us("h100", tokens, 8, 2048) for tokens in measured} == pytest.approx(measured, rel=0.1)


WITH_FUSED_EXPERTS = {"deepseek-v3": 257, "glm-4.5": 161, "glm-4.5-air": 129}


def of_iteration(model: str, tokens: int, partition: Partition, precision: Precision) -> dict[str, Operator]:
    operators = iteration_operators(
        load_model(model), partition, precision, Batch.decode([1024] * tokens), moe_kernels="sglang"
    )
    return {operator.name: operator for operator in operators}


@pytest.mark.parametrize("precision", [BF16, FP8])
@pytest.mark.parametrize(("model", "experts"), WITH_FUSED_EXPERTS.items())
def test_sglangs_shared_expert_is_one_more_routed_expert(model: str, experts: int, precision: Precision) -> None:
    """Every token chooses it: as many rows more as there are tokens, on one expert more."""
    tokens, partition = 6, Partition(tp=8)
    found = of_iteration(model, tokens, partition, precision)
    alone = {
        operator.name: operator
        for operator in iteration_operators(load_model(model), partition, precision, Batch.decode([1024] * tokens))
    }
    assert not [name for name in found if name.startswith("shared_")]
    assert "shared_gate_up" in alone
    for name in ("moe_gate_up", "moe_down"):
        wider, before = found[name].kernel, alone[name].kernel
        assert isinstance(wider, GroupedGemm)
        assert isinstance(before, GroupedGemm)
        assert (wider.groups, before.groups) == (experts, experts - 1)
        assert wider.rows - before.rows == tokens
        assert wider.active_groups - before.active_groups == pytest.approx(1)
        assert wider.largest_group_rows == tokens
    fused, apart = (sum(each.flops * each.count for each in of.values()) for of in (found, alone))
    assert fused == pytest.approx(apart, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "partition", "precision"),
    [
        ("deepseek-v3", Partition(tp=1, dp=8, ep=8), FP8),
        ("kimi-k2", Partition(tp=8), FP8),
        ("deepseek-v3.2", Partition(tp=8), FP8),
        ("qwen3-next-80b-a3b", Partition(tp=2), BF16),
    ],
)
def test_other_shared_experts_stay_apart(model: str, partition: Partition, precision: Precision) -> None:
    """Experts that ranks share, 384 experts, sparse attention, a gate of the shared expert."""
    assert "shared_gate_up" in of_iteration(model, 6, partition, precision)


def test_a_shared_expert_that_overlaps_others_or_runs_elsewhere_is_not_fused() -> None:
    of_deepseek = (load_model("deepseek-v3"), Partition(tp=8), FP8)
    assert moe_kernels_of("sglang", *of_deepseek) == "sglang_fused"
    assert moe_kernels_of("sglang", *of_deepseek, is_apart=True) == "sglang"
    model = IterationModel(*of_deepseek, get_gpu("h200"), moe_kernels="sglang")
    overlapped = IterationModel(
        *of_deepseek, get_gpu("h200"), moe_kernels="sglang", overlap=Overlap(shared_expert_stream=True)
    )
    assert (model.moe_kernels, overlapped.moe_kernels) == ("sglang_fused", "sglang")


def test_models_without_shared_experts_run_the_same() -> None:
    model = load_model("qwen3-30b-a3b")
    assert moe_kernels_of("sglang", model, ONE, BF16) == "sglang"
    assert moe_kernels_of("vllm", model, ONE, BF16) == "vllm"


@pytest.mark.parametrize(("kernels", "gathering"), [("sglang", "sglang"), ("vllm", "vllm"), ("generic", "vllm")])
def test_bf16_experts_run_in_sglangs_kernel_in_its_engines(kernels: MoeKernels, gathering: str) -> None:
    operators = iteration_operators(
        load_model("qwen3-30b-a3b"), ONE, BF16, Batch.decode([1024] * 64), moe_kernels=kernels
    )
    products = [each.kernel for each in operators if isinstance(each.kernel, GroupedGemm)]
    assert [each.gathering for each in products] == [gathering] * 2
