#!/usr/bin/env python3
"""Published runs of servers, from first to last request, against simulations of one of ``examples/published``.

    python -m tests.validation.performance_lab

GPUStack's performance lab (gpustack/gpustack, ``docs/performance-lab``, as of 2026-08-21) states command, version and
output of ``vllm bench serve`` for each. Taken were all its runs on H100 and H200 with random prompts or a stated number
of clients, of vLLM as it is by default (with fp8 or TP as well, where the page gives such runs) and of SGLang without
drafts. Left out are GLM-4.5-Air, whose page for H100 repeats figures of the page for A100, DeepSeek-V3.2 with SGLang
(data-parallel attention with sliced experts, which is not simulated), and models that are not built in. One run on
an A100 was added afterwards, and DeepSeek-R1 with SGLang was first simulated with eight data-parallel ranks: its
``--enable-dp-attention`` without ``--dp-size`` has one and is switched off (SGLang's ``server_args.py``). Nothing was
fitted to them. vLLM's defaults of then: 8,192 tokens and 1,024 requests of a batch, on A100s 2,048 and 256
(``vllm/engine/arg_utils.py``, ``get_batch_defaults``), and no asynchronous scheduling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.validation.published import FOLDER
from vidur_pd import simulate


@dataclass(frozen=True, slots=True)
class Load:
    """Requests, and tokens of each; all at once without ``clients``."""

    requests: int
    prompt_tokens: int
    answer_tokens: int
    """Mean of the run."""
    clients: int = 0

    @property
    def settings(self) -> list[str]:
        arrivals = f"{{kind: closed, clients: {self.clients}}}" if self.clients else "{kind: static}"
        return [
            f"workload.requests={self.requests}",
            f"workload.arrivals={arrivals}",
            f"workload.lengths.prefill={self.prompt_tokens}",
            f"workload.lengths.decode={self.answer_tokens}",
        ]

    def __str__(self) -> str:
        how = f"{self.clients} clients" if self.clients else "at once"
        return f"{self.requests} x {self.prompt_tokens:,} + {self.answer_tokens}, {how}"


@dataclass(frozen=True, slots=True)
class Times:
    """Of a run; TTFT and TPOT are means."""

    duration_s: float
    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Deployment:
    """A server and its published runs."""

    settings: Sequence[str]
    """What differs from the file."""
    runs: Mapping[Load, Times]


FILE: Final = "performance-lab"
"""In ``examples/published``."""
FP8: Final = "engine.weights=fp8"
ALONE: Final = "cluster.pools.server.tp=1"


def _sglang(weights: str) -> tuple[str, str]:
    """SGLang as it was by default until 0.5.9, with no graphs of prompts."""
    return (
        f"engine={{framework: sglang, weights: {weights}, host_engine: vllm, prompt_graph_sizes: []}}",
        "frontend={kind: none}",
    )


DEPLOYMENTS: Final = {
    "Qwen3-235B-A22B, vLLM, TP 8, H100": Deployment(
        [],
        {
            Load(100, 32000, 82): Times(141.6, 70409.55, 132.1),
            Load(500, 1996, 99): Times(43.91, 21313.79, 101.08),
            Load(500, 3996, 184): Times(98.99, 47811.58, 68.94),
            Load(984, 128, 4): Times(8.83, 7042.17, 212.98),
        },
    ),
    "Qwen3-235B-A22B in fp8, vLLM, TP 4, H100": Deployment(
        ["cluster.pools.server.tp=4", FP8, "engine.max_batched_tokens=16384"],
        {
            Load(100, 32000, 83): Times(208.79, 103754.5, 194.6),
            Load(500, 1996, 99): Times(55.28, 26860.95, 125.93),
            Load(500, 3996, 182): Times(126.76, 60513.14, 89.52),
            Load(984, 128, 4): Times(6.11, 5621.51, 125.18),
        },
    ),
    "DeepSeek-R1, vLLM, TP 8, H200": Deployment(
        ["model=deepseek-r1", "hardware=h200", FP8],
        {
            Load(100, 31999, 100): Times(206.9, 101351.99, 365.79),
            Load(500, 1997, 100): Times(59.26, 28911.9, 237.02),
            Load(500, 3995, 200): Times(132.68, 63058.71, 164.23),
            Load(1000, 127, 4): Times(22.07, 19392.11, 351.83),
            Load(100, 228, 213, clients=4): Times(108.42, 123.3, 19.36),
        },
    ),
    "DeepSeek-R1, SGLang, TP 8, H200": Deployment(
        ["model=deepseek-r1", "hardware=h200", *_sglang("fp8")],
        {
            Load(100, 31999, 100): Times(199.47, 98133.46, 198.62),
            Load(500, 1997, 100): Times(55.11, 27248.86, 154.49),
            Load(500, 3995, 200): Times(130.31, 62808.37, 107.91),
            Load(1000, 127, 4): Times(6.4, 3626.25, 802.48),
        },
    ),
    "DeepSeek-V3.2, vLLM, TP 8, H200": Deployment(
        ["model=deepseek-v3.2", "hardware=h200", FP8],
        {
            Load(100, 32000, 100): Times(330.61, 164003.81, 472.52),
            Load(500, 2000, 100): Times(96.1, 45667.57, 354.59),
            Load(500, 4000, 200): Times(210.54, 103386.88, 226.74),
            Load(1000, 128, 4): Times(13.11, 5786.15, 781.8),
        },
    ),
    "GLM-4.6, vLLM, TP 8, H200": Deployment(
        ["model=glm-4.6", "hardware=h200"],
        {
            Load(100, 32000, 94): Times(213.02, 105089.84, 479.17),
            Load(500, 1999, 100): Times(60.96, 30215.66, 269.75),
            Load(500, 4000, 200): Times(125.61, 57737.75, 205.69),
            Load(1000, 128, 4): Times(13.89, 11467.27, 351.26),
            Load(100, 230, 218, clients=4): Times(103.11, 70.16, 18.11),
        },
    ),
    "GLM-4.6 in fp8, SGLang, TP 4, H200": Deployment(
        ["model=glm-4.6", "hardware=h200", "cluster.pools.server.tp=4", *_sglang("fp8")],
        {
            Load(100, 32000, 97): Times(262.58, 129699.21, 191.61),
            Load(500, 1999, 100): Times(60.44, 27600.49, 144.82),
            Load(500, 4000, 200): Times(140.16, 65196.25, 97.74),
            Load(1000, 128, 4): Times(6.21, 3551.5, 800.25),
        },
    ),
    "Qwen3-8B, vLLM, one H100": Deployment(
        ["model=qwen3-8b", ALONE],
        {
            Load(100, 233, 221, clients=1): Times(166.04, 59.01, 7.28),
            Load(100, 233, 221, clients=2): Times(85.78, 63.78, 7.37),
            Load(100, 233, 221, clients=4): Times(44.4, 64.0, 7.38),
            Load(100, 233, 221, clients=8): Times(24.05, 74.57, 7.71),
        },
    ),
    "Qwen3-8B, SGLang, one H100": Deployment(
        ["model=qwen3-8b", ALONE, *_sglang("bf16")],
        {
            Load(100, 233, 221, clients=4): Times(41.97, 27.7, 7.19),
        },
    ),
    "Qwen3-8B in fp8, SGLang, one H100": Deployment(
        ["model=qwen3-8b", ALONE, *_sglang("fp8")],
        {
            Load(100, 233, 221, clients=4): Times(33.54, 39.66, 5.65),
        },
    ),
    "Qwen3-14B, vLLM, one H100": Deployment(
        ["model=qwen3-14b", ALONE],
        {
            Load(100, 32000, 99): Times(386.8, 191024.43, 277.44),
            Load(500, 1996, 100): Times(98.91, 50716.13, 206.51),
            Load(500, 3996, 200): Times(227.57, 112716.92, 132.45),
            Load(1000, 128, 4): Times(22.72, 18282.75, 525.31),
        },
    ),
    "Qwen3-14B in fp8, SGLang, one H100": Deployment(
        ["model=qwen3-14b", ALONE, *_sglang("fp8")],
        {
            Load(100, 32000, 100): Times(320.54, 158068.68, 215.93),
            Load(500, 1996, 100): Times(70.99, 33245.08, 143.22),
            Load(500, 3996, 200): Times(171.14, 82073.47, 84.93),
            Load(1000, 128, 4): Times(7.8, 4489.43, 927.88),
        },
    ),
    "Qwen3-32B, vLLM, one H100": Deployment(
        ["model=qwen3-32b", ALONE],
        {
            Load(100, 32000, 77): Times(1157.25, 585981.22, 43.42),
            Load(500, 1996, 100): Times(328.04, 163909.4, 86.62),
            Load(500, 3996, 200): Times(976.29, 482284.21, 66.61),
            Load(1000, 128, 4): Times(32.88, 21648.67, 1169.72),
        },
    ),
    "Qwen3-32B, vLLM, one A100": Deployment(
        ["model=qwen3-32b", "hardware=a100", ALONE, "engine.max_batched_tokens=2048", "engine.max_seqs=256"],
        {
            Load(100, 32000, 77): Times(1783.59, 890711.38, 67.87),
            Load(500, 1996, 100): Times(415.71, 208397.03, 143.23),
            Load(500, 3996, 200): Times(1141.94, 566579.7, 96.19),
            Load(1000, 128, 4): Times(49.57, 31177.64, 528.57),
        },
    ),
    "gpt-oss-20b, vLLM, one H100": Deployment(
        ["model=gpt-oss-20b", ALONE, "engine.weights=mxfp4"],
        {
            Load(100, 32000, 94): Times(107.95, 53687.69, 239.44),
            Load(500, 1998, 94): Times(32.58, 16515.86, 149.76),
            Load(500, 3998, 105): Times(61.73, 31245.12, 184.26),
            Load(1000, 128, 4): Times(4.7, 3174.14, 178.91),
        },
    ),
    "gpt-oss-120b, vLLM, one H100": Deployment(
        ["model=gpt-oss-120b", ALONE, "engine.weights=mxfp4", "engine.max_model_len=32768"],
        {
            Load(100, 32000, 99): Times(198.92, 99444.04, 23.99),
            Load(500, 1998, 98): Times(72.87, 36234.76, 41.35),
            Load(500, 3998, 134): Times(145.04, 72954.68, 31.7),
            Load(1000, 128, 4): Times(7.72, 4850.46, 304.8),
            Load(100, 229, 217, clients=4): Times(47.88, 49.0, 8.31),
        },
    ),
    "gpt-oss-120b, vLLM, TP 2, H100": Deployment(
        ["model=gpt-oss-120b", "cluster.pools.server.tp=2", "engine.weights=mxfp4", "engine.async_scheduling=true"],
        {
            Load(100, 32000, 100): Times(98.86, 48826.05, 220.32),
            Load(500, 1998, 98): Times(30.75, 15291.77, 139.32),
            Load(500, 3998, 136): Times(59.94, 29487.34, 164.73),
            Load(1000, 128, 4): Times(4.18, 2800.15, 183.05),
            Load(100, 229, 217, clients=4): Times(33.6, 37.51, 5.75),
        },
    ),
}


def simulated(deployment: Deployment) -> Iterator[tuple[Load, Times]]:
    """The same runs."""
    for load in deployment.runs:
        settings = [*deployment.settings, *load.settings]
        summary = simulate(FOLDER / f"{FILE}.yaml", settings=settings).summary
        assert summary.ttft_s.mean is not None, "all requests are served"
        assert summary.tpot_s.mean is not None, "answers have more than one token"
        yield load, Times(summary.makespan_s, 1e3 * summary.ttft_s.mean, 1e3 * summary.tpot_s.mean)


def main() -> None:
    for name, deployment in DEPLOYMENTS.items():
        for load, found in simulated(deployment):
            published = deployment.runs[load]
            cells = [
                f"{what} {mine:.5g} for {theirs:.5g} {unit} ({mine / theirs - 1:+.0%})"
                for what, mine, theirs, unit in (
                    ("duration", found.duration_s, published.duration_s, "s"),
                    ("TTFT", found.ttft_ms, published.ttft_ms, "ms"),
                    ("TPOT", found.tpot_ms, published.tpot_ms, "ms"),
                )
            ]
            print(f"{name}: {load}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
