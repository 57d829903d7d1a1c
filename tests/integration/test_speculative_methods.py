"""Drafts by each method in whole runs: what they gain, what they cost, what they take, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from aicb import Batch
from boundary.errors import InputError
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.config.file import parse_config
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import drafters
from vidur_pd.simulation.plan import plan_simulation

ALONE = [(4_000_000 * index, 1000, 301) for index in range(4)]
"""One request at a time: decodes wait for weights, not for arithmetic."""
BY = {
    "mtp": {"method": "mtp"},
    "eagle": {"method": "eagle"},
    "draft_model": {"method": "draft_model", "draft_model": "qwen3-0.6b"},
    "ngram": {"method": "ngram"},
}
PER_POSITION = [0.8, 0.5, 0.25]
EXPECTED = 1 + 0.8 + 0.4 + 0.1


def asked(method: str, **fields: Any) -> dict[str, Any]:
    return {"speculative": {**BY[method], "drafts": 3, "acceptance": PER_POSITION, **fields}}


def run(engine: dict[str, Any], rows: list[tuple[int, int, int]] | None = None) -> Result:
    return simulate(config([pool("m", "mixed")], engine={"max_seqs": 8, **engine}), ALONE if rows is None else rows)


def tpot_ms(result: Result) -> float:
    return 1e3 * float(result.summary.tpot_s.mean)


@pytest.fixture(scope="module")
def plain() -> Result:
    return run({})


@pytest.mark.parametrize("method", BY)
def test_a_token_takes_its_share_of_a_step(method: str, plain: Result) -> None:
    """One request, 2.3 tokens of 4 per step: TPOT is a step over 2.3, which four tokens to verify hardly lengthen, and
    passes of the drafter do. 4 requests of 300 tokens, 130 steps each: ±3 % of chance. Where a step is decided when the
    one before has ended, what the host prepares is part of it."""
    result = run(asked(method))
    pool_model = plan_simulation(config([pool("m", "mixed")], engine={"max_seqs": 8, **asked(method)})).pools["m"]
    assert pool_model.drafting is not None
    assert pool_model.drafting.expected_tokens == pytest.approx(EXPECTED)
    step = pool_model.iteration_model.speculative([Batch.decode([1150])], pool_model.drafting)
    prepared_ms = 0.0 if pool_model.plans_ahead else step.verification.prepare_ps / 1e9
    assert tpot_ms(result) == pytest.approx((step.compute_ps / 1e9 + prepared_ms) / EXPECTED, rel=0.06)
    if method == "ngram":
        assert (tpot_ms(plain) + prepared_ms) / tpot_ms(result) == pytest.approx(EXPECTED, rel=0.08)


def test_ngrams_gain_where_they_match(plain: Result) -> None:
    """A match in half of the steps: 1 + 0.5 · 1.3 tokens. Without any, steps are plain ones in graphs of four tokens,
    as captured sizes are multiples of those of a decode."""
    half = run(asked("ngram", match=0.5))
    never = plan_simulation(config([pool("m", "mixed")], engine={"max_seqs": 8, **asked("ngram", match=0.0)})).pools[
        "m"
    ]
    step = never.iteration_model.price([Batch.decode([1150])])
    prepared_ms = step.prepare_ps / 1e9  # decided when the step before has ended
    assert tpot_ms(run(asked("ngram", match=0.0))) == pytest.approx(step.compute_ps / 1e9 + prepared_ms, rel=2e-3)
    assert (tpot_ms(plain) + prepared_ms) / tpot_ms(half) == pytest.approx(1.65, rel=0.08)


@pytest.mark.parametrize("method", ["mtp", "eagle", "draft_model"])
def test_first_tokens_wait_for_the_drafter(method: str, plain: Result) -> None:
    """Its passes over the prompt are part of the iteration that yields the first token; n-grams have none."""
    first = {by: run(asked(by)).summary.ttft_s.mean for by in (method, "ngram")}
    assert first["ngram"] == plain.summary.ttft_s.mean
    assert first[method] > 1.01 * plain.summary.ttft_s.mean


def test_gaps_of_tokens_that_come_together_are_in_the_histogram(plain: Result) -> None:
    """Of 2.3 gaps a step 1.3 are none, as the tokens of a step come together; so the median of the report's curve is
    0, as the summary's is."""
    summary = run(asked("eagle")).summary
    edges_s, counts = summary.itl_histogram.edges_s, summary.itl_histogram.counts
    assert edges_s[:2] == (0.0, 0.0) < edges_s[2:4]
    assert sum(counts) == 4 * 300
    assert counts[0] / sum(counts) == pytest.approx(1.3 / 2.3, abs=0.03)
    assert summary.itl_s.p50 == 0.0
    assert plain.summary.itl_histogram.edges_s[0] > 0.0


