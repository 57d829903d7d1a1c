"""Launching of SGLang on a host whose times are vLLM's."""

from __future__ import annotations

import pytest

from aicb.iteration.graph_sizes import GraphSizes
from aicb.iteration.host import GraphMode, HostModel
from aicb.iteration.model import IterationModel
from aicb.iteration.sglang_host import BETWEEN_GRAPHS, LAUNCH_US, SAMPLE_US, host_of
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.around_attention import writes_with_rotary
from aicb.operators.batch import Batch


def model_of(name: str, partition: Partition = Partition(), **options: object) -> IterationModel:  # noqa: B008
    weights = load_model(name).published_weights
    options = {"host_engine": "sglang", "experts_kernel": "triton" if weights == "fp8" else "deep_gemm", **options}
    return IterationModel(load_model(name), partition, Precision(weights), get_gpu("h200"), **options)  # type: ignore[arg-type]


def test_a_slower_host_launches_slower() -> None:
    slow = HostModel(eager_launch_us=2 * HostModel().eager_launch_us)
    assert host_of("sglang", slow).launch_us == 2 * LAUNCH_US
    assert host_of("sglang", slow).sample_us == 2 * SAMPLE_US
    assert host_of("vllm", slow) == slow


@pytest.mark.parametrize(
    ("name", "writes", "layers"), [("qwen3-8b", False, 36), ("qwen3-30b-a3b", True, 48), ("llama-3.1-8b", False, 32)]
)
def test_a_layer_between_graphs_takes_longer_where_it_writes_kv(name: str, writes: bool, layers: int) -> None:
    """8.2 ms of Qwen3-8B and 8.0 of Qwen3-30B-A3B were measured, 0.64 of it for a pass that is one graph."""
    model = model_of(name)
    assert writes_with_rotary(model.model) is writes
    call = "attention_without_writing" if writes else "attention"
    assert model.launches(0).pieces_time == pytest.approx(layers * BETWEEN_GRAPHS[call])
    passing_us = model.host.launching_us(GraphMode.PIECEWISE, model.launches(0)) - model.host.sample_us
    measured_ms = {"qwen3-8b": 8.17, "qwen3-30b-a3b": 8.02}
    if name in measured_ms:
        assert passing_us / 1e3 == pytest.approx(measured_ms[name], rel=0.01)


def test_batches_with_prompts_have_sizes_of_their_own() -> None:
    """Of 600 tokens: padded to 640 and replayed, or as they are; decodes are padded as they were."""
    sizes = GraphSizes((1, 2, 4), (512, 640))
    assert (sizes.padded(600, has_prompts=True), sizes.padded(3, has_prompts=False)) == (640, 4)
    assert (sizes.padded(700, has_prompts=True), sizes.padded(5, has_prompts=False)) == (700, 5)
    assert sizes.covers(600, has_prompts=True)
    assert not sizes.covers(600, has_prompts=False)
    assert not GraphSizes((), ()).covers(1, has_prompts=True)


def test_a_prompt_that_is_replayed_is_launched_sooner_and_computes_its_padding() -> None:
    """Of 600 tokens, with a graph for as many, for 640, and for none."""
    sizes: list[tuple[int, ...]] = [(600,), (640,), ()]
    models = [model_of("qwen3-8b", graph_sizes=(1, 2), prompt_graph_sizes=each) for each in sizes]
    exact, padded, eager = (model.price_device([Batch.prefill([600])]) for model in models)
    assert exact.launch_ps == padded.launch_ps < eager.launch_ps / 4
    assert exact.compute_ps < padded.compute_ps < 1.15 * exact.compute_ps
    decodes = {
        (cost.compute_ps, cost.launch_ps) for cost in (each.price_device([Batch.decode([600])]) for each in models)
    }
    assert len(decodes) == 1


@pytest.mark.parametrize("gqa_kernel", ["fa3", "fa3_captured"])
def test_prompts_on_one_rank_and_decodes_on_another_are_launched_kernel_by_kernel(gqa_kernel: str) -> None:
    """Of two ranks that share experts; vLLM replays what lies between attentions."""
    ranks = Partition(dp=2, ep=2)
    prompt, decodes, idle = Batch.prefill([600]), Batch.decode([500] * 20), Batch.prefill([])
    for engine in ("sglang", "vllm"):
        replayed, eager = (
            model_of("qwen3-30b-a3b", ranks, prompt_graph_sizes=sizes, gqa_kernel=gqa_kernel, host_engine=engine)
            for sizes in ((640,), ())
        )
        divided, alone, decoded = (
            replayed.price(batches) for batches in ((prompt, decodes), (prompt, idle), (decodes, decodes))
        )
        longest_ps = eager.price((prompt, decodes)).launch_ps
        assert divided.launch_ps == (longest_ps if engine == "sglang" else alone.launch_ps)
        assert alone.launch_ps < longest_ps / 3
        assert decoded.launch_ps < longest_ps / 20


def test_sparse_attention_between_graphs_is_launched_as_in_vllm() -> None:
    """It was not measured in SGLang."""
    own, theirs = (
        model_of("deepseek-v3.2", experts_kernel="deep_gemm", prompt_graph_sizes=(640,), host_engine=engine)
        for engine in ("sglang", "vllm")
    )
    assert own.launches(0).pieces_time == theirs.launches(0).pieces_time > 0


def test_drafts_are_launched_as_the_step_that_they_follow() -> None:
    """A step with prompts on one rank and decodes on the other, of a model whose own layer drafts."""
    ranks = Partition(dp=2, ep=2)
    model = model_of("deepseek-v3", ranks, experts_kernel="deep_gemm", prompt_graph_sizes=(640,), queries=2)
    batches = [Batch.prefill([600]), Batch.decode([500] * 20)]
    for of in (model, model._drafting_model):
        assert of._graph_mode(batches, 2) is GraphMode.EAGER
        assert of._graph_mode(batches[:1], 2) is GraphMode.PIECEWISE
        assert not of.graph_sizes.replays_divided
