"""What vLLM runs in models with gated delta rules besides products, attention and experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicb import IterationModel, Partition, Precision, get_gpu
from aicb.estimators.selection import select_estimator
from aicb.kernels.elementwise import ESTIMATED, HYBRID, Elementwise, ElementwiseTimes
from aicb.kernels.kernel import Kernel
from aicb.measurements.table import KernelTable
from aicb.measurements.timing import MeasuredTimes
from aicb.model.architecture import Model
from aicb.model.catalog import load_model
from aicb.model.worker_split import WorkerSplit
from aicb.operators.batch import Batch
from aicb.operators.hybrid_kernels import HybridKernels
from aicb.operators.lists import iteration_operators
from aicb.operators.operator import Operator
from aicb.operators.workers import attention_token_operators
from boundary.errors import InputError

BF16 = Precision("bf16")


def cut_model(layers: int = 4) -> Model:
    """Three layers with the gated delta rule and one with attention, 512 experts and a shared one each."""
    model = load_model("qwen3-next-80b-a3b")
    return replace(model, pattern=model.pattern[:layers])


def listed(batch: Batch, kernels: HybridKernels, tp: int = 1, precision: Precision = BF16) -> dict[str, Operator]:
    found = iteration_operators(cut_model(), Partition(tp=tp), precision, batch, hybrid_kernels=kernels)
    return {each.name: each for each in found}


def moved(operators: dict[str, Operator], name: str) -> int:
    kernel = operators[name].kernel
    assert isinstance(kernel, Elementwise)
    return kernel.moved_bytes


def test_bytes_of_a_prompt_are_those_of_vllms_code() -> None:
    """1,000 tokens on two ranks, each with 8 key heads and 16 value heads of 128, so 4,096 channels of the convolution
    and 2,048 of values, all in bf16, read and written: results 8.192 MB, three copies of values and z 24.576, the three
    joined 16.384. Memory that is cleared is written only. Heads of attention: 8 with gates and 1 of keys, 17 · 256
    columns, and their weights.
    """
    found = listed(Batch.prefill([1000]), "compiled", tp=2)
    assert (moved(found, "gdn_split"), moved(found, "gdn_results")) == (24_576_000, 8_192_000)
    assert moved(found, "gdn_join") == 16_384_000
    assert moved(found, "gdn_clear") == 4_096_000
    assert moved(found, "gdn_prepare") == 16_384_000 + 1000 * 2 * 16 * (2 + 4) + 2 * 2 * 16
    assert moved(found, "gdn_norm_sums") == 1000 * 16 * (128 * 2 + 4)
    assert moved(found, "gdn_gated_norm") == 1000 * 16 * (128 * 6 + 4) + 2 * 128
    assert moved(found, "gated_head_norm") == 1000 * 17 * 256 * 4 + 2 * 2 * 256
    assert moved(found, "input_norm") == 1000 * 2048 * 14 + 2 * 2048
    assert moved(found, "post_attention_norm") == 1000 * 2048 * 8 + 2 * 2048
    assert moved(found, "shared_gate_sigmoid") + moved(found, "shared_gate_mul") == 1000 * 4 * (1 + 2048)
    assert (found["gdn_join"].count, found["gated_head_norm"].count, found["input_norm"].count) == (3, 1, 4)


def test_operators_whose_work_is_in_others_are_not_listed() -> None:
    prompt, decodes = (listed(batch, "compiled") for batch in (Batch.prefill([100]), Batch.decode([50] * 4)))
    for found in (prompt, decodes):
        assert not {"gdn_gates", "q_norm", "k_norm", "rope", "shared_add"} & set(found)
    assert {"gdn_prepare", "gdn_results"} <= set(prompt)
    assert not {"gdn_prepare", "gdn_results"} & set(decodes)


@pytest.mark.parametrize(("state", "state_bytes"), [("fp32", 4), ("bf16", 2)])
def test_decodes_read_and_write_the_state_in_its_format(state: str, state_bytes: int) -> None:
    """Of 10 requests: 32 states of 128 x 128, 8,192 channels, results of 4,096 and two gates of each head in bf16."""
    precision = Precision("bf16", state=state)  # type: ignore[arg-type]
    found = listed(Batch.decode([50] * 10), "compiled", precision=precision)
    of_state = 2 * state_bytes * 32 * 128 * 128
    assert moved(found, "gdn_decode") == 10 * (of_state + 2 * (8192 + 4096 + 2 * 32)) + 2 * 2 * 32


def test_weights_are_the_same_whatever_runs() -> None:
    """Convolution, norms and gates are held by other operators, and all of them once."""
    batch = Batch.prefill([64])
    for tp in (1, 2):
        both = [
            iteration_operators(cut_model(), Partition(tp=tp), BF16, batch, hybrid_kernels=kernels)
            for kernels in ("fused", "compiled")
        ]
        fused, compiled = (sum(each.count * each.weight_elements for each in found) for found in both)
        assert fused == compiled


def test_other_models_run_the_same_either_way() -> None:
    model, batch = load_model("qwen3-30b-a3b"), Batch.prefill([64])
    fused, compiled = (
        [
            (each.name, each.kernel.describe(), each.count)
            for each in iteration_operators(model, Partition(), BF16, batch, hybrid_kernels=kernels)
            if isinstance(each.kernel, Kernel)
        ]
        for kernels in ("fused", "compiled")
    )
    assert fused == compiled


def test_attention_workers_run_them_too() -> None:
    """Of the same names and bytes as where nothing is apart, but for what the experts give, which travels."""
    model, batch = cut_model(), Batch.prefill([512])
    split = WorkerSplit(Partition(dp=4), Partition(dp=4, ep=4), 1)
    apart = attention_token_operators(model, split, BF16, tokens=512, hybrid_kernels="compiled")
    whole = listed(batch, "compiled")
    of_kernels = [each for each in apart if isinstance(each.kernel, Elementwise) and each.kernel.name in ESTIMATED]
    assert {each.name for each in of_kernels} == {
        name for name, each in whole.items() if isinstance(each.kernel, Elementwise) and each.kernel.name in ESTIMATED
    } - {"gdn_conv", "gdn_prepare", "gdn_results"}
    assert [each.moved_bytes for each in of_kernels] == [whole[each.name].moved_bytes for each in of_kernels]
    assert not {"gdn_gates", "shared_add"} & {each.name for each in apart}


@pytest.mark.parametrize("batch", [Batch.prefill([1024]), Batch.decode([520] * 64)], ids=["prompt", "decodes"])
def test_times_are_those_inside_the_engine(batch: Batch) -> None:
    """On an H200, of which the engine's are known; on an H100 they are transferred."""
    kernels = [each.kernel for each in listed(batch, "compiled", tp=2).values() if isinstance(each.kernel, Elementwise)]
    of_hybrid = [kernel for kernel in kernels if kernel.name in HYBRID]
    assert len(of_hybrid) == (14 if batch.tokens == 1024 else 13)
    for gpu, kind in (("h200", "measured"), ("h100", "estimate: transferred from h200 by")):
        estimator = select_estimator("auto", get_gpu(gpu), BF16)
        sources = {kernel.name: estimator.price(kernel).source for kernel in of_hybrid}
        assert all(source.startswith(kind) and "measured" in source for source in sources.values()), sources


