"""Stamps inside vLLM 0.24: a scheduler and a part of a worker that note when each piece of a step begins and ends.

vLLM takes both by name (``scheduler_cls``, ``worker_extension_cls``), so that nothing of it is changed. All stamps are
seconds of the host's monotonic clock, which its processes share. A stamp costs less than a microsecond; nothing is
written or sent while requests run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

FOLDER_VARIABLE = "AICB_HOST_STAMPS"
"""Environment variable: the folder that a scheduler leaves its stamps in."""


class StampingScheduler(AsyncScheduler):  # type: ignore[misc]
    """A scheduler that notes ``add``, ``schedule`` and ``update`` of batches that are not empty.

    Rows: what, begin, end, tokens, requests, requests still in their prompt. Written whenever no request is left.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stamps: list[list[Any]] = []

    def add_request(self, request: Any) -> None:
        begin = perf_counter()
        super().add_request(request)
        self._stamps.append(["add", begin, perf_counter(), request.num_prompt_tokens, 1, 1])

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        begin = perf_counter()
        output = super().schedule(*args, **kwargs)
        end = perf_counter()
        self._note("schedule", begin, end, output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        begin = perf_counter()
        updated = super().update_from_output(scheduler_output, model_runner_output)
        self._note("update", begin, perf_counter(), scheduler_output)
        if not self.has_unfinished_requests():
            self._write()
        return updated

    def _note(self, what: str, begin: float, end: float, output: Any) -> None:
        tokens = output.num_scheduled_tokens
        if tokens:
            prompts = sum(count > 1 for count in tokens.values())
            self._stamps.append([what, begin, end, sum(tokens.values()), len(tokens), prompts])

    def _write(self) -> None:
        path = os.path.join(os.environ[FOLDER_VARIABLE], f"scheduler-{os.getpid()}.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._stamps)
        self._stamps.clear()


class StampingWorker:
    """What is added to each worker of vLLM.

    Rows, one a step: tokens, graph mode, and when it began, the forward pass began and ended, sampling began and ended.
    """

    def start_stamps(self) -> None:
        """Begins to note steps; the engine has to be idle."""
        self.stamped_steps: list[list[Any]] = []
        runner = self.model_runner  # type: ignore[attr-defined]
        self._stamp_steps(runner)
        for owner, name, mode in _forward_passes(runner):
            self._stamp_forward(owner, name, mode)

    def take_stamps(self) -> list[list[Any]]:
        """Steps since the last call."""
        taken, self.stamped_steps = self.stamped_steps, []
        return taken

    def start_trace(self) -> None:
        """Begins a trace of launches with torch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        self.trace = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self.trace.__enter__()

    def end_trace(self) -> dict[str, Any]:
        """Calls of CUDA's that launch and kernels since then, by name."""
        import torch

        torch.cuda.synchronize()
        self.trace.__exit__(None, None, None)
        calls: Counter[str] = Counter()
        kernels: Counter[str] = Counter()
        for event in self.trace.events():
            if "Launch" in event.name:
                calls[event.name] += 1
            elif str(event.device_type).endswith("CUDA"):
                kernels[event.name[:160]] += 1
        return {"launches": dict(calls), "kernels": dict(kernels)}

    def _stamp_steps(self, runner: Any) -> None:
        execute, sample = runner.execute_model, runner.sample_tokens

        def stamped_execute(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            row = [scheduler_output.total_num_scheduled_tokens, "none", perf_counter(), 0.0, 0.0, 0.0, 0.0]
            if row[0]:
                self.stamped_steps.append(row)
            return execute(scheduler_output, *args, **kwargs)

        def stamped_sample(*args: Any, **kwargs: Any) -> Any:
            begin = perf_counter()
            sampled = sample(*args, **kwargs)
            if self.stamped_steps and not self.stamped_steps[-1][5]:
                self.stamped_steps[-1][5:] = [begin, perf_counter()]
            return sampled

        runner.execute_model, runner.sample_tokens = stamped_execute, stamped_sample

    def _stamp_forward(self, owner: Any, name: str, mode: str) -> None:
        run: Callable[..., Any] = getattr(owner, name)

        def stamped(*args: Any, **kwargs: Any) -> Any:
            row = self.stamped_steps[-1] if self.stamped_steps else None
            is_outermost = row is not None and not row[3]
            if row is not None and is_outermost:
                row[1], row[3] = mode or _mode_of_context(), perf_counter()
            passed = run(*args, **kwargs)
            if row is not None and is_outermost:
                row[4] = perf_counter()
            return passed

        setattr(owner, name, stamped)


def _forward_passes(runner: Any) -> list[tuple[Any, str, str]]:
    """(owner, method, graph mode) of what runs a forward pass in either runner; mode "" is the context's."""
    if hasattr(runner, "_model_forward"):
        return [(runner, "_model_forward", "")]
    manager = runner.cudagraph_manager
    graphs = [(manager, "run_fullgraph", "full"), (manager, "run_pw_graph", "piecewise")] if manager else []
    return [*graphs, (runner.model, "forward", "eager")]


def _mode_of_context() -> str:
    from vllm.forward_context import get_forward_context

    mode = str(get_forward_context().cudagraph_runtime_mode.name).lower()
    return "eager" if mode == "none" else mode
