"""Iterations of models with windows, chunks and mxfp4 experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aicb import Batch, InputError, IterationModel, Model, Partition, Precision, get_gpu, load_model
from aicb.model.architecture import GroupedQueryAttention
from aicb.model.key_span import KeySpan

H200 = get_gpu("h200")


def within(name: str, span: KeySpan | None) -> Model:
    """A model all of whose layers have this span."""
    model = load_model(name)
    kinds = []
    for kind in model.kinds:
        assert isinstance(kind.attention, GroupedQueryAttention)
        kinds.append(replace(kind, attention=replace(kind.attention, span=span)))
    return replace(model, kinds=tuple(kinds))


def priced(model: Model, *, weights: str = "bf16", estimator: str = "auto") -> IterationModel:
    return IterationModel(model, Partition(), Precision(weights), H200, estimator=estimator)  # type: ignore[arg-type]


MIXED = Batch(np.array([1, 300, 1, 50]), np.array([700, 900, 40, 50]), logit_rows=4)


@pytest.mark.parametrize("estimator", ["interpolation", "roofline"])
@pytest.mark.parametrize("kind", ["sliding", "chunked"])
def test_a_span_that_nothing_reaches_changes_no_time(kind: str, estimator: str) -> None:
    plain = priced(load_model("qwen3-8b"), estimator=estimator)
    wide = priced(within("qwen3-8b", KeySpan(kind, 4096)), estimator=estimator)  # type: ignore[arg-type]
    for batch in (MIXED, Batch.decode([900, 40, 3]), Batch.prefill([700, 20], [5, 0])):
        assert wide.price([batch]).compute_ps == plain.price([batch]).compute_ps


@pytest.mark.parametrize("estimator", ["interpolation", "roofline"])
@pytest.mark.parametrize("span", [KeySpan("sliding", 128), KeySpan("chunked", 64)])
def test_a_run_of_decodes_is_its_iterations_one_by_one(span: KeySpan, estimator: str) -> None:
    """Windows fill up and chunks end on the way."""
    model = priced(within("qwen3-0.6b", span), estimator=estimator)
    lengths = np.array([60, 100, 126, 2000])
    run = model.price_run([Batch.decode(lengths)], 70)[1]
    steps = [model.price([Batch.decode(lengths + step)]).compute_ps for step in range(70)]
    assert run.tolist() == steps


@pytest.mark.parametrize("estimator", ["interpolation", "roofline"])
def test_decodes_beyond_their_window_take_as_long_as_at_its_end(estimator: str) -> None:
    model = priced(within("qwen3-8b", KeySpan("sliding", 512)), estimator=estimator)
    at_end = model.price([Batch.decode([512] * 8)])
    assert model.price([Batch.decode([50_000] * 8)]) == at_end
    assert model.price_run([Batch.decode([50_000] * 8)], 3)[1].tolist() == [at_end.compute_ps] * 3
    full = priced(load_model("qwen3-8b"), estimator=estimator)
    assert full.price([Batch.decode([512] * 8)]).compute_ps == at_end.compute_ps


def test_the_time_of_a_long_prompt_grows_linearly_within_a_window() -> None:
    """Attention alone: twice the tokens, twice the pairs; without a window four times."""
    windowed, full = priced(within("qwen3-8b", KeySpan("sliding", 1024))), priced(load_model("qwen3-8b"))
    (short, long), (short_full, long_full) = (
        [model.price([Batch.prefill([tokens])]).phase_ps[0] for tokens in (16_000, 32_000)]
        for model in (windowed, full)
    )
    assert long / short == pytest.approx(2.0, rel=0.1)
    assert long_full / short_full > 3.5
    assert short < 0.3 * short_full


def test_what_was_not_measured_is_flagged() -> None:
    """No product of mxfp4 weights is in the table. Prompts within windows are not either, but measured ones are met by
    the reference; decodes of layers that slide are vLLM's of models whose layers differ."""
    model = priced(load_model("gpt-oss-20b"), weights="mxfp4")
    decode, prefill = model.price([Batch.decode([5000] * 4)]), model.price([Batch.prefill([5000])])
    experts = {"moe_gate_up", "moe_down"}
    assert set(decode.estimated_operators) == set(prefill.estimated_operators) == experts
    windowed = within("qwen3-8b", KeySpan("sliding", 1024))
    assert priced(windowed).price([Batch.prefill([4000])]).estimated_operators == ()
    for kernel in ("fa3_captured", "fa3_sglang"):
        captured = IterationModel(windowed, Partition(), Precision(), H200, gqa_kernel=kernel)  # type: ignore[arg-type]
        assert captured.price([Batch.decode([5000] * 4)]).estimated_operators == ("sliding_decode_attention",)
    chunked = priced(within("qwen3-8b", KeySpan("chunked", 1024))).price([Batch.prefill([4000])])
    assert chunked.estimated_operators == ()


def test_mxfp4_is_for_models_that_are_published_in_it() -> None:
    with pytest.raises(InputError, match="weights: found mxfp4, expected bf16 or fp8"):
        priced(load_model("qwen3-30b-a3b"), weights="mxfp4")
