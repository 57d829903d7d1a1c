"""Options of the engine in whole runs: each moves the outcome the way it must, or is refused with its field."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool, requests, simulate
from vidur_pd.metrics.result import Result
from vidur_pd.simulation import api, pool_checks
from vidur_pd.simulation.plan import plan_simulation

PREFILL = pool("p", "prefill", tp=2, ep=2)
DECODE = pool("d", "decode", dp=4, ep=4)
ROWS = [(2_000 * index, 500 + 37 * index % 400, 30 + index % 7) for index in range(32)]
LONG_ROWS = [(20_000 * index, 7_000 + 37 * index % 400, 20) for index in range(10)]
"""Prompts whose kernels outlast their launching, which in short ones hides what experts cost."""
MOE = {"model": "qwen3-30b-a3b"}
ENGINE = {"max_seqs": 64, "max_batched_tokens": 8192}


def run(
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    nic: str = "400Gbps",
    *,
    rows: list[tuple[int, int, int]] = ROWS,
    **engine: Any,
) -> Result:
    """Qwen3-30B-A3B, EP 2 for prefill and EP 4 over two nodes for decode."""
    pools = [{**PREFILL, **(prefill or {})}, {**DECODE, **(decode or {})}]
    topology = {"kind": "rail_optimized", "gpus_per_node": 2, "nic": nic}
    sections = {"model": "qwen3-30b-a3b", "topology": topology, "kv_transfer": {"first_token": "prefill"}}
    return simulate(config(pools, engine={**ENGINE, **engine}, **sections), rows)


def mean_ms(result: Result, metric: str) -> float:
    return 1e3 * float(getattr(result.summary, f"{metric}_s").mean)


@pytest.fixture(scope="module")
def plain() -> Result:
    return run()


@pytest.fixture(scope="module")
def long() -> Result:
    return run(rows=LONG_ROWS)


def test_skewed_experts_slow_prefill_down_and_balanced_ones_speed_it_up(long: Result) -> None:
    """Prompts keep every expert busy, so the slowest rank's rows decide."""
    skewed, balanced = (run(rows=LONG_ROWS, expert_load=load) for load in ("power_law:1.2", "balanced"))
    assert mean_ms(balanced, "ttft") < mean_ms(long, "ttft") < mean_ms(skewed, "ttft")


def test_redundant_experts_take_back_part_of_the_skew(long: Result) -> None:
    skewed = run(rows=LONG_ROWS, expert_load="power_law:1.2")
    copies = run({"redundant_experts": 32}, rows=LONG_ROWS, expert_load="power_law:1.2")
    assert mean_ms(copies, "ttft") < mean_ms(skewed, "ttft")
    less = [result.summary.pools[0].kv_blocks_per_rank for result in (copies, long)]
    assert less[0] < less[1]


def test_a_recorded_load_is_read_beside_the_configuration(tmp_path: Path, long: Result) -> None:
    """All tokens on the eight experts of the first rank: half of the GPUs do all the work."""
    file = tmp_path / "loads.json"
    file.write_text(json.dumps([1.0] * 8 + [0.0] * 120))
    recorded = run(rows=LONG_ROWS, expert_load=f"recorded:{file}")
    assert mean_ms(recorded, "ttft") > mean_ms(long, "ttft")


def test_a_pool_has_options_of_its_own(plain: Result) -> None:
    """Decode alone is skewed: prompts take what they took."""
    result = run(decode={"engine": {"expert_load": "power_law:1.2"}})
    assert mean_ms(result, "ttft") == mean_ms(plain, "ttft")
    assert mean_ms(result, "tpot") != mean_ms(plain, "tpot")


def test_drafts_pay_off_as_they_are_accepted(plain: Result) -> None:
    """Two drafts: never accepted, a step costs more than a plain one; always accepted, three tokens come at once."""
    never, often, always = (run(speculative={"drafts": 2, "acceptance": a}) for a in (0.0, 0.7, 1.0))
    assert mean_ms(never, "tpot") > mean_ms(plain, "tpot")
    assert mean_ms(always, "tpot") < mean_ms(often, "tpot") < mean_ms(never, "tpot")
    assert mean_ms(always, "tpot") < 0.6 * mean_ms(plain, "tpot")
    assert mean_ms(plain, "ttft") < mean_ms(always, "ttft") < 1.05 * mean_ms(plain, "ttft")  # 48 layers and the drafter
    assert always.summary.itl_s.p50 == 0.0  # two of three tokens come with the one before
    assert never.summary.itl_s.p50 > 0.0


