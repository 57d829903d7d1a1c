#!/usr/bin/env python3
"""Published throughputs of DeepSeek-V3 against simulations of ``examples/published``; nothing is fitted to them.

    python -m tests.validation.published [--only NAME]… [--json]

The files there say what was published, where, and which figure of the simulation answers to it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vidur_pd import Result, simulate

FOLDER = Path(__file__).parents[2] / "examples" / "published"


@dataclass(frozen=True, slots=True)
class Row:
    """A published figure and its answer."""

    name: str
    file: str
    """In ``examples/published``."""
    unit: str
    published: float
    simulated: Callable[[Result], float]
    settings: Sequence[str] = ()
    """What differs from the file."""


def _prompt_tokens_per_s(result: Result) -> float:
    rate = result.summary.throughput.input_tokens_per_s
    assert rate is not None, "prompts were computed"
    return rate


def _per_gpu(result: Result) -> float:
    (pool,) = result.config.cluster.pools
    return _prompt_tokens_per_s(result) / (pool.dp * pool.tp)


def _per_node(result: Result) -> float:
    return _prompt_tokens_per_s(result) / 4


def _decode_tokens_per_gpu(result: Result) -> float:
    """Output tokens/s of a GPU whose places are all taken: its requests over the time between their tokens."""
    tpot_s = result.summary.tpot_s.p50
    assert tpot_s is not None, "requests have more than one token"
    return result.config.engine.max_seqs / tpot_s


def _served_tokens_per_gpu(result: Result) -> float:
    """Output tokens/s under load that reach clients, over the GPUs that decode."""
    (pool,) = (pool for pool in result.config.cluster.pools if pool.role == "decode")
    served = result.summary.under_load
    assert served is not None, "requests completed under load"
    assert served.output_tokens_per_s is not None, "and had answers"
    return served.output_tokens_per_s / (pool.dp * pool.tp)


def _decode_tokens_per_node(result: Result) -> float:
    return 8 * _decode_tokens_per_gpu(result)


def _prompts(tokens: int, requests: int) -> Sequence[str]:
    """Ten passes of 16,384 tokens on each of 32 GPUs."""
    return [f"workload.requests={requests}", f"workload.lengths={{kind: fixed, prefill: {tokens}, decode: 1}}"]


def _prefill_on(gpus: int) -> Sequence[str]:
    """Twelve passes on so many GPUs."""
    return [f"workload.requests={48 * gpus}", f"cluster.pools.prefill.dp={gpus}", f"cluster.pools.prefill.ep={gpus}"]


def _decode_on(gpus: int) -> Sequence[str]:
    """256 requests at a time on each of so many GPUs, one API server for eight."""
    pool = "cluster.pools.decode"
    of_pool = [f"{pool}.dp={gpus}", f"{pool}.ep={gpus}", f"{pool}.redundant_experts=32"]
    return [
        *of_pool,
        "cluster.pools.prefill.instances=20",
        f"frontend.servers={gpus // 8}",
        f"workload.arrivals.clients={310 * gpus}",
        f"workload.requests={930 * gpus}",
    ]


PER_H200, PER_H200_OUT = "prompt tokens/s per H200", "output tokens/s per H200"
PER_H800, PER_NODE = "prompt tokens/s per H800", "prompt tokens/s per H100 node"
ROWS: Sequence[Row] = (
    Row("deepseek-prefill", "deepseek-prefill-ep32", PER_H800, 7839.0, _per_gpu),
    Row("deepseek-decode", "deepseek-decode-ep128", "output tokens/s per H800", 2324.0, _decode_tokens_per_gpu),
    Row("sglang-prefill-balanced", "sglang-prefill-ep32", PER_NODE, 59337.0, _per_node, ["engine.expert_load=uniform"]),
    Row("sglang-prefill-4k", "sglang-prefill-ep32", PER_NODE, 50302.0, _per_node),
    Row("sglang-prefill-2k", "sglang-prefill-ep32", PER_NODE, 54543.0, _per_node, _prompts(2048, 2560)),
    Row("sglang-prefill-1k", "sglang-prefill-ep32", PER_NODE, 57674.0, _per_node, _prompts(1024, 5120)),
    Row("sglang-decode", "sglang-decode-ep72", "output tokens/s per H100 node", 22282.0, _decode_tokens_per_node),
    Row("vllm-prefill-8", "vllm-prefill-ep16", PER_H200, 6510.0, _per_gpu, _prefill_on(8)),
    Row("vllm-prefill-16", "vllm-prefill-ep16", PER_H200, 7010.0, _per_gpu),
    Row("vllm-prefill-32", "vllm-prefill-ep16", PER_H200, 5100.0, _per_gpu, _prefill_on(32)),
    Row("vllm-decode-32", "vllm-decode-ep32", PER_H200_OUT, 2180.0, _served_tokens_per_gpu),
    Row("vllm-decode-72", "vllm-decode-ep32", PER_H200_OUT, 2070.0, _served_tokens_per_gpu, _decode_on(72)),
    Row("vllm-decode-96", "vllm-decode-ep32", PER_H200_OUT, 1970.0, _served_tokens_per_gpu, _decode_on(96)),
    Row("vllm-decode-short", "vllm-decode-ep32-short", PER_H200_OUT, 2387.0, _served_tokens_per_gpu),
)
"""deepseek-ai/profile-data as listed by alibaba/InferSim, the SGLang team's post of 2025-05-05, and vLLM's as the files
say."""


WITHOUT_EPLB = "engine.expert_load=zipf:0.64"
"""Experts that nothing balances, of which balancing makes up as much as SGLang gained by it: 1.49 times in prefills on
32 GPUs. vLLM's guide did not balance prefills."""
UNBALANCED_ROWS: Sequence[Row] = tuple(
    Row(f"{row.name}-unbalanced", row.file, row.unit, row.published, row.simulated, [*row.settings, WITHOUT_EPLB])
    for row in ROWS
    if row.name.startswith("vllm-prefill")
)


EVERY_ROW = (*ROWS, *UNBALANCED_ROWS)


def gain_of_balance() -> float:
    """Of SGLang's prefills on 32 GPUs: with experts as EPLB leaves them over those that nothing balances."""
    (balanced,) = (row for row in ROWS if row.name == "sglang-prefill-4k")
    settings = ["cluster.pools.prefill.redundant_experts=0", WITHOUT_EPLB]
    unbalanced = Row(balanced.name, balanced.file, balanced.unit, balanced.published, balanced.simulated, settings)
    return score(balanced) / score(unbalanced)


def score(row: Row) -> float:
    """The simulated figure of a row."""
    return row.simulated(simulate(FOLDER / f"{row.file}.yaml", settings=row.settings))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[row.name for row in EVERY_ROW])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for row in EVERY_ROW if not options.only or row.name in options.only]
    found = {row.name: score(row) for row in rows}
    if options.json:
        json.dump(found, sys.stdout, indent=2)
        return
    for row in rows:
        simulated = found[row.name]
        error = simulated / row.published - 1.0
        figures = f"published {row.published:9,.0f}  simulated {simulated:9,.0f}  {error:+6.1%}"
        print(f"{row.name:26} {row.unit:30} {figures}")


if __name__ == "__main__":
    main()
