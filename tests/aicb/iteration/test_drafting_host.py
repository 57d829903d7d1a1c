"""What drafts take on the host of a vLLM engine."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aicb import Batch, Partition, Precision, get_gpu, load_model
from aicb.iteration.drafting_host import (
    BY_LAYER,
    BY_LAYER_IN_GRAPHS,
    BY_MODEL,
    UNMEASURED,
    DraftingHost,
    drafting_of_vllm,
    has_second_runner,
)
from aicb.iteration.host import AGREEING_LAUNCHES, LOGITS_LAUNCHES, GraphMode, HostModel
from aicb.iteration.model import IterationModel
from aicb.iteration.speculative import Drafting
from aicb.operators.drafter import Drafter

RECORDED = Path(__file__).parents[2] / "data" / "engine"
HOST = HostModel(eager_launch_us=50.0, speed_spread=0.0)
QWEN, BF16, H200 = load_model("qwen3-8b"), Precision(), get_gpu("h200")
LAYER = Drafter.eagle(QWEN, Partition(), BF16)


def drafted(drafting: DraftingHost, partition: Partition | None = None, **fields: Any) -> IterationModel:
    parted = partition or Partition()
    drafter = Drafter.eagle(QWEN, parted, BF16)
    return IterationModel(QWEN, parted, BF16, H200, host=HOST, drafter=drafter, drafting_host=drafting, **fields)


def launched_us(model: IterationModel, batch: Batch, drafts: int = 2) -> list[float]:
    passes = model.draft_passes([batch] * model.partition.dp, Drafting(drafts, 0.5, "eagle"))
    return [cost.launch_ps / 1e6 for cost in passes]


@pytest.mark.parametrize(
    ("name", "is_second"),
    [
        ("qwen3-8b", True),
        ("llama-3.1-8b", True),
        ("qwen2.5-72b", False),
        ("qwen3-30b-a3b", False),
        ("deepseek-v3", False),
        ("gpt-oss-20b", False),
    ],
)
def test_dense_models_of_the_listed_kinds_get_the_second_runner(name: str, is_second: bool) -> None:
    """vLLM 0.24's list has Qwen3ForCausalLM and LlamaForCausalLM, but not Qwen2ForCausalLM, and no MoE model here."""
    assert has_second_runner(load_model(name)) is is_second
    assert drafting_of_vllm(load_model(name), "mtp") is (BY_LAYER_IN_GRAPHS if is_second else BY_LAYER)


def test_a_model_that_drafts_is_launched_outside_graphs_whatever_it_drafts_for() -> None:
    for name in ("qwen3-8b", "deepseek-v3"):
        assert drafting_of_vllm(load_model(name), "draft_model") is BY_MODEL
    assert {BY_MODEL.mode(mode) for mode in GraphMode} == {GraphMode.EAGER}
    assert drafting_of_vllm(QWEN, "ngram") is UNMEASURED


def test_passes_of_decodes_are_launched_as_graphs_or_in_pieces_with_what_is_done_besides() -> None:
    """A layer of Qwen3-8B has four launches between graphs. Of 50 us each: 20 and 11.5 besides in the first runner, 2.7
    in the second."""
    batch = Batch.decode([1000] * 4)
    pieces_us = HOST.launch_us + 4 * HOST.piece_launch_us
    assert launched_us(drafted(BY_LAYER), batch) == pytest.approx([pieces_us + 20 * 50.0, pieces_us + 11.5 * 50.0])
    graphs = launched_us(drafted(BY_LAYER_IN_GRAPHS), batch)
    assert graphs == pytest.approx([HOST.launch_us + 2.7 * 50.0] * 2)
    assert launched_us(drafted(UNMEASURED), batch) == pytest.approx([pieces_us] * 2)


def test_first_passes_with_prompts_are_in_pieces_or_outside_graphs() -> None:
    short, long = Batch.prefill([100]), Batch.prefill([2000])
    pieces_us = HOST.launch_us + 4 * HOST.piece_launch_us
    in_graphs = drafted(BY_LAYER_IN_GRAPHS)
    assert launched_us(in_graphs, short, 1) == pytest.approx([pieces_us + 10 * 50.0])
    eager = in_graphs._drafting_model.launches(0).within_iteration().eager_time
    assert launched_us(in_graphs, long, 1) == pytest.approx([(eager + 14) * 50.0])
    by_model = drafted(BY_MODEL)
    assert launched_us(by_model, short, 1) == launched_us(by_model, long, 1) == pytest.approx([eager * 50.0])


def test_several_workers_gather_logits_in_each_pass_and_agree_before_two() -> None:
    batch = Batch.decode([1000] * 4)
    alone, two = launched_us(drafted(BY_LAYER), batch, 3), launched_us(drafted(BY_LAYER, Partition(tp=2)), batch, 3)
    assert [b - a for a, b in zip(alone, two, strict=True)] == pytest.approx([LOGITS_LAUNCHES * 50.0] * 3)
    shared = IterationModel(
        load_model("qwen3-30b-a3b"), Partition(dp=2, ep=2), BF16, H200, host=HOST, drafting_host=BY_LAYER
    )
    first, second, third = launched_us(shared, batch, 3)
    assert second - third == pytest.approx(AGREEING_LAUNCHES * 50.0)
    assert first - second == pytest.approx((20.0 - 11.5) * 50.0)


def test_steps_that_verify_drafts_are_prepared_longer() -> None:
    """16 launches and 0.4 for each of three decodes; prompts beside them, or alone, have nothing to verify."""
    model, cost = drafted(BY_LAYER), drafted(BY_LAYER).price_device([Batch.decode([1000] * 3)])
    prepared = model.prepared_with_drafts(cost, [Batch.decode([1000] * 3)])
    assert prepared == replace(cost, prepare_ps=cost.prepare_ps + round(17.2 * 50e6))
    assert model.prepared_with_drafts(cost, [Batch.prefill([1000])]) == cost


@pytest.mark.parametrize(
    ("name", "drafting", "passes"),
    [
        ("deepseek-v3-l8-mtp1", BY_LAYER, 1),
        ("deepseek-v3-l8-mtp3", BY_LAYER, 3),
        ("qwen3-8b-eagle2", BY_LAYER_IN_GRAPHS, 2),
        ("qwen3-8b-draft3", BY_MODEL, 3),
    ],
)
def test_constants_are_within_what_was_stamped(name: str, drafting: DraftingHost, passes: int) -> None:
    """Drafting of 1 and 8 decodes before and after: launches of the passes, and what is besides, in launches."""
    with gzip.open(RECORDED / f"vllm-h200-tp1-{name}.json.gz", "rt", encoding="utf-8") as file:
        parts = json.load(file)["parts"]
    found = [
        row["draft_us"] / phase["launch_us"]
        for phase in parts
        if phase["phase"].startswith("loads")
        for row in phase["steps"]
        if row["mode"] == "full" and row["requests"] in (1, 8)
    ]
    own = {BY_LAYER: 3.8, BY_LAYER_IN_GRAPHS: 0.6, BY_MODEL: 191.0}[drafting]
    counted = passes * own + drafting.first + (passes - 1) * drafting.further
    assert min(found) * 0.95 < counted < max(found) * 1.05
    prepared = [
        row["prepare_us"] / phase["launch_us"]
        for phase in parts
        if phase["phase"].startswith("loads")
        for row in phase["steps"]
        if row["mode"] == "full" and row["requests"] == 1
    ]
    without = HostModel().prepare_us / HostModel().eager_launch_us
    assert min(prepared) * 0.9 < without + drafting.preparing < max(prepared) * 1.1
