#!/usr/bin/env python3
"""Runs of DeepSeek-R1 on H200s that InferenceX published, against simulations of ``examples/published``.

    python -m tests.validation.inferencex

Published: rows of DeepSeek-R1 in fp8 on H200s without drafts of SemiAnalysisAI/InferenceX-app (at 3a600f1d,
``packages/app/cypress/fixtures/api/benchmarks.json``; Apache-2.0, SemiAnalysis, AMD and NVIDIA): all of one node with
tensor parallelism and all disaggregated ones of SGLang. Commands: InferenceX ``benchmarks/dsr1_fp8_h200.sh`` (SGLang
0.5.9, 2026-03-25) and ``dsr1_fp8_h200_trt.sh`` (TensorRT-LLM: sliced experts 2025-11-02, EP 8 2025-12-15). Recipes
of disaggregated ones: ``recipes/h200`` of NVIDIA/srt-slurm (SGLang 0.5.8.post1, 2026-02-07). Each client sends one
request after another, ten in all. Lengths are uniform from four fifths of the nominal ones on.

Simulated before one was looked at for a cause; nothing was changed in the simulator for them. Settings were, to what
the commands say: TensorRT-LLM had 8,192 tokens of a batch with all lengths at first, and instances of disaggregated
clusters SGLang's default limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.validation.published import FOLDER
from vidur_pd import simulate


@dataclass(frozen=True, slots=True)
class Times:
    """Of a run; TPOT and E2E are means, TTFT is the median."""

    tpot_ms: float
    ttft_ms: float
    e2e_s: float


@dataclass(frozen=True, slots=True)
class Deployment:
    """A server or a disaggregated cluster, and its published runs with prompts and answers of some lengths."""

    file: str
    """Of ``examples/published``."""
    settings: Sequence[str]
    """What differs from the file."""
    prompt_tokens: int
    answer_tokens: int
    runs: Mapping[int, Times]
    """By clients."""
    tokens_before_the_first_output: int = 0
    """Decode steps that pass before a client sees its first token.

    An SGLang decode instance with ``--stream-interval 10`` sends an output whenever the number of tokens is one modulo
    ten (``stream_output_generation`` of its scheduler). The first token is of the prefill instance and has been counted
    before the first step, so that the first output has eleven.
    """


SGLANG: Final = [
    "engine.max_batched_tokens=32768",
    "engine.max_seqs=512",
    "engine.prefix_caching=false",
    "engine.gpu_memory_utilization=0.82",
    "engine.policy_options={max_prefill_tokens: 32768}",
]


def _tensorrt_llm(max_num_tokens: int) -> list[str]:
    """TensorRT-LLM, whose batches are padded to captured ones of up to 128 requests."""
    sizes = [1, 2, 4, *range(8, 129, 8)]
    return [
        "engine.framework=trtllm",
        "engine.kv=fp8",
        f"engine.max_batched_tokens={max_num_tokens}",
        "engine.prefix_caching=false",
        f"engine.graph_sizes={sizes}",
    ]


def _prefill(chunk: int, requests: int, instances: int = 1, most_tokens: int | None = None) -> list[str]:
    limits = f"max_batched_tokens: {chunk}, max_seqs: {requests}"
    options = f"max_prefill_tokens: {most_tokens or chunk}"
    return [
        f"cluster.pools.prefill.instances={instances}",
        f"cluster.pools.prefill.engine={{{limits}, policy_options: {{{options}}}}}",
    ]


def _decode(instances: int, requests: int) -> list[str]:
    """Decode instances, whose graphs are captured up to their most requests."""
    sizes = [1, 2, 4, *range(8, requests + 1, 8)]
    return [
        f"cluster.pools.decode.instances={instances}",
        f"cluster.pools.decode.engine={{max_seqs: {requests}, graph_sizes: {sizes}}}",
    ]


def _data_parallel(pool: str) -> list[str]:
    return [f"cluster.pools.{pool}.{degree}" for degree in ("tp=1", "dp=8", "ep=8")]


SERVER: Final = "sglang-r1-h200-tp8"
CLUSTER: Final = "sglang-r1-h200-pd"
EP: Final = "cluster.pools.server.ep=8"
DEPLOYMENTS: Final = {
    "SGLang, TP 8, 1,024 + 1,024": Deployment(
        SERVER,
        SGLANG,
        1024,
        1024,
        {
            4: Times(10.29, 156.3, 9.698),
            8: Times(12.47, 148.7, 11.83),
            16: Times(16.63, 153.2, 15.51),
            32: Times(23.31, 163.1, 21.86),
            64: Times(32.99, 178.2, 30.83),
        },
    ),
    "SGLang, TP 8, 8,192 + 1,024": Deployment(
        SERVER,
        SGLANG,
        8192,
        1024,
        {
            4: Times(11.27, 319.7, 10.8),
            8: Times(14.37, 323.6, 13.81),
            16: Times(20.41, 330.2, 19.38),
            32: Times(31.97, 355.2, 30.59),
            64: Times(50.24, 715.9, 48.64),
        },
    ),
    "SGLang, TP 8, 1,024 + 8,192": Deployment(
        SERVER,
        SGLANG,
        1024,
        8192,
        {
            4: Times(10.26, 156.5, 74.79),
            8: Times(12.2, 149.4, 90.01),
            16: Times(15.86, 156, 117.2),
            32: Times(22.1, 166.5, 164.2),
            64: Times(30.61, 182.8, 226.5),
        },
    ),
    "TensorRT-LLM, TP 8, 1,024 + 1,024": Deployment(
        SERVER,
        [*_tensorrt_llm(8192)],
        1024,
        1024,
        {
            4: Times(13.81, 118.8, 12.97),
            8: Times(16.39, 105.5, 15.51),
            16: Times(20.39, 129.6, 19.05),
            32: Times(26.12, 124.4, 24.73),
            64: Times(33.96, 149.6, 32.05),
        },
    ),
    "TensorRT-LLM, TP 8, 8,192 + 1,024": Deployment(
        SERVER,
        [*_tensorrt_llm(8320)],
        8192,
        1024,
        {
            4: Times(14.88, 373.9, 14.12),
            8: Times(18.67, 383.8, 17.83),
            16: Times(25.24, 403.5, 23.83),
            32: Times(35.8, 404.9, 34.14),
            64: Times(48.29, 3600, 49.47),
        },
    ),
    "TensorRT-LLM, TP 8, 1,024 + 8,192": Deployment(
        SERVER,
        [*_tensorrt_llm(8192)],
        1024,
        8192,
        {
            4: Times(13.67, 128.5, 99.5),
            8: Times(15.87, 106.3, 117),
            16: Times(19.52, 124.5, 144.4),
            32: Times(25.36, 127.7, 188.6),
            64: Times(32.18, 146.8, 238.4),
        },
    ),
    "TensorRT-LLM, TP 8 and EP 8, 1,024 + 1,024": Deployment(
        SERVER,
        [*_tensorrt_llm(8192), EP],
        1024,
        1024,
        {
            4: Times(13.82, 123.2, 12.98),
            8: Times(16.35, 105.5, 15.47),
            16: Times(20.19, 112.9, 19.14),
            32: Times(25.9, 125.2, 24.38),
            64: Times(33.11, 139.8, 31.51),
        },
    ),
    "TensorRT-LLM, TP 8 and EP 8, 8,192 + 1,024": Deployment(
        SERVER,
        [*_tensorrt_llm(8320), EP],
        8192,
        1024,
        {
            4: Times(14.95, 387.2, 14.21),
            8: Times(18.6, 391.2, 17.79),
            16: Times(25.17, 402.3, 23.78),
            32: Times(35.9, 400.5, 34.23),
        },
    ),
    "TensorRT-LLM, TP 8 and EP 8, 1,024 + 8,192": Deployment(
        SERVER,
        [*_tensorrt_llm(8192), EP],
        1024,
        8192,
        {
            4: Times(13.67, 102, 99.77),
            8: Times(15.93, 106.1, 117.5),
            16: Times(19.52, 127.3, 144.3),
            32: Times(25.24, 127.3, 187.8),
            64: Times(32.1, 144.8, 237.9),
        },
    ),
    "SGLang, 1 x TP 8 and 9 x TP 8, 1,024 + 1,024": Deployment(
        CLUSTER,
        [*_decode(9, 256)],
        1024,
        1024,
        {
            1: Times(8.923, 217.9, 8.627),
            4: Times(9.486, 223.6, 9.121),
            8: Times(9.431, 216.9, 9.014),
            16: Times(9.912, 255, 9.404),
            32: Times(10.97, 361.8, 10.58),
            64: Times(12.44, 632, 12.21),
        },
        tokens_before_the_first_output=10,
    ),
    "SGLang, 1 x TP 8 and 6 x TP 8, 1,024 + 1,024": Deployment(
        CLUSTER,
        [*_prefill(163840, 512), *_decode(6, 512)],
        1024,
        1024,
        {
            512: Times(33.73, 773.5, 33.08),
            1024: Times(43.71, 1074, 43.69),
            2048: Times(41.49, 56670, 90.07),
        },
        tokens_before_the_first_output=10,
    ),
    "SGLang, 1 x DP 8 + EP 8 and 6 x DP 8 + EP 8, 1,024 + 1,024": Deployment(
        CLUSTER,
        [
            *_data_parallel("prefill"),
            *_data_parallel("decode"),
            *_prefill(32768, 64, most_tokens=65536),
            *_decode(6, 64),
        ],
        1024,
        1024,
        {
            128: Times(27.47, 773.1, 26.35),
            256: Times(31.68, 891.7, 31.1),
            512: Times(34.95, 955.3, 35.37),
            1024: Times(37.68, 9937, 45.87),
            2048: Times(39, 34080, 72.74),
        },
        tokens_before_the_first_output=10,
    ),
    "SGLang, 1 x TP 8 and 7 x TP 8, 8,192 + 1,024": Deployment(
        CLUSTER,
        [*_prefill(32768, 16), *_decode(7, 8)],
        8192,
        1024,
        {
            1: Times(9.397, 738, 9.489),
            4: Times(9.812, 364.9, 9.594),
            8: Times(10.34, 444.8, 10.2),
        },
        tokens_before_the_first_output=10,
    ),
    "SGLang, 1 x TP 8 and 6 x TP 8, 8,192 + 1,024": Deployment(
        CLUSTER,
        [*_prefill(32768, 16), *_decode(6, 16)],
        8192,
        1024,
        {
            4: Times(9.865, 386, 9.695),
            8: Times(10.36, 384.4, 10.19),
            16: Times(11.04, 570.1, 11.04),
        },
        tokens_before_the_first_output=10,
    ),
    "SGLang, 1 x TP 8 and 3 x TP 8, 8,192 + 1,024": Deployment(
        CLUSTER,
        [*_prefill(32768, 16), *_decode(3, 32)],
        8192,
        1024,
        {
            8: Times(10.81, 480.9, 10.66),
            16: Times(12.53, 558.4, 12.37),
            32: Times(15.35, 991.5, 15.76),
        },
        tokens_before_the_first_output=10,
    ),
    "SGLang, 2 x TP 8 and 3 x TP 8, 8,192 + 1,024": Deployment(
        CLUSTER,
        [*_prefill(32768, 16, instances=2), *_decode(3, 128)],
        8192,
        1024,
        {
            32: Times(15.57, 759.6, 15.42),
            64: Times(22.21, 819.2, 21.76),
            128: Times(31.38, 979.3, 30.72),
        },
        tokens_before_the_first_output=10,
    ),
    "SGLang, 1 x TP 8 and 1 x DP 8 + EP 8, 8,192 + 1,024": Deployment(
        CLUSTER,
        [*_data_parallel("decode"), *_prefill(163840, 16), *_decode(1, 32)],
        8192,
        1024,
        {
            64: Times(34.69, 929.6, 33.96),
            128: Times(40.62, 1810, 40.98),
            256: Times(42.73, 28840, 69),
        },
        tokens_before_the_first_output=10,
    ),
}


def simulated(deployment: Deployment, clients: int, *settings: str) -> Times:
    """The same run."""

    def uniform(tokens: int) -> str:
        return f"[[0, {-(-tokens * 4 // 5)}], [1, {tokens}]]"

    summary = simulate(
        FOLDER / f"{deployment.file}.yaml",
        settings=[
            f"workload.arrivals.clients={clients}",
            f"workload.requests={10 * clients}",
            f"workload.lengths.prefill.quantiles={uniform(deployment.prompt_tokens)}",
            f"workload.lengths.decode.quantiles={uniform(deployment.answer_tokens)}",
            *deployment.settings,
            *settings,
        ],
    ).summary
    tpot, ttft, e2e = summary.tpot_s.mean, summary.ttft_s.p50, summary.e2e_s.mean
    assert tpot is not None, "answers have more than one token"
    assert ttft is not None, "all requests are served"
    assert e2e is not None, "all requests are served"
    return Times(1e3 * tpot, 1e3 * (ttft + deployment.tokens_before_the_first_output * tpot), e2e)


def errors(found: Times, published: Times) -> tuple[float, float, float]:
    """Relative errors of TPOT, TTFT and E2E."""
    return (
        found.tpot_ms / published.tpot_ms - 1.0,
        found.ttft_ms / published.ttft_ms - 1.0,
        found.e2e_s / published.e2e_s - 1.0,
    )


def rows(*settings: str) -> Iterator[tuple[str, int, Times, Times]]:
    """Deployment, clients, simulated and published times."""
    for name, deployment in DEPLOYMENTS.items():
        for clients, published in deployment.runs.items():
            yield name, clients, simulated(deployment, clients, *settings), published


def main() -> None:
    for name, clients, found, published in rows():
        tpot, ttft, e2e = errors(found, published)
        print(
            f"{name}, {clients} clients: TPOT {found.tpot_ms:.2f} for {published.tpot_ms:.2f} ms ({tpot:+.0%}), "
            f"TTFT {found.ttft_ms:.0f} for {published.ttft_ms:.0f} ms ({ttft:+.0%}), "
            f"E2E {found.e2e_s:.2f} for {published.e2e_s:.2f} s ({e2e:+.0%})",
            flush=True,
        )


if __name__ == "__main__":
    main()
