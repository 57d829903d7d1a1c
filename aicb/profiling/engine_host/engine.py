"""An engine under the loads that tell its host's times: prompts alone, decodes of equal requests.

The engine runs as a server's does: its client in this process, the core in another, workers in the core's process or,
on several GPUs, in their own. Loads follow one another without rest, after a pass that compiles what is compiled at
first use and is thrown away.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from aicb.profiling.engine_host.client import Answer, Client
from aicb.profiling.engine_host.served import FOLDER_VARIABLE, EngineUnderTest, ServedEngine

PROMPTS = (16, 128, 300, 512, 640, 1024, 2048)
"""Tokens: below, at and above vLLM's largest captured size (512)."""
REPETITIONS = 9
DECODES = (1, 8, 64, 256)
"""Requests that decode together."""
DECODE_PROMPT = 128
DECODE_STEPS = 60


def record(engine: EngineUnderTest) -> dict[str, Any]:
    """Stamps of all loads: ``requests``, ``ranks``, ``traces``, ``environment``; ``norm_kernel`` as in
    ``aicb.operators.norm_kernel``."""
    with tempfile.TemporaryDirectory() as stamps:
        os.environ[FOLDER_VARIABLE] = stamps
        recorded = asyncio.run(_record(engine))
        return {**recorded, "ranks": stamps_of_ranks(Path(stamps), engine.dp)}


def stamps_of_ranks(folder: Path, dp: int) -> list[dict[str, Any]]:
    """[data-parallel ranks] ``scheduler``, ``workers``: rows that an engine left."""
    ranks = []
    for rank in range(dp):
        left = folder.glob(f"scheduler-{rank}.jsonl")  # none where the rank got no request
        scheduler = [json.loads(line) for file in left for line in file.read_text().splitlines()]
        workers = [json.loads(file.read_text()) for file in sorted(folder.glob(f"worker-{rank}-*.json"))]
        ranks.append({"scheduler": sorted(scheduler, key=lambda row: row[1]), "workers": workers})
    return ranks


def start(under_test: EngineUnderTest) -> ServedEngine:
    """The engine, with stamps inside."""
    match under_test.framework:
        case "vllm":
            from aicb.profiling.engine_host.vllm_engine import VllmEngine

            return VllmEngine(under_test, max(DECODES))
        case "sglang":
            from aicb.profiling.engine_host.sglang_engine import SglangEngine

            return SglangEngine(under_test, max(DECODES))


async def _record(under_test: EngineUnderTest) -> dict[str, Any]:
    engine = start(under_test)
    try:
        client = Client(engine)
        await loads(client, repetitions=2)
        await engine.call("start_stamps")
        began = perf_counter()
        client.answers.clear()
        await loads(client, repetitions=REPETITIONS)
        await engine.call("leave_stamps")
        requests = rows_of(client.answers)
        traces = {tokens: await _trace(client, tokens) for tokens in (256, 1024)}
    finally:
        engine.shutdown()
    return {
        "environment": environment(engine.packages),
        "norm_kernel": engine.read_back()["norm_kernel"],
        "tp": under_test.tp,
        "began": began,
        "requests": requests,
        "traces": traces,
    }


async def loads(client: Client, repetitions: int) -> None:
    """The loads that tell a host's times."""
    for tokens in PROMPTS:
        for _ in range(repetitions):
            await client.ask(tokens, 3)
    for requests in DECODES:
        await client.ask_at([(0.0, DECODE_PROMPT, DECODE_STEPS)] * requests)


def rows_of(answers: Iterable[Answer]) -> list[list[Any]]:
    """[requests] prompt tokens, when it was sent, when outputs came."""
    return [[each.prompt_tokens, each.sent_s, [at_s for at_s, _ in each.outputs]] for each in answers]


async def _trace(client: Client, tokens: int) -> list[dict[str, Any]]:
    """Launches and kernels of a prompt in each worker; the first trace pays for the profiler and is thrown away."""
    traced: list[dict[str, Any]] = []
    for _ in range(2):
        await client.engine.call("start_trace")
        await client.ask(tokens, 1)
        traced = await client.engine.call("end_trace")
    return traced


def environment(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, GPUs, kernel and versions of packages."""
    import torch

    versions = {name: importlib.metadata.version(name) for name in packages}
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return {
        "cpu": cpu.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "kernel": platform.release(),
        "versions": versions,
    }
