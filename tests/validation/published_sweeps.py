#!/usr/bin/env python3
"""Published times between tokens of servers on one or two nodes against simulations of ``examples/published``.

    python -m tests.validation.published_sweeps

Nothing was fitted to them. The files say what was published and where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.validation.published import FOLDER
from vidur_pd import simulate


@dataclass(frozen=True, slots=True)
class Sweep:
    """Mean times between tokens [ms] of one server, by the number of clients."""

    file: str
    """In ``examples/published``."""
    tpot_ms: Mapping[int, float]
    requests_per_client: int = 10
    settings: Sequence[str] = ()
    """What differs from the file."""
    limits_to_clients: bool = False
    """Whether the server was started with as many requests at a time as it had clients."""


def _long(name: str) -> str:
    """Prompts or answers of up to 8,192 tokens."""
    return f"workload.lengths.{name}.quantiles=[[0, 6554], [1, 8192]]"


OSS_H200 = "vllm-gpt-oss-h200"


def _on_h200s(tp: int, tpot_ms: Mapping[int, float]) -> Sweep:
    return Sweep(OSS_H200, tpot_ms, settings=[f"cluster.pools.server.tp={tp}"], limits_to_clients=True)


LONG_PROMPT = "workload.lengths.prefill=8192"
ON_A100 = ["model=qwen3-30b-a3b", "hardware=a100", "cluster.pools.server.tp=1"]
EIGHT = ["cluster.pools.server.tp=8", "cluster.pools.server.ep=8"]
SINGLE, MINIMAX = "vllm-single-requests", "vllm-minimax-h100"
OSS, TWO_NODES = "vllm-gpt-oss-h100-tp8", "sglang-r1-h100-tp16"
SWEEPS = {
    "DeepSeek-R1, SGLang, 8 H200": Sweep("sglang-r1-h200-tp8", {8: 12.8, 16: 17.2, 32: 25.6, 64: 34.6}),
    "gpt-oss-120b, vLLM, 8 H100": Sweep(OSS, {4: 3.72, 8: 4.05, 16: 4.83, 32: 5.82, 64: 7.36}),
    "the same, long prompts": Sweep(OSS, {4: 3.95, 8: 4.59}, settings=[_long("prefill")]),
    "the same, long answers": Sweep(OSS, {4: 3.68, 8: 4.00, 16: 4.53, 32: 5.65}, 3, [_long("decode")]),
    "gpt-oss-120b, vLLM, 1 H200": _on_h200s(1, {4: 6.34}),
    "gpt-oss-120b, vLLM, 2 H200": _on_h200s(2, {4: 4.86, 8: 6.00, 16: 7.93, 32: 10.62, 64: 14.50}),
    "gpt-oss-120b, vLLM, 4 H200": _on_h200s(4, {4: 4.02, 8: 4.65, 32: 7.24, 64: 9.51}),
    "gpt-oss-120b, vLLM, 8 H200": _on_h200s(8, {4: 3.70, 8: 4.03, 16: 4.71, 32: 5.62, 64: 7.08}),
    "gpt-oss-120b, vLLM, 1 H200, 8,000 + 1,000": Sweep(
        OSS_H200,
        {1: 4.31, 2: 5.26, 4: 7.13, 8: 10.42, 16: 15.95, 32: 24.98, 64: 41.73, 128: 74.0, 256: 118.32},
        5,
        [
            "cluster.pools.server.tp=1",
            "engine.max_seqs=256",
            "workload.lengths={kind: fixed, prefill: 8000, decode: 1000}",
        ],
    ),
    "DeepSeek-R1, SGLang, 16 H100, prompts of 128": Sweep(TWO_NODES, {1: 23.1}),
    "the same, prompts of 8,192": Sweep(TWO_NODES, {1: 24.0}, settings=[LONG_PROMPT]),
    "MiniMax-M2.5, vLLM, 4 H100": Sweep(MINIMAX, {4: 13.34}),
    "MiniMax-M2.5, vLLM, 8 H100": Sweep(MINIMAX, {4: 8.96}, settings=EIGHT),
    "Qwen2.5-72B, 2 H100, prompts of 128": Sweep(SINGLE, {1: 30.9}),
    "Qwen2.5-72B, 2 H100, prompts of 8,192": Sweep(SINGLE, {1: 31.3}, settings=[LONG_PROMPT]),
    "Qwen3-30B-A3B, 1 A100, prompts of 128": Sweep(SINGLE, {1: 9.6}, settings=ON_A100),
    "Qwen3-30B-A3B, 1 A100, prompts of 8,192": Sweep(SINGLE, {1: 10.6}, settings=[*ON_A100, LONG_PROMPT]),
}


def simulated(sweep: Sweep) -> Iterator[tuple[int, float]]:
    """(clients, mean TPOT in ms)."""
    for clients in sweep.tpot_ms:
        requests = sweep.requests_per_client * clients
        limits = [f"engine.max_seqs={clients}"] if sweep.limits_to_clients else []
        settings = [f"workload.arrivals.clients={clients}", f"workload.requests={requests}", *limits, *sweep.settings]
        tpot_s = simulate(FOLDER / f"{sweep.file}.yaml", settings=settings).summary.tpot_s.mean
        assert tpot_s is not None, "answers have more than one token"
        yield clients, 1e3 * tpot_s


def main() -> None:
    for name, sweep in SWEEPS.items():
        cells = [
            f"{clients}: {found:.2f} for {sweep.tpot_ms[clients]:.2f} ({found / sweep.tpot_ms[clients] - 1:+.0%})"
            for clients, found in simulated(sweep)
        ]
        print(f"{name}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
