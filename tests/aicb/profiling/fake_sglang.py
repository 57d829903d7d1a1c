"""A stand-in for SGLang's engine: steps that take made-up times, with the stamps of a real one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from aicb.profiling.engine_host.served import FOLDER_VARIABLE

DECODE_S, TOKEN_S = 2e-3, 1e-6
"""Of a step, and of each token of a prompt in it; half of it is launching."""
GRAPHS = [512, 1024]


class Request:
    def __init__(self, tokens: int, outputs: int) -> None:
        self.tokens, self.outputs, self.shown = tokens, outputs, 0
        self.results: asyncio.Queue[int] = asyncio.Queue()


class FakeSglang:
    """One engine; outputs count all tokens so far, as SGLang's do."""

    made: ClassVar[list[FakeSglang]] = []
    run_scheduler_process_func: Any = None

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.server_args = SimpleNamespace(
            mem_fraction_static=0.9,
            chunked_prefill_size=8192,
            ep_size=1,
            page_size=1,
            flashinfer_allreduce_fusion_backend="auto",
            disable_radix_cache=False,
            max_running_requests=arguments["max_running_requests"],
            context_length=arguments["context_length"],
            cuda_graph_config=SimpleNamespace(prefill=SimpleNamespace(backend="breakable", bs=GRAPHS)),
        )
        self._scheduler_init_result = SimpleNamespace(scheduler_infos=[{"max_total_num_tokens": 800_000}])
        self.running: list[Request] = []
        self.rows: list[list[Any]] = []
        self.steps: list[list[Any]] = []
        self.called: list[str] = []
        self.task: asyncio.Task[None] | None = None
        FakeSglang.made.append(self)

    async def async_generate(self, *, input_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
        return self._outputs(Request(len(input_ids), sampling_params["max_new_tokens"]))

    async def _outputs(self, request: Request) -> AsyncIterator[dict[str, Any]]:
        now = perf_counter()
        self.rows.append(["add", now, now + 1e-6, request.tokens, 1, 1])
        self.running.append(request)
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._run())
        shown = 0
        while shown < request.outputs:
            shown = await request.results.get()
            yield {"meta_info": {"completion_tokens": shown}}

    async def _run(self) -> None:
        while self.running:
            prompts = [request for request in self.running if not request.shown]
            batch = prompts or list(self.running)  # batches extend or decode
            tokens = sum(each.tokens for each in prompts) or len(batch)
            begin, took = perf_counter(), DECODE_S + TOKEN_S * (tokens if prompts else 0)
            await asyncio.sleep(took)
            shape = (tokens, len(batch), len(prompts))
            at = [begin + share * took for share in (0.0, 0.05, 0.1, 0.2, 0.7, 0.8, 0.9, 1.0)]
            self.rows += [["schedule", at[0], at[1], *shape], ["update", at[6], at[7], *shape]]
            mode = "full" if tokens <= GRAPHS[-1] or not prompts else "eager"
            self.steps.append([tokens, mode, *at[2:5], at[5], at[5], {}, 0.6 * took])
            for request in batch:
                request.shown += 1
                request.results.put_nowait(request.shown)
                if request.shown == request.outputs:
                    self.running.remove(request)

    def collective_rpc(self, method: str) -> None:
        self.called.append(method)
        if method == "leave_stamps":
            folder = Path(os.environ[FOLDER_VARIABLE])
            with (folder / "scheduler-0.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in self.rows)
            (folder / "worker-0-0.json").write_text(json.dumps(self.steps), encoding="utf-8")
            self.rows.clear()
            self.steps.clear()

    def shutdown(self) -> None:
        self.called.append("shutdown")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``import sglang`` find the stand-in, in this test."""
    FakeSglang.made.clear()
    own = "aicb.profiling.engine_host.sglang_stamping"
    names = ("sglang", "sglang.srt", "sglang.srt.entrypoints", "sglang.srt.entrypoints.engine", own)
    contents: dict[str, dict[str, Any]] = {
        "sglang.srt.entrypoints.engine": {"Engine": FakeSglang},
        own: {"run_scheduler": print},
    }
    for name in names:
        module = ModuleType(name)
        vars(module).update(contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)
