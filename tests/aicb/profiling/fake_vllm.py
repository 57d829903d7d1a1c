"""A stand-in for vLLM's asynchronous engine: steps that take made-up times, with the stamps of a real one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from aicb.profiling.engine_host.served import FOLDER_VARIABLE

DECODE_S, TOKEN_S = 2e-3, 1e-6
"""Of a step, and of each token of a prompt in it."""
CAPTURED = 512
COMPILING_S = 0.8


class Request:
    def __init__(self, tokens: int, outputs: int) -> None:
        self.tokens, self.left, self.has_prompt = tokens, outputs, True
        self.outputs: asyncio.Queue[int] = asyncio.Queue()


class FakeEngine:
    """One engine; with drafts, all are kept."""

    made: ClassVar[list[FakeEngine]] = []
    compiles_in: ClassVar[Collection[int]] = ()
    """A step of each of these phases of stamps takes `COMPILING_S` longer."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.drafts = (arguments.get("speculative_config") or {}).get("num_speculative_tokens", 0)
        self.running: list[Request] = []
        self.scheduler: list[list[Any]] = []
        self.worker: list[list[Any]] = []
        self.is_stamped = self.is_shut_down = False
        self.compiled_in: set[int] = set()
        self.phases = 0
        self.task: asyncio.Task[None] | None = None
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(
                enable_prefix_caching=False, gpu_memory_utilization=0.8, num_gpu_blocks=50_000, block_size=16
            ),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=1,
                data_parallel_size=1,
                enable_expert_parallel=False,
                disable_custom_all_reduce=False,
            ),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=8192, max_num_seqs=256),
            model_config=SimpleNamespace(max_model_len=32768),
            compilation_config=SimpleNamespace(pass_config=SimpleNamespace(fuse_allreduce_rms=False)),
        )
        FakeEngine.made.append(self)

    async def generate(self, prompt: Any, sampling: Any, name: str) -> AsyncIterator[Any]:
        del name
        request = Request(len(prompt.prompt_token_ids), sampling.max_tokens)
        now = perf_counter()
        self.scheduler.append(["add", now, now + 1e-6, request.tokens, 1, 1])
        self.running.append(request)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        left = sampling.max_tokens
        while left:
            count = await request.outputs.get()
            left -= count
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * count)])

    async def _run(self) -> None:
        while self.running:
            batch = list(self.running)
            prompts = [request for request in batch if request.has_prompt]
            tokens = sum(each.tokens for each in prompts) + (1 + self.drafts) * (len(batch) - len(prompts))
            begin, took = perf_counter(), DECODE_S + TOKEN_S * sum(each.tokens for each in prompts)
            if self.is_stamped and self.phases in set(self.compiles_in) - self.compiled_in:
                self.compiled_in.add(self.phases)
                took += COMPILING_S
            await asyncio.sleep(took)
            mode = "full" if not prompts else "piecewise" if tokens <= CAPTURED else "eager"
            row = (tokens, len(batch), len(prompts))
            at = [begin + share * took for share in (0.0, 0.05, 0.1, 0.2, 0.6, 0.6, 0.8, 0.9, 1.0)]
            self.scheduler += [["schedule", at[0], at[1], *row], ["update", at[7], at[8], *row]]
            if self.is_stamped:
                drafting = {"draft": [1, 0.1 * took]} if self.drafts else {}
                self.worker.append([tokens, mode, *at[2:7], drafting])
            for request in batch:
                count = 1 if request.has_prompt else min(request.left, 1 + self.drafts)
                request.has_prompt = False
                request.left -= count
                request.outputs.put_nowait(count)
                if not request.left:
                    self.running.remove(request)

    async def collective_rpc(self, method: str) -> None:
        folder = Path(os.environ[FOLDER_VARIABLE])
        if method == "start_stamps":
            self.is_stamped = True
        elif method == "leave_stamps":
            with (folder / "scheduler-0.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in self.scheduler)
            self.scheduler.clear()
            (folder / "worker-0-0.json").write_text(json.dumps(self.worker), encoding="utf-8")
            self.worker.clear()
            self.phases += 1

    def shutdown(self) -> None:
        self.is_shut_down = True


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``import vllm`` find the stand-in, in this test."""
    FakeEngine.made.clear()
    names = ("vllm", "vllm.engine", "vllm.engine.arg_utils", "vllm.inputs", "vllm.sampling_params", "vllm.v1")
    modules = {name: ModuleType(name) for name in (*names, "vllm.v1.engine", "vllm.v1.engine.async_llm")}
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"SamplingParams": SimpleNamespace},
        "vllm.inputs": {"TokensPrompt": SimpleNamespace},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA=0)},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": dict},
        "vllm.v1.engine.async_llm": {"AsyncLLM": SimpleNamespace(from_engine_args=FakeEngine)},
    }
    for name, module in modules.items():
        vars(module).update(contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