def test_kv_of_drafters_takes_blocks() -> None:
    """Qwen3-8B: 36 layers. One more, 28 more, none; and the weights of each."""
    blocks = {
        method: run(asked(method), [(0, 100, 5)]).summary.pools[0].kv_blocks_per_rank
        for method in ("eagle", "draft_model")
    }
    without = run({}, [(0, 100, 5)]).summary.pools[0].kv_blocks_per_rank
    assert run(asked("ngram"), [(0, 100, 5)]).summary.pools[0].kv_blocks_per_rank == without
    assert without * 36 / 37 * 0.98 < blocks["eagle"] < without * 36 / 37
    assert without * 36 / 64 * 0.97 < blocks["draft_model"] < without * 36 / 64


@pytest.mark.parametrize("method", BY)
def test_every_request_gets_its_tokens(method: str) -> None:
    """Few blocks, so that requests are preempted, prompts with decodes, and prefixes that are cached."""
    engine = {"num_kv_blocks": 60, "max_seqs": 16, "prefix_caching": True, **asked(method)}
    if method == "ngram":
        engine["speculative"]["match"] = 0.6
    rows = [(500 * index, 40 + 61 * index % 200, 1 + 37 * index % 160) for index in range(40)]
    result = run(engine, rows)
    assert all(request.generated_tokens == request.output_tokens for request in result.requests)
    assert sum(request.preemptions for request in result.requests) > 0


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        ({"method": "medusa"}, r"engine\.speculative\.method: found 'medusa', expected one of mtp, eagle, draft_model"),
        ({"method": "ngram"}, r"engine\.speculative\.acceptance: missing, expected a value"),
        ({"method": "mtp", "drafts": 4}, r"engine\.speculative\.acceptance: missing, expected a value"),
        ({"acceptance": [0.5, 0.5]}, r"speculative\.acceptance: found 2 values, expected one, or one for each of 1 dr"),
        ({"acceptance": [1.5]}, r"engine\.speculative\.acceptance: found 1\.5, expected at most 1"),
        ({"acceptance": -0.1}, r"engine\.speculative\.acceptance: found -0\.1, expected at least 0"),
        ({"acceptance": "often"}, r"speculative\.acceptance: found 'often', expected a number or a list of numbers"),
        ({"acceptance": float("nan")}, r"speculative\.acceptance: found nan, expected a number"),
        ({"match": 0.5}, r"speculative\.match: found 0\.5, expected it only with method ngram, not mtp"),
        (
            {"draft_model": "x"},
            r"speculative\.draft_model: found 'x', expected it only with method draft_model, not",
        ),
        ({"draft_tp": 2}, r"speculative\.draft_tp: found 2, expected it only with method draft_model, not mtp"),
        (
            {"method": "draft_model", "acceptance": 0.5},
            r"engine\.speculative\.draft_model: found none, expected the name or path of a model",
        ),
    ],
)
def test_wrong_fields_are_refused_in_one_line(speculative: dict[str, Any], message: str) -> None:
    tree = config([pool("m", "mixed")]).model_dump(mode="json", exclude_none=True)
    tree["engine"]["speculative"] = speculative
    with pytest.raises(InputError, match=message) as raised:
        parse_config(tree, Path(), "c.yaml")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"draft_model": "llama-3.1-8b"},
            r"engine\.speculative\.draft_model: found llama-3\.1-8b with a vocab",
        ),
        ({"draft_model": "qwen9"}, r"engine\.speculative\.draft_model: found 'qwen9', expected the path of a config"),
        ({"draft_tp": 4}, r"engine\.speculative\.draft_tp: found 4, expected 1 or the tp 2 of the target"),
    ],
)
def test_draft_models_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    engine = asked("draft_model", **fields)
    with pytest.raises(InputError, match=message):
        plan_simulation(config([pool("m", "mixed", tp=2)], engine=engine))


PREFILL_AND_DECODE = [pool("p", "prefill"), pool("d", "decode")]
MIXED_POOL = {"policy": "splitwise", "splitwise": {"scheduler": "mixed_pool"}}


@pytest.mark.parametrize(("model", "is_published"), [("qwen3-8b", False), ("glm-4.5-air", True)])
def test_a_layer_that_no_checkpoint_has_is_said_to_be_assumed(
    model: str, is_published: bool, caplog: pytest.LogCaptureFixture
) -> None:
    drafters._warn_of_layer.cache_clear()
    with caplog.at_level(logging.WARNING, logger="vidur_pd.simulation.drafters"):
        plan_simulation(config([pool("m", "mixed", tp=2)], model=model, engine=asked("mtp")))
    assumed = f"engine.speculative.method: found mtp, but {model} is published without such a layer"
    found = [record.getMessage().partition(";")[0] for record in caplog.records]
    assert found == ([] if is_published else [assumed])


