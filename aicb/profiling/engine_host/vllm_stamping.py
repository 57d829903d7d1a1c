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

from aicb.profiling.engine_host import vllm_loader  # noqa: F401  (the worker's process gets to know the load format)
from aicb.profiling.engine_host.served import FOLDER_VARIABLE


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
        tokens, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        if tokens:
            prompts = sum(count - len(drafts.get(name, ())) > 1 for name, count in tokens.items())
            self._stamps.append([what, begin, end, sum(tokens.values()), len(tokens), prompts])

    def _write(self) -> None:
        rank = self.vllm_config.parallel_config.data_parallel_index
        path = os.path.join(os.environ[FOLDER_VARIABLE], f"scheduler-{rank}.jsonl")
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._stamps)
        self._stamps.clear()


class StampingWorker:
    """What is added to each worker of vLLM.

    Rows, one a step: tokens, graph mode, and when it began, the forward pass began and ended, sampling began and ended;
    then calls and seconds within the step of what `CALLS` names.
    """

    def start_stamps(self) -> None:
        """Begins to note steps; the engine has to be idle."""
        self.stamped_steps: list[list[Any]] = []
        runner = self.model_runner  # type: ignore[attr-defined]
        self._stamp_steps(runner)
        for owner, name, mode in _forward_passes(runner):
            self._stamp_forward(owner, name, mode)
        for what, owner, name in _named_calls():
            self._stamp_call(what, owner, name)

    def leave_stamps(self) -> None:
        """Writes the steps since the last call; the name of the file says of which worker."""
        taken, self.stamped_steps = self.stamped_steps, []
        path = os.path.join(os.environ[FOLDER_VARIABLE], f"worker-{self._place()}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(taken, file)

    def _place(self) -> str:
        """Data-parallel rank, and rank within it."""
        parallel = self.vllm_config.parallel_config  # type: ignore[attr-defined]
        return f"{parallel.data_parallel_index}-{self.rank}"  # type: ignore[attr-defined]

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
            row = [scheduler_output.total_num_scheduled_tokens, "none", perf_counter(), 0.0, 0.0, 0.0, 0.0, {}]
            if row[0]:
                self.stamped_steps.append(row)
            return execute(scheduler_output, *args, **kwargs)

        def stamped_sample(*args: Any, **kwargs: Any) -> Any:
            begin = perf_counter()
            sampled = sample(*args, **kwargs)
            if self.stamped_steps and not self.stamped_steps[-1][5]:
                self.stamped_steps[-1][5:7] = [begin, perf_counter()]
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

    def _stamp_call(self, what: str, owner: Any, name: str) -> None:
        run: Callable[..., Any] = getattr(owner, name)

        def stamped(*args: Any, **kwargs: Any) -> Any:
            begin = perf_counter()
            returned = run(*args, **kwargs)
            if self.stamped_steps and not self.stamped_steps[-1][6]:
                noted = self.stamped_steps[-1][7].setdefault(what, [0, 0.0])
                noted[0] += 1
                noted[1] += perf_counter() - begin
            return returned

        setattr(owner, name, stamped)


CALLS = ("agree", "all_reduce", "all_gather", "reduce_scatter", "attention", "experts", "draft")
"""Noted by themselves: agreeing on padding and graphs among data-parallel ranks; launching, outside graphs,
collectives, attention, and experts with the collectives that they ask for; drafting, which is part of sampling."""


def _named_calls() -> list[tuple[str, Any, str]]:
    """(what, owner, function) of `CALLS`."""
    import vllm.v1.worker.gpu.model_runner as second_runner
    import vllm.v1.worker.gpu_model_runner as first_runner
    from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl
    from vllm.v1.worker.gpu.spec_decode.autoregressive.speculator import AutoRegressiveSpeculator

    return [
        ("agree", first_runner, "coordinate_batch_across_dp"),
        ("agree", second_runner, "dispatch_cg_and_sync_dp"),
        ("all_reduce", CudaCommunicator, "all_reduce"),
        ("all_gather", CudaCommunicator, "all_gatherv"),
        ("reduce_scatter", CudaCommunicator, "reduce_scatterv"),
        ("attention", FlashAttentionImpl, "forward"),
        ("experts", MoERunner, "_forward_impl"),
        ("draft", first_runner.GPUModelRunner, "propose_draft_token_ids"),
        ("draft", AutoRegressiveSpeculator, "propose"),
    ]


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
