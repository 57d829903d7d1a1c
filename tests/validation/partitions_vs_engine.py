#!/usr/bin/env python3
"""Compares the simulator with runs of vLLM 0.24.0 on one to four H100s and H200s, measured after it was frozen.

    python -m tests.validation.partitions_vs_engine

Qwen3-30B-A3B and Qwen3-8B in bf16 with TP 2, Qwen3-30B-A3B with DP 2 and EP 2, prefix caching on
(``tests/data/engine``): prompts alone, steady decodes up to contexts of 16,000 tokens, prompts that share prefixes,
bursts of five; prompts and decodes of Qwen3-Next-80B-A3B cut to 16 layers with TP 2; `MODELS` on one. Times of H100
kernels are transferred from the H200. The simulator gets the engine's profile and what the engine's log says: its KV
blocks, and how it reduces among ranks. The host is the default, which was chosen before: launches of these machines
were not measured then. ``HOST`` was measured later on one of their kind, at a speed that differs from theirs as those
differ from each other. `LATER`, `MODELS` and `AGAIN` were measured once launches had kinds, with stamps inside: ``own``
is what ``aicb profile host`` makes of its loads in the very engine, before and after what is compared. `SHARED_FP8` are
the first engines of fp8 experts with EP; blind, DeepGEMM's products stood for FlashInfer's there. `ON_H200` are whole
models; hosts change their speed meanwhile, so that there is ``then`` besides: ``own`` at the speed at which the engine
launched in the very phase, which is taken from its stamps, not from times of tokens. `WITH_FLASHINFER` are four more,
frozen likewise (``1d84f522``), `THREE_MORE` once more; from these on all normalised by FlashInfer, as an installed vLLM
does. `TWO_LARGE` are whole models of 70 and 117 billion parameters (``bd3d66ad``), measured by what
``aicb profile engine`` runs.
Prompts of fp8 models are compared ``as routed``, too: with the experts that they reach in these engines
(`PROMPT_LOADS`).
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from aicb.iteration.host import MEDIAN_HOST, HostModel, slowest_of
from aicb.iteration.model import IterationModel
from aicb.measurements.gpu import get_gpu
from aicb.model.architecture import Model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from tests.validation.engine_figures import Comparison, read_measurement
from vidur_pd.commands.validation import engine
from vidur_pd.commands.validation.engine import OWN, THEN
from vidur_pd.commands.validation.measured_engine import (
    DECODES,
    PROMPTS,
    Launch,
    Launches,
    MeasuredEngine,
    parse_engine,
)

SERVERS = ("tp2-qwen3-30b-a3b", "tp2-qwen3-8b", "dp2-ep2-qwen3-30b-a3b")
"""Partition and model of each measurement, as in its name."""
HYBRID = "tp2-qwen3-next-l16"
"""Without serving runs."""
LATER = ("tp2-qwen3-30b-a3b-l32", "tp2-qwen3-next-l16-later")
"""Models cut to 32 and 16 layers."""
MODELS = (
    "tp1-llama-3.1-8b-l16",
    "tp1-qwen3-32b-fp8-l16",
    "tp1-mixtral-8x7b-l4",
    "tp1-glm-4.5-air-l4",
    "tp1-qwen3-235b-a22b-fp8-l5",
    "tp1-qwen3-235b-a22b-fp8-l5-later",
    "tp1-gpt-oss-20b",
    "tp1-gpt-oss-20b-later",
)
"""On one GPU; all but gpt-oss are cut to as many layers as the name says."""
AGAIN = ("tp2-qwen3-30b-a3b-later", "dp2-ep2-qwen3-30b-a3b-later")
"""The first and the last of `SERVERS` a day later, on a machine whose host was measured in the engines."""
STAMPED = (*LATER, *MODELS, *AGAIN)
"""Those with a host of their own."""
SHARED_FP8 = ("tp2-ep2-minimax-m2-l12", "dp2-ep2-qwen3-30b-a3b-fp8-l20")
"""Models cut to 12 and 20 layers whose fp8 experts both ranks share, likewise; their hosts are not among those of which
``virtual-machine`` is the median."""
ON_H200 = ("h200-tp2-qwen3-next", "h200-tp2-qwen3-30b-a3b", "h200-dp2-ep2-qwen3-30b-a3b")
"""Whole models on two H200s, likewise, with the time of a launch in each phase."""
WITH_FLASHINFER = ("h200-tp2-qwen3-8b", "h200-tp2-glm-4.5-air", "h200-tp2-mixtral-8x7b", "h200-tp1-qwen3-30b-a3b")
"""The same with FlashInfer, whose kernel reduces among two ranks and normalises at once; contexts of 16,000 tokens, and
in the first and the last prefix caching. The last is on one GPU."""
THREE_MORE = (
    "h200-tp2-qwen3-next-flashinfer",
    "h200-tp2-qwen3-235b-a22b-fp8",
    "h200-dp2-ep2-deepseek-v3-l8",
)
"""Again (``18f581d3``): a hybrid model, 94 layers in fp8, and fp8 experts that ranks share, cut to 8 layers."""
TENSOR_PARALLEL_MLA = "h200-tp2-deepseek-v3-l8"
"""The same cut with TP 2 (``ca46ee9c``)."""
FOUR_RANKS = "h200-tp4-qwen3-30b-a3b"
"""On four H200s (``d3b23395``)."""
TWO_LARGE = ("h200-tp2-llama-3.1-70b", "h200-tp2-gpt-oss-120b")
"""On two H200s. Of the first one load was measured; in those of the second kernels are compiled for each new number of
tokens of a prompt, and they are left out."""
PROMPT_LOADS = {
    "tp2-ep2-minimax-m2-l12": "zipf:1.8",
    "h200-tp2-qwen3-235b-a22b-fp8": "zipf:4.2",
}
"""Popularities by which 128 tokens reach as many experts as prompts do with the random fp8 weights of these engines,
100 of 256 and 26 of 128 in the mean of their layers (``python -m tests.validation.routing_of_random_weights SERVER``).
Decodes of several requests reach as many as if tokens were independent."""
IN_PHASES = (*ON_H200, *WITH_FLASHINFER, *THREE_MORE, TENSOR_PARALLEL_MLA, FOUR_RANKS, *TWO_LARGE)
HOST = "xeon-vm-32-h100"
"""Of one worker on a machine of the same kind, stamped inside."""
RUNS = ("serve_prefix", "serve_burst")
LATER_RUNS = ("serve_2.0", "serve_6.0")
H200_RUNS = (*LATER_RUNS, "serve_12.0")
LONG_RUN = "serve_long"
"""Prompts of 12,000 to 18,000 tokens."""
RUNS_IN_ORDER = (*RUNS, LONG_RUN, "serve_0.5", *H200_RUNS)


def measurement(server: str) -> dict[str, Any]:
    return read_measurement(f"vllm-{'' if server in IN_PHASES else 'h100-'}{server}")


@cache
def engine_of(server: str) -> MeasuredEngine:
    """The same, checked; with launches of a phase where the file has stamps of them instead."""
    if server not in LATER:
        return _read(server)
    phases = [each["during"] for each in measurement(server)["during"]]
    launches = {phase: Launches(eager=Launch(median_us=launch_us(server, phase))) for phase in phases}
    return _read(server).model_copy(update={"launches": launches})


@cache
def _read(server: str) -> MeasuredEngine:
    """Early files do not name their GPU."""
    return parse_engine({**measurement(server), "gpu": "h200" if server in IN_PHASES else "h100"}, server)


def compare_prompts(server: str, host: str | None = None, expert_load: str | None = None) -> list[Comparison]:
    """Medians of first tokens of prompts alone."""
    return engine.compare_prompts(engine_of(server), host, expert_load)


def compare_decodes(server: str, host: str | None = None) -> list[Comparison]:
    """Steps in which all requests decode."""
    return engine.compare_decodes(engine_of(server), host)


def compare_serving(server: str, run: str, host: str | None = None) -> list[Comparison]:
    """Means and P90 of a serving run."""
    return engine.compare_load(engine_of(server), run, host)


def model_of(server: str) -> Model:
    """The model that an engine ran."""
    return _read(server).model


def compare(server: str, host: str | None = None) -> list[Comparison]:
    """All that was measured of a server."""
    found = engine_of(server).comparable_loads
    served = (row for run in RUNS_IN_ORDER if run in found for row in compare_serving(server, run, host))
    return [*compare_prompts(server, host), *compare_decodes(server, host), *served]


def launch_us(server: str, phase: str) -> float:
    """A launch of eager prompts during a phase of one of `LATER` or `IN_PHASES`: of a worker in the mean, over those
    counted."""
    found = measurement(server)
    if "launches" in found:
        return float(found["launches"][phase]["eager"]["median_us"])
    (steps,) = (each["steps"] for each in found["during"] if each["during"] == phase)
    eager = [row for row in steps if row["mode"] == "eager" and row["kind"].startswith("prompt")]
    passes = sum(row["number"] for row in eager)
    time_us = sum(row["launch_us"] * row["number"] for row in eager) / passes
    iterations = IterationModel(
        model_of(server), Partition(tp=2), Precision(), get_gpu("h100"), hybrid_kernels="compiled"
    )
    slower = slowest_of(2, HostModel().speed_spread)
    return float(time_us / iterations.launches(0).eager_time / slower)


def _has_then(server: str) -> bool:
    """Whether prompts were launched outside graphs in every phase."""
    found = engine_of(server)
    return all(found.host_in(phase) is not None for phase in (PROMPTS, DECODES, *found.comparable_loads))


def main() -> int:
    for server in (*SERVERS, HYBRID, *STAMPED, *SHARED_FP8, *IN_PHASES):
        has_own = server in (*STAMPED, *SHARED_FP8, *IN_PHASES)
        in_phases = (MEDIAN_HOST, *((THEN,) if _has_then(server) else ())) if server in IN_PHASES else ()
        hosts = (None, HOST, *((OWN,) if has_own else ()), *in_phases)
        for row, *others in zip(*(compare(server, host) for host in hosts), strict=True):
            times = f"measured {row.measured_ms:9.2f} ms  simulated {row.simulated_ms:9.2f} ms"
            named = "  ".join(f"{host} {other.error:+6.1%}" for host, other in zip(hosts[1:], others, strict=True))
            print(f"{server:24s} {row.name:24s} {times}  {row.error:+6.1%}  {named}")
    for server, load in PROMPT_LOADS.items():
        for row in compare_prompts(server, OWN, load):
            print(f"{server:24s} {row.name:24s} as routed {row.error:+6.1%}")
    for server in LATER:
        phases = [each["during"] for each in measurement(server)["during"]]
        print(server, "launches", {phase: round(launch_us(server, phase), 1) for phase in phases})
    return 0


if __name__ == "__main__":
    sys.exit(main())