def test_without_measurements_times_are_by_bytes_and_flagged() -> None:
    table = KernelTable.load("h200")
    without = replace(table, parts=tuple(part for part in table.parts if part.file.stem != "vllm_hybrid"))
    others = ElementwiseTimes(MeasuredTimes.of(without, "engine", get_gpu("h200")))
    for each in listed(Batch.prefill([1000]), "compiled").values():
        if isinstance(each.kernel, Elementwise) and each.kernel.name in HYBRID:
            estimate = others.price(each.kernel)
            assert estimate.is_estimate
            assert estimate.source == "estimate: bytes at the bandwidth envelope of rms_norm"


def test_a_prompt_takes_longer_with_vllms_copies() -> None:
    """Three layers with a delta rule, one with attention: 8 to 20 % of 4,096 tokens on one rank."""
    fused, compiled = (
        IterationModel(cut_model(), Partition(), BF16, get_gpu("h200"), hybrid_kernels=kernels).price_device(
            [Batch.prefill([4096])]
        )
        for kernels in ("fused", "compiled")
    )
    assert 1.05 < compiled.compute_ps / fused.compute_ps < 1.2


def test_other_kernels_are_refused() -> None:
    with pytest.raises(InputError, match="hybrid_kernels: found 'eager', expected one of fused, compiled"):
        IterationModel(cut_model(), Partition(), BF16, get_gpu("h200"), hybrid_kernels="eager")  # type: ignore[arg-type]
