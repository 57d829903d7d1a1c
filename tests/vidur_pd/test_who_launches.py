"""Engines that the host holds up: who decides and hands out tokens while an iteration is launched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from aicb.iteration.host import load_host
from aicb.iteration.sglang_host import host_of
from tests.integration.small_runs import config, pool
from vidur_pd.metrics.result import Result
from vidur_pd.simulation.api import prepare
from vidur_pd.simulation.plan import plan_simulation

LAUNCH_US = 200.0
"""A launch of a slow host: an eager iteration takes 0.2 s, whatever its prompts."""
HOST = {"source": "by hand", "eager_launch_us": LAUNCH_US, "hand_over_us": 0.0, "agree_us": 0.0, "logits_us": 0.0}
ARRIVALS_S = (0.0, 0.05, 0.1)


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    """Serves prompts of 1,024 tokens, two outputs each, that come while the first is being launched unless stated."""

    def run(
        outputs: int = 2,
        engine: dict[str, Any] | None = None,
        arrivals_s: tuple[float, ...] = ARRIVALS_S,
        **pool: int,
    ) -> Result:
        trace, host, file = (tmp_path / name for name in ("trace.jsonl", "host.yaml", "config.yaml"))
        rows = [
            {
                "timestamp": int(at * 1e3),
                "input_length": 1024,
                "output_length": outputs,
                "hash_ids": [2 * row, 2 * row + 1],
            }
            for row, at in enumerate(arrivals_s)
        ]
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        host.write_text(yaml.safe_dump(HOST), encoding="utf-8")
        file.write_text(
            yaml.safe_dump(
                {
                    "model": "qwen3-30b-a3b",
                    "hardware": "h200",
                    "workload": {"kind": "trace", "path": str(trace)},
                    "cluster": {
                        "topology": {"kind": "single_switch", "nodes": 1, "gpus_per_node": 2},
                        "pools": [{"name": "server", "role": "mixed", **pool}],
                    },
                    "engine": {"framework": "vllm", "host": str(host), "prefix_caching": False, **(engine or {})},
                }
            ),
            encoding="utf-8",
        )
        return prepare(file).run()

    return run


def prompts_of(result: Result) -> list[tuple[float, float, int]]:
    """(begin, end, requests) of iterations with prompts, in seconds."""
    columns = {name: list(values) for name, values in result.iterations.columns().items()}
    rows = zip(*(columns[name] for name in ("start_s", "end_s", "requests", "prefill_tokens")), strict=True)
    return [(begin, end, requests) for begin, end, requests, tokens in rows if tokens]


def first_tokens_s(result: Result) -> list[float]:
    return [float(ttft) * 1e-12 + at for ttft, at in zip(result.table.ttft_ps, ARRIVALS_S, strict=True)]


def test_one_thread_takes_up_what_has_come_once_it_has_launched_and_hands_out_after_the_next_launch(serve: Any) -> None:
    """Both prompts that come during the first iteration are in the next; the first token waits for its launch."""
    result = serve()
    (_, end, requests), (_, last_end, of_both) = prompts_of(result)
    assert (requests, of_both) == (1, 3)  # the decode of the first, too
    first, *others = first_tokens_s(result)
    assert last_end - end > 0.15
    assert first == pytest.approx(last_end, abs=0.01)
    assert others == pytest.approx([last_end, last_end], abs=0.01)


def test_workers_of_their_own_have_the_next_iteration_already_and_tokens_do_not_wait(serve: Any) -> None:
    """With TP 2 what follows the first iteration was decided when it began: prompts that come meanwhile are in the one
    after. First tokens come with the end of their iteration."""
    result = serve(tp=2)
    (_, end, requests), (begin, last_end, of_both) = prompts_of(result)
    assert (requests, of_both) == (1, 2)
    assert end < begin < end + 0.02  # a decode of the first lies between
    first, *others = first_tokens_s(result)
    assert first == pytest.approx(end, abs=0.004)
    assert others == pytest.approx([last_end, last_end], abs=0.004)


@pytest.mark.parametrize("pool", [{}, {"tp": 2}])
def test_what_the_host_adds_to_the_first_decode_after_a_prompt_is_not_that_of_the_next(
    serve: Any, pool: dict[str, int]
) -> None:
    """Decodes that follow one another in one run: parts of each add up to its compute time, none below zero."""
    columns = serve(outputs=20, **pool).iterations.columns()
    parts = [columns[f"{part}_s"] for part in ("attention", "dense", "experts", "head", "norm_and_small", "host")]
    assert min(part.min() for part in parts) >= 0.0
    assert sum(parts) == pytest.approx(columns["compute_s"], abs=1e-9)
    host = columns["host_s"][columns["prefill_tokens"] == 0]
    assert host.max() > 2 * host.min()


SGLANG = {
    "framework": "sglang",
    "host_engine": "vllm",
    "prompt_graph_sizes": [],
    "async_scheduling": True,
    "expert_dispatch": {"prefill": "deepep_normal", "decode": "deepep_low_latency"},
}
NEVER_HALVED = {"overlap": {"two_batch": True, "decode_tokens_min": 10**6, "prefill_tokens_min": 10**6}}


@pytest.mark.parametrize("outputs", [2, 20])
def test_who_prices_iterations_has_no_say_in_when_tokens_are_handed_out(serve: Any, outputs: int) -> None:
    """Batches that are never halved are priced in Python, and by the core without two-batch overlap."""
    by_core = serve(outputs, SGLANG, dp=2, ep=2)
    in_python = serve(outputs, {**SGLANG, **NEVER_HALVED}, dp=2, ep=2)
    assert by_core.table.last_token_ps.tolist() == in_python.table.last_token_ps.tolist()
    assert by_core.table.ttft_ps.tolist() == in_python.table.ttft_ps.tolist()
    assert by_core.table.ttft_ps[0] > 1e12 * prompts_of(by_core)[0][1]


def test_one_thread_decides_after_it_has_launched_decodes_kernel_by_kernel(serve: Any) -> None:
    """What comes while a decode outside graphs is being launched is in the next iteration, and the tokens of each wait
    for the launch of the next, as those of prompts do. r1 comes during the second decode of r0."""
    result = serve(20, {"cuda_graphs": False}, arrivals_s=(0.0, 0.4))
    ends = list(map(float, result.iterations.columns()["end_s"]))
    begin, end, requests = prompts_of(result)[1]
    assert ends[1] < 0.4 < ends[2]
    assert (begin, requests) == (ends[2], 2)
    assert end - begin > 0.15
    first, second = (float(ttft) * 1e-12 for ttft in result.table.ttft_ps)
    assert first == pytest.approx(ends[1], abs=0.01)
    assert 0.4 + second == pytest.approx(ends[4], abs=0.01)


@pytest.mark.parametrize(("framework", "told_us"), [("vllm", None), ("sglang", 100.0), ("trtllm", 0.0)])
def test_only_engines_with_a_scheduler_apart_hand_over_to_workers(framework: str, told_us: float | None) -> None:
    """vLLM with TP 2, in 4.4 launches; SGLang's ranks, which schedule for themselves, broadcast requests."""
    planned = plan_simulation(config([pool("m", "mixed", tp=2)], engine={"framework": framework})).pools["m"]
    host = host_of("sglang" if framework == "sglang" else "vllm", load_host(planned.engine.host))
    assert planned.iteration_model.host_of_workers == host.of_workers(2, 1, told_us)
    handed_over_us = planned.iteration_model.host_of_workers.hand_over_us
    assert handed_over_us == (pytest.approx(4.4 * host.eager_launch_us) if framework == "vllm" else 0.0)


@pytest.mark.parametrize(
    ("engine", "pool"),
    [
        ({"estimator": "roofline"}, {}),
        ({**SGLANG, "expert_load": "zipf:1", "expert_drift": {"correlation_s": 1.0}}, {"dp": 2, "ep": 2}),
    ],
)
def test_one_thread_hands_out_after_the_next_launch_whatever_python_prices(
    serve: Any, engine: dict[str, Any], pool: dict[str, Any]
) -> None:
    """The roofline, and experts whose load drifts."""
    result = serve(20, engine, **pool)
    (_, end, _), (_, last_end, _), *_ = prompts_of(result)
    assert first_tokens_s(result)[0] == pytest.approx(last_end, abs=0.02)
    assert last_end - end > 0.1
