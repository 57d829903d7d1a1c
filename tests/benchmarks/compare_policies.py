"""Runs behind docs/policies.md: scheduling policies on one GPU, and prefill and decode together or apart on four.

Qwen3-8B in bf16 on H200s, whose kernels are measured. `tests.benchmarks.policies_page` writes the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.result import Result
from vidur_pd.simulation.api import simulate

KV_BLOCKS: Final = 4096
"""65,536 tokens, as many as a GPU of 40 GB has beside these weights: with all of an H200 Orca would not be short."""
LONGEST_TOKENS: Final = 4096
ENGINES: Final[dict[str, dict[str, Any]]] = {
    "vllm_v0": {"max_batched_tokens": 4096},
    "sarathi": {"max_batched_tokens": 512},
    "orca": {},
    "vllm_v1": {"max_batched_tokens": 2048},
    "splitwise": {"max_batched_tokens": 2048},
}
"""Budgets of Vidur's schedulers, of vLLM V1 on smaller GPUs, and of splitwise-sim; 128 requests at a time, as Vidur."""
RATES: Final = (4.0, 8.0, 12.0, 16.0)
ARRANGEMENTS: Final[dict[str, list[dict[str, Any]]]] = {
    "together": [{"name": "m", "role": "mixed", "instances": 4}],
    "1 prefill, 3 decode": [
        {"name": "p", "role": "prefill", "instances": 1},
        {"name": "d", "role": "decode", "instances": 3},
    ],
    "2 prefill, 2 decode": [
        {"name": "p", "role": "prefill", "instances": 2},
        {"name": "d", "role": "decode", "instances": 2},
    ],
}
ARRANGED_RATES: Final = (8.0, 32.0, 48.0, 64.0, 80.0, 96.0)
STRICT: Final = (1.0, 0.0125)
LOOSE: Final = (2.0, 0.05)
"""Objectives for TTFT and TPOT [s]; the loose ones are the defaults of `slo`."""


@dataclass(frozen=True)
class Figures:
    """What a user and an operator see of one run."""

    ttft_p99_s: float
    tpot_mean_ms: float
    tpot_p99_ms: float
    longest_stall_ms: float
    """Longest gap between two tokens of a request."""
    requests_per_s: float
    strict: float
    loose: float
    """Shares of the requests that meet both objectives."""
    reserved_tokens: float
    """Mean of the KV blocks held on the first GPU, in tokens."""
    used_share: float
    """Part of them that holds a token: prompts from their admission on, outputs as they grow."""


def tree(pools: list[dict[str, Any]], rate: float, requests: int, **sections: Any) -> SimulationConfig:
    """Chat-like requests: half of the prompts below 1,020 tokens, half of the answers below 129."""
    lengths = {
        "kind": "lognormal",
        "prefill": {"median": 1020, "p90": 2734, "max": 3000},
        "decode": {"median": 129, "p90": 450, "max": 1000},
    }
    return SimulationConfig.model_validate(
        {
            "model": "qwen3-8b",
            "hardware": "h200",
            "workload": {
                "kind": "synthetic",
                "requests": requests,
                "arrivals": {"kind": "poisson", "qps": rate},
                "lengths": lengths,
            },
            "cluster": {"topology": {"kind": "rail_optimized", "gpus_per_node": 8}, "pools": pools},
            "output": {"links": False},
            **sections,
        }
    )


def under_policy(policy: str, rate: float, requests: int = 400) -> Figures:
    """One GPU."""
    engine = {"policy": policy, "max_seqs": 128, "max_model_len": LONGEST_TOKENS, "num_kv_blocks": KV_BLOCKS}
    pools = [{"name": "m", "role": "mixed"}]
    return figures(simulate(tree(pools, rate, requests, engine=engine | ENGINES[policy])))


def under_arrangement(name: str, rate: float, requests: int = 1200) -> Figures:
    """Four GPUs of one server, vLLM V1 on each; Splitwise's mixed pool where the name says so."""
    sections: dict[str, Any] = {"engine": {"max_batched_tokens": 2048}}
    if name.endswith(", mixed pool"):
        sections["routing"] = {"policy": "splitwise"}
    return figures(simulate(tree(ARRANGEMENTS[name.removesuffix(", mixed pool")], rate, requests, **sections)))


def figures(result: Result) -> Figures:
    summary = result.summary
    gaps_s, _ = result.iterations.gaps()
    held_share, _ = result.iterations.kv_share([0], result.end_ps / 1e12)
    reserved_tokens = _known(held_share) * KV_BLOCKS * result.config.engine.block_tokens
    return Figures(
        ttft_p99_s=_known(summary.ttft_s.p99),
        tpot_mean_ms=1e3 * _known(summary.tpot_s.mean),
        tpot_p99_ms=1e3 * _known(summary.tpot_s.p99),
        longest_stall_ms=1e3 * float(gaps_s.max()),
        requests_per_s=_known(summary.throughput.requests_per_s),
        strict=_attainment(result, *STRICT),
        loose=_attainment(result, *LOOSE),
        reserved_tokens=reserved_tokens,
        used_share=_tokens_in_use(result) / reserved_tokens,
    )


def _attainment(result: Result, ttft_s: float, tpot_s: float) -> float:
    met = sum(
        each.first_token_ps - each.arrived_ps <= 1e12 * ttft_s
        and each.completed_ps - each.first_token_ps <= 1e12 * tpot_s * (each.output_tokens - 1)
        for each in result.requests
        if each.completed_ps is not None and each.first_token_ps is not None
    )
    return met / len(result.requests)


def _tokens_in_use(result: Result) -> float:
    """Mean over the run; of a request that is never preempted, whose tokens come evenly."""
    token_s = 0.0
    for each in result.requests:
        if each.completed_ps is not None and each.scheduled_ps is not None and each.prefill_completed_ps is not None:
            prefill_ps = each.prefill_completed_ps - each.scheduled_ps
            decode_ps = each.completed_ps - each.prefill_completed_ps
            token_s += prefill_ps / 1e12 * each.prompt_tokens / 2
            token_s += decode_ps / 1e12 * (each.prompt_tokens + each.output_tokens / 2)
    return token_s / (result.end_ps / 1e12)


def _known(value: float | None) -> float:
    assert value is not None, "requests were served"
    return value