def test_draft_models_do_not_hand_kv_over() -> None:
    """Of Splitwise's mixed pool, every instance may get KV, those of the prefill pool as well."""
    message = r"speculative\.method: found draft_model in pool {}, expected mtp, eagle or ngram where KV"
    with pytest.raises(InputError, match=message.format("d")):
        plan_simulation(config(PREFILL_AND_DECODE, engine=asked("draft_model")))
    own = [pool("p", "prefill", engine=asked("draft_model")), pool("d", "decode")]
    with pytest.raises(InputError, match=message.format("p")):
        plan_simulation(config(own, routing=MIXED_POOL))
    result = simulate(config(PREFILL_AND_DECODE, engine=asked("ngram")), [(0, 100, 20)])
    assert result.requests[0].generated_tokens == 20


def test_instances_that_get_kv_from_each_other_draft_by_the_same_layer() -> None:
    own = [pool("p", "prefill"), pool("d", "decode", engine=asked("eagle"))]
    with pytest.raises(
        InputError, match=r"pools\.p\.engine\.speculative: found none by a layer, expected one as in the"
    ):
        plan_simulation(config(own, routing=MIXED_POOL))


@pytest.mark.parametrize("mode", ["pull", "layerwise"])
@pytest.mark.parametrize("method", ["mtp", "eagle"])
def test_the_kv_of_a_layer_that_drafts_is_handed_over(method: str, mode: str) -> None:
    """Qwen3-8B has 36 layers, and one more; it runs where the prompt is computed, also if only the pool that decodes
    asks for it, and takes its KV blocks there."""
    pools = [pool("p", "prefill"), pool("d", "decode", engine=asked(method))]
    result, plain = (
        simulate(config(each, kv_transfer={"mode": mode}), [(0, 1000, 20)]) for each in (pools, PREFILL_AND_DECODE)
    )
    assert result.requests[0].kv_bytes * 36 == plain.requests[0].kv_bytes * 37
    assert result.summary.ttft_s.mean > 1.01 * plain.summary.ttft_s.mean
    assert result.requests[0].generated_tokens == 20
    blocks, without = (each.summary.pools[0].kv_blocks_per_rank for each in (result, plain))
    assert without * 36 / 37 * 0.98 < blocks < without * 36 / 37


def test_a_layer_runs_after_both_batches_of_an_overlap() -> None:
    """Its pass, dispatch and combine included, is added to the two halves of a prefill."""
    engine = {"overlap": {"two_batch": True, "prefill_tokens_min": 64}}
    took_ps = {}
    for by, drafts in (("layer", asked("mtp", drafts=1, acceptance=0.5)), ("none", {})):
        pools = [pool("p", "prefill", dp=2, ep=2, engine=engine), pool("d", "decode", dp=2, ep=2, engine=drafts)]
        result = simulate(config(pools, model="qwen3-30b-a3b"), [(0, 2000, 2), (0, 2000, 2)])
        took_ps[by] = result.requests[0].prefill_completed_ps - result.requests[0].scheduled_ps
    layers = 48
    assert took_ps["none"] * (1 + 0.5 / layers) < took_ps["layer"] < took_ps["none"] * (1 + 4 / layers)


def test_a_draft_model_may_be_on_one_gpu_of_two() -> None:
    """Then no collective joins its halves; all of its weights are on both."""
    one, two = (
        plan_simulation(config([pool("m", "mixed", tp=2)], engine=asked("draft_model", draft_tp=tp))).pools["m"]
        for tp in (1, 2)
    )
    for each, is_divided in ((one, False), (two, True)):
        assert each.drafting is not None
        passes = each.iteration_model.draft_passes([Batch.decode([500])], each.drafting)
        assert bool(passes[0].communications) == is_divided
    assert one.num_kv_blocks < two.num_kv_blocks


def test_paths_of_draft_models_start_at_the_configuration(tmp_path: Path) -> None:
    tree = config([pool("m", "mixed")]).model_dump(mode="json", exclude_none=True)
    tree["engine"]["speculative"] = {"method": "draft_model", "draft_model": "small/config.json", "acceptance": 0.5}
    found = parse_config(tree, tmp_path, "c.yaml").engine.speculative
    assert found is not None
    assert found.draft_model == str(tmp_path / "small/config.json")