@pytest.mark.parametrize("coupling", ["isolated", "fluid", "exact"])
def test_every_request_gets_its_tokens_with_drafts(coupling: str) -> None:
    """Decode and mixed pools, prompts beside decodes, few blocks, so that requests are preempted."""
    engine = {"speculative": {"drafts": 3, "acceptance": 0.8}, "num_kv_blocks": 60, "max_seqs": 16}
    pools = [pool("m", "mixed", tp=2), pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
    rows = [(500 * index, 40 + 61 * index % 200, 1 + 37 * index % 160) for index in range(40)]
    result = simulate(config(pools, engine=engine, network={"coupling": coupling}), rows)
    finished = result.requests
    assert all(request.generated_tokens == request.output_tokens for request in finished)
    assert sum(request.preemptions for request in finished) > 0
    assert int(result.iterations.gaps()[1].sum()) == sum(request.output_tokens - 1 for request in finished)


def test_a_layer_that_drafts_takes_memory_where_prompts_are_computed_as_well(plain: Result) -> None:
    ngrams = {"method": "ngram", "acceptance": 0.5}
    blocks, drafted, looked_up = (
        [pool.kv_blocks_per_rank for pool in result.summary.pools]
        for result in (plain, run(speculative={}), run(speculative=ngrams))
    )
    assert all(less < usual for less, usual in zip(drafted, blocks, strict=True))
    assert looked_up == blocks


def test_runs_with_drafts_repeat_with_the_seed() -> None:
    first, again = (run(speculative={"acceptance": 0.5}) for _ in range(2))
    assert [j.completed_ps for j in first.requests] == [j.completed_ps for j in again.requests]


def test_two_batches_hide_slow_dispatch_and_cost_time_without_any() -> None:
    """At 25 Gbit/s half of an iteration is communication; at 400 the second half batch only adds kernels."""
    always = {"two_batch": True, "decode_tokens_min": 2, "prefill_tokens_min": 2}
    whole, halved = {"engine": {"expert_dispatch": "deepep"}}, {"engine": {"overlap": always}}
    slow, slow_halved = run(decode=whole, nic="25Gbps"), run(decode=halved, nic="25Gbps")
    fast, fast_halved = run(decode=whole), run(decode=halved)
    assert mean_ms(slow_halved, "tpot") < mean_ms(slow, "tpot")
    assert mean_ms(fast_halved, "tpot") > mean_ms(fast, "tpot")
    taken = {"engine": {"overlap": always | {"communication_sm_share": 0.15}}}
    assert mean_ms(run(decode=taken), "tpot") > mean_ms(fast_halved, "tpot")


def test_the_shared_expert_on_a_stream_of_its_own_saves_time() -> None:
    def tpot_ms(overlap: dict[str, Any]) -> float:
        pools = [pool("m", "mixed", dp=8, ep=8)]
        sections = {"model": "qwen3-next-80b-a3b", "engine": {"max_seqs": 64, "overlap": overlap}}
        rows = [(10 * index, 50, 12) for index in range(64)]
        return mean_ms(simulate(config(pools, topology={"kind": "single_switch"}, **sections), rows), "tpot")

    alone, together = tpot_ms({"shared_expert": False}), tpot_ms({"shared_expert": True})
    assert together < alone
    assert tpot_ms({"shared_expert": True, "shared_expert_sm_share": 0.3}) > together
    assert tpot_ms({}) == together  # vLLM's default, of up to 256 tokens
    assert tpot_ms({"shared_expert": 4}) == alone  # fewer than a rank's 8 requests, in a graph of 8 tokens


def estimated_compute(result: Result) -> float:
    """Share of compute that rests on flagged estimates."""
    return result.iterations.estimated_ps / result.iterations.compute_ps


def collectives_of(result: Result, pool_name: str) -> float:
    """Share of the iterations' time that is collectives of a pool."""
    log = result.iterations
    of_pool = [run.communication_ps.sum() for run in log.runs if log.instances[run.instance][1] == pool_name]
    return float(sum(of_pool) / (log.compute_ps + log.communication_ps))


def test_estimators_differ_and_the_roofline_is_flagged(long: Result) -> None:
    """Host time rests on no kernel estimate and is part of the whole; collectives between nodes are a formula's."""
    roofline, forest = (run(rows=LONG_ROWS, estimator=name) for name in ("roofline", "forest"))
    assert estimated_compute(long) < 0.1
    assert estimated_compute(roofline) > 0.9
    assert long.summary.estimates == pytest.approx(collectives_of(long, "d"), rel=1e-3)
    assert mean_ms(forest, "tpot") == pytest.approx(mean_ms(long, "tpot"), rel=0.2)
    assert mean_ms(forest, "tpot") != mean_ms(long, "tpot")


@pytest.mark.parametrize(
    ("pools", "sections", "message"),
    [
        ([{"ep": 4, "tp": 4}], {}, r"cluster\.pools\.m\.ep: found 4, expected 1, as qwen3-8b has no routed experts"),
        ([{}], {"engine": {"expert_load": "zipf:1"}}, r"engine\.expert_load: found zipf:1, expected uniform, as qwen3"),
        (
            [{}],
            {**MOE, "engine": {"expert_load": "zipf"}},
            r"engine\.expert_load: found 'zipf', expected a number after",
        ),
        (
            [{}],
            {**MOE, "engine": {"expert_load": "zip"}},
            r"engine\.expert_load: found 'zip', expected balanced, balanced:B, uniform, zi",
        ),
        (
            [{}],
            {"engine": {"overlap": {"shared_expert": True}}},
            r"engine\.overlap\.shared_expert: found true, expected false",
        ),
        ([{}], {"engine": {"overlap": {"two_batch": True}}}, r"engine\.overlap\.two_batch: found true for pool m"),
        ([{}], {"engine": {"num_kv_blocks": 200_000}}, r"engine\.num_kv_blocks: found 200000, expected at most the 50"),
        ([{}], {"hardware": "h2000"}, r"^hardware: found 'h2000', expected one of a100, b.*folder with gpu\.yaml$"),
        ([{"hardware": "v1"}], {}, r"cluster\.pools\.m\.hardware: found 'v1', expected one of a100"),
        (
            [{"dp": 2, "redundant_experts": 3}],
            {},
            r"cluster\.pools\.m\.redundant_experts: found 3, expected 0 where ep",
        ),
        (
            [{"dp": 2, "ep": 2}],
            {**MOE, "engine": {"expert_load": "balanced:0.8", "eplb": {}}},
            r"engine\.eplb: found one with expert_load balanced:0\.8, expected another load",
        ),
        (
            [{"dp": 2, "ep": 2}],
            {**MOE, "engine": {"overlap": {"two_batch": True}}, "network": {"coupling": "exact"}},
            r"network\.coupling: found 'exact' with two-batch overlap, expected 'isolated' or 'fluid'",
        ),
        (
            [{"tp": 2, "ep": 2}],
            {**MOE, "engine": {"expert_load": "recorded:nowhere.csv"}},
            r"engine\.expert_load: nowhere\.csv: found no such file",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(
    pools: list[dict[str, Any]], sections: dict[str, Any], message: str
) -> None:
    wrong = config([pool("m", "mixed", **fields) for fields in pools], **sections)
    with pytest.raises(ValueError, match=message) as raised:
        plan_simulation(wrong)
    assert "\n" not in str(raised.value)


def test_a_recording_of_another_model_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text("1,2,3\n")
    engine = {"expert_load": f"recorded:{tmp_path / 'loads.csv'}"}
    wrong = config([pool("m", "mixed", tp=2, ep=2)], model="qwen3-30b-a3b", engine=engine)
    with pytest.raises(ValueError, match=r"loads\.csv: popularity: found 3 experts, expected 128"):
        plan_simulation(wrong)


def test_data_parallel_ranks_without_shared_experts_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """Ranks of dense models are engines of their own in vLLM; as one instance they wait for each other here."""
    with caplog.at_level(logging.WARNING):
        plan_simulation(config([pool("m", "mixed", dp=2)]))
    assert "cluster.pools.m.dp: found 2 without shared experts" in caplog.text
    caplog.clear()
    plan_simulation(config([pool("m", "mixed", dp=2, ep=2)], model="qwen3-30b-a3b"))
    assert caplog.text == ""


@pytest.mark.parametrize(("is_async", "iterations"), [(False, 3), (True, 4)])
def test_a_draft_never_outlives_its_request(is_async: bool, iterations: int) -> None:
    """Ten outputs, four drafts all accepted: the first token from prefill, then 5 and the last 4; nothing beyond.
    Decided ahead, one more step begins before these are known."""
    engine = {"speculative": {"drafts": 4, "acceptance": 1.0}, "async_scheduling": is_async}
    result = api.simulate(config([pool("m", "mixed")], engine=engine), requests([(0, 100, 10)]))
    assert result.iterations.iterations == iterations
    assert result.requests[0].generated_tokens == 10
    assert result.iterations.gaps()[1].sum() == 9


def test_a_full_batch_with_drafts_replays_graphs() -> None:
    """Graphs are captured for all tokens of all requests: two requests of three tokens do not run eagerly beside
    ``max_seqs: 2``, which would take them three times as long as one."""
    engine = {"speculative": {"drafts": 2, "acceptance": 0.0}, "max_seqs": 2}
    one, two = (simulate(config([pool("m", "mixed")], engine=engine), [(0, 100, 20)] * requests) for requests in (1, 2))
    assert mean_ms(two, "tpot") < 1.2 * mean_ms(one, "tpot")


def test_experts_that_are_cut_through_fp8_blocks_are_simulated_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """MiniMax-M2 is published in blocks: 1,536 columns over 8 GPUs leave 192; EP and TP 4 leave whole ones. fp8 that an
    engine makes of Qwen3-30B-A3B, whose 768 columns over 4 GPUs leave 192, has none."""
    caplog.set_level(logging.WARNING, "vidur_pd.simulation.pool_checks")
    of_bf16 = {"model": "qwen3-30b-a3b", "engine": {"weights": "fp8"}}
    of_fp8 = {"model": "minimax-m2"}
    for sections, degrees in ((of_bf16, {"tp": 4}), (of_fp8, {"tp": 8, "ep": 8}), (of_fp8, {"tp": 4})):
        plan_simulation(config([pool("m", "mixed", **degrees)], **sections))
    assert _said_by(caplog, "pool_checks") == []
    simulate(config([pool("m", "mixed", tp=8)], **of_fp8), [(0, 100, 2)])
    assert _said_by(caplog, "pool_checks") == [
        "cluster.pools.m.tp: found 8, which leaves a GPU 192 columns of an expert: vLLM and SGLang refuse an fp8 "
        "checkpoint whose blocks of 128 are cut; expected at most 4, or ep 8"
    ]


def test_a_server_that_compiles_for_new_lengths_is_simulated_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM's experts in mxfp4 on Hopper; other GPUs have other kernels, a pool that decodes no such batches, and graphs
    replay those of up to 1,024 tokens."""
    caplog.set_level(logging.WARNING, "vidur_pd.simulation.pool_checks")
    pool_checks._warn_of_compilation.cache_clear()
    model = {"model": "gpt-oss-20b"}
    for framework, hardware in (("sglang", "h200"), ("vllm", "a100")):
        plan_simulation(config([pool("m", "mixed", hardware=hardware)], engine={"framework": framework}, **model))
    plan_simulation(config([pool("m", "mixed")], engine={"framework": "vllm"}, model="qwen3-8b"))
    few = {"framework": "vllm", "max_batched_tokens": 1024}
    plan_simulation(config([pool("m", "mixed")], engine=few, **model))
    own = {"engine": {"max_batched_tokens": 1024}}
    pair = [pool("p", "prefill", **own), pool("d", "decode")]
    plan_simulation(config(pair, engine={"framework": "vllm"}, **model))
    marlin = {"framework": "vllm", "experts_kernel": "marlin"}
    plan_simulation(config([pool("m", "mixed")], engine=marlin, **model))
    assert _said_by(caplog, "pool_checks") == []
    plan_simulation(config([pool("m", "mixed"), pool("n", "mixed")], engine={"framework": "vllm"}, **model))
    assert _said_by(caplog, "pool_checks") == [
        "engine.framework: found vllm, which compiles mxfp4 experts for each new number of tokens above 1024 in a "
        "batch with prompts, 0.7 to 2.7 s a time: not simulated; warm lengths up, or take "
        "VLLM_MXFP4_USE_MARLIN=1 (engine.experts_kernel: marlin)"
    ]


def test_fewer_tokens_than_requests_are_simulated_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM refuses them; a default of max_seqs follows the tokens."""
    caplog.set_level(logging.WARNING, "vidur_pd.simulation.pool_checks")
    for engine in ({"max_batched_tokens": 8, "max_seqs": 8}, {"max_batched_tokens": 8}):
        plan_simulation(config([pool("m", "mixed")], engine={"framework": "vllm", **engine}))
    assert _said_by(caplog, "pool_checks") == []
    few = {"framework": "vllm", "max_batched_tokens": 8, "max_seqs": 16}
    plan_simulation(config([pool("m", "mixed")], engine=few))
    assert _said_by(caplog, "pool_checks") == [
        "engine.max_batched_tokens: found 8, below the 16 of engine.max_seqs: simulated, but vLLM does not start so"
    ]


def test_a_static_share_that_leaves_too_little_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """SGLang starts so; activations of a chunk of 16,384 tokens do not fit into 1 % of an H200."""
    pool_checks._warn_of_memory.cache_clear()
    caplog.set_level(logging.WARNING, "vidur_pd.simulation.pool_checks")
    sglang = {"framework": "sglang", "max_batched_tokens": 16384, "gpu_memory_utilization": 0.99}
    for model in ("qwen3-8b", "qwen3-8b"):
        plan_simulation(config([pool("m", "mixed")], model=model, engine=sglang))
    (said,) = _said_by(caplog, "pool_checks")
    assert said.startswith("engine.gpu_memory_utilization: found 0.99, which leaves 2.8 GB to activations, graphs and ")
    assert said.endswith(": SGLang may lack memory")


def _said_by(caplog: pytest.LogCaptureFixture, module: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith(f".{module}")]


def test_weights_are_as_published_unless_stated() -> None:
    """The checkpoint of DeepSeek-V3 is fp8, of Qwen3-8B bf16, of gpt-oss mxfp4; an A100 has no fp8."""
    for model, hardware, tp, published in (
        ("deepseek-v3", "h200", 8, "fp8"),
        ("qwen3-8b", "h200", 1, "bf16"),
        ("gpt-oss-20b", "h200", 1, "mxfp4"),
        ("minimax-m2", "a100", 8, "bf16"),
    ):
        sections = {"model": model, "hardware": hardware}
        pools = [pool("m", "mixed", tp=tp, ep=tp)]
        found = simulate(config(pools, **sections), [(0, 900, 4)]).table.e2e_ps
        stated = simulate(config(pools, **sections, engine={"weights": published}), [(0, 900, 4)]).table.e2e_ps
        assert found.tolist() == stated.tolist()


@pytest.mark.parametrize(
    ("sections", "own", "message"),
    [
        ({"hardware": "a100", "engine": {"weights": "fp8"}}, {}, "engine.weights: found fp8"),
        ({"hardware": "a100"}, {"engine": {"weights": "fp8"}}, "cluster.pools.m.engine.weights: found fp8"),
        ({"engine": {"weights": "fp8"}}, {"hardware": "a100"}, "engine.weights: found fp8"),
    ],
)
def test_fp8_weights_on_a_gpu_without_are_refused_by_the_field_that_asks_for_them(
    sections: dict[str, Any], own: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        simulate(config([pool("m", "mixed", **own)], **sections), [(0, 100, 2)])
    assert str(refused.value) == f"{message}, expected bf16 (a100 has no fp8)"


def test_an_fp8_cache_that_a_gpu_cannot_compute_with_is_refused() -> None:
    with pytest.raises(InputError, match=r"^weights or KV: found arithmetic in fp8, expected bf16"):
        simulate(config([pool("m", "mixed")], hardware="a100", engine={"kv": "fp8"}), [(0, 100, 2)])


def test_the_resolved_configuration_says_which_weights_ran() -> None:
    """In common, or by pool where GPUs differ."""
    pools = [pool("p", "prefill", tp=8, ep=8), pool("d", "decode", tp=8, ep=8)]
    resolved = plan_simulation(config(pools, model="minimax-m2"), requests([(0, 100, 2)])).config
    assert resolved.engine.weights == "fp8"
    pools[0] = pool("p", "prefill", tp=8, ep=8, hardware="a100")
    resolved = plan_simulation(config(pools, model="minimax-m2"), requests([(0, 100, 2)])).config
    assert [each.engine.weights for each in resolved.cluster.pools] == ["bf16", "fp8"]


def test_gpt_oss_is_captured_up_to_1024_tokens() -> None:
    """Prompts within it replay graphs; those beyond are launched one by one."""
    one = [pool("m", "mixed")]
    shares = []
    for tokens in (900, 1100):
        result = simulate(config(one, model="gpt-oss-20b"), [(0, tokens, 1)])
        share = result.summary.pools[0].prompts_host_share
        assert share is not None
        shares.append(share)
    assert shares[0] < 0.3 < 0.5 < shares[1]
