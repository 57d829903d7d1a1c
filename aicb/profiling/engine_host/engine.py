"""A vLLM engine under the loads that tell its host's times: prompts alone, decodes of equal requests.

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
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from aicb.profiling.engine_host.norms import norm_kernel
from aicb.profiling.engine_host.stamping import FOLDER_VARIABLE

PROMPTS = (16, 128, 300, 512, 640, 1024, 2048)
"""Tokens: below, at and above vLLM's largest captured size (512)."""
REPETITIONS = 9
DECODES = (1, 8, 64, 256)
"""Requests that decode together."""
DECODE_PROMPT = 128
DECODE_STEPS = 60
LOWEST_TOKEN, HIGHEST_TOKEN = 1000, 30000


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """What runs: a model's configuration with random weights, on so many GPUs."""

    folder: str
    """Of the model's ``config.json``."""
    tp: int = 1
    dp: int = 1
    """Data-parallel ranks, each with a core of its own."""
    shares_experts: bool = False
    """Whether all ranks divide the experts among them (``enable_expert_parallel``)."""
    arguments: dict[str, Any] | None = None
    """More of vLLM's engine arguments."""


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


def start(under_test: EngineUnderTest) -> Any:
    """The engine, with stamps inside."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    own = "aicb.profiling.engine_host.stamping"
    arguments = {
        "model": under_test.folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "tensor_parallel_size": under_test.tp,
        "data_parallel_size": under_test.dp,
        "enable_expert_parallel": under_test.shares_experts,
        "max_model_len": 8192,
        "max_num_seqs": max(DECODES),
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "scheduler_cls": f"{own}.StampingScheduler",
        "worker_extension_cls": f"{own}.StampingWorker",
        **(under_test.arguments or {}),
    }
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))


async def _record(under_test: EngineUnderTest) -> dict[str, Any]:
    engine = start(under_test)
    try:
        client = Client(engine)
        await client.loads(repetitions=2)
        await engine.collective_rpc("start_stamps")
        began = perf_counter()
        client.requests.clear()
        await client.loads(repetitions=REPETITIONS)
        await engine.collective_rpc("leave_stamps")
        traces = {tokens: await client.trace(tokens) for tokens in (256, 1024)}
    finally:
        engine.shutdown()
    return {
        "environment": environment(),
        "norm_kernel": norm_kernel(engine.vllm_config),
        "tp": under_test.tp,
        "began": began,
        "requests": client.requests,
        "traces": traces,
    }


class Client:
    """Requests and when their tokens came: prompt tokens, sent, received."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.requests: list[list[Any]] = []
        self._random = random.Random(0)
        self._number = 0

    async def loads(self, repetitions: int) -> None:
        for tokens in PROMPTS:
            for _ in range(repetitions):
                await self.request(tokens, 3)
        for requests in DECODES:
            await asyncio.gather(*(self.request(DECODE_PROMPT, DECODE_STEPS) for _ in range(requests)))

    async def trace(self, tokens: int) -> list[dict[str, Any]]:
        """Launches and kernels of a prompt in each worker; the first trace pays for the profiler and is thrown away."""
        traced: list[dict[str, Any]] = []
        for _ in range(2):
            await self.engine.collective_rpc("start_trace")
            await self.request(tokens, 1)
            traced = await self.engine.collective_rpc("end_trace")
        return traced

    async def request(self, tokens: int, outputs: int) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        self._number += 1
        prompt = [self._random.randrange(LOWEST_TOKEN, HIGHEST_TOKEN) for _ in range(tokens)]
        sampling = SamplingParams(
            max_tokens=outputs,
            min_tokens=outputs,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        sent, received = perf_counter(), []
        async for _ in self.engine.generate(TokensPrompt(prompt_token_ids=prompt), sampling, f"r{self._number}"):
            received.append(perf_counter())
        self.requests.append([tokens, sent, received])


def environment() -> dict[str, Any]:
    """Processor, GPUs, kernel and versions."""
    import torch

    versions = {name: importlib.metadata.version(name) for name in ("vllm", "torch", "triton")}
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    return {
        "cpu": cpu.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "kernel": platform.release(),
        "versions": versions,
    }
