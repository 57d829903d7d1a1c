"""Stamps inside SGLang: a scheduler that notes when each piece of a step begins and ends, and what it takes the GPU.

All stamps are seconds of the host's monotonic clock, which processes share. Nothing is written while requests run.
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from time import perf_counter
from typing import Any

import torch
from sglang.srt.managers import scheduler as scheduler_module
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_loader import loader

from aicb.profiling.engine_host.served import FOLDER_VARIABLE
from aicb.profiling.engine_host.weights import draw_weights


def run_scheduler(*arguments: Any, **named: Any) -> Any:
    """SGLang's process of a scheduler, with stamps and with weights of `aicb.profiling.engine_host.weights`."""
    loader.initialize_dummy_weights = draw_weights
    scheduler_module.Scheduler = StampingScheduler
    return scheduler_module.run_scheduler_process(*arguments, **named)


class StampingScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler that notes its steps, in the rows that `aicb.profiling.engine_host.vllm_stamping` has.

    Of the scheduler: ``add``, ``schedule`` and ``update``, begin, end, tokens, requests, requests in their prompt. Of
    the worker, one a step: tokens, mode (``full``: replayed from a graph, or ``eager``), when it began, the forward
    pass, with sampling, began and ended, twice when the step did, calls noted by themselves (none), and the pass on
    the GPU [s].
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._rows: list[list[Any]] = []
        self._steps: list[list[Any]] = []
        self._passes: deque[tuple[list[Any], Any, Any]] = deque()
        self._is_stamped = False
        self._trace: Any = None
        self._forward, self.model_worker.forward_batch_generation = (
            self.model_worker.forward_batch_generation,
            self._stamped_forward,
        )
        calls = self.ipc_channels.recv_from_rpc
        if self.ps.tp_rank != 0 and calls is not None:
            calls.close(linger=0)  # of data-parallel ranks: only calls that reach the first are handed to all

    def handle_rpc_request(self, recv_req: Any) -> Any:
        """The first rank alone answers, as the caller reads one answer."""
        answer = super().handle_rpc_request(recv_req)
        return answer if self.ps.tp_rank == 0 else None

    def process_input_requests(self, recv_reqs: Any) -> Any:
        begin = perf_counter()
        processed = super().process_input_requests(recv_reqs)
        if recv_reqs:
            for request in recv_reqs:
                if isinstance(request, TokenizedGenerateReqInput):
                    self._rows.append(["add", begin, perf_counter(), len(request.input_ids), 1, 1])
        return processed

    def get_next_batch_to_run(self, *arguments: Any, **named: Any) -> Any:
        begin = perf_counter()
        plan = super().get_next_batch_to_run(*arguments, **named)
        if plan.batch_to_run is not None:
            self._rows.append(["schedule", begin, perf_counter(), *_shape(plan.batch_to_run)])
        return plan

    def run_batch(self, batch: Any, *arguments: Any, **named: Any) -> Any:
        tokens, _, _ = _shape(batch)
        row = _row(tokens, perf_counter())
        self._steps.append(row)
        result = super().run_batch(batch, *arguments, **named)
        row[5] = row[6] = perf_counter()
        if getattr(result, "can_run_cuda_graph", False):
            row[1] = "full"
        return result

    def _stamped_forward(self, *arguments: Any, **named: Any) -> Any:
        row = self._steps[-1] if self._steps else _row(0, 0.0)  # a forward pass before any batch: warming up
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if self._is_stamped else (None, None)
        row[3] = perf_counter()
        if begin is not None:
            begin.record()
        result = self._forward(*arguments, **named)
        if end is not None:
            end.record()
            self._passes.append((row, begin, end))
        row[4] = perf_counter()
        return result

    def process_batch_result(self, batch: Any, *arguments: Any, **named: Any) -> Any:
        begin = perf_counter()
        processed = super().process_batch_result(batch, *arguments, **named)
        self._rows.append(["update", begin, perf_counter(), *_shape(batch)])
        while self._passes and self._passes[0][2].query():
            row, begun, ended = self._passes.popleft()
            row[8] = begun.elapsed_time(ended) * 1e-3
        return processed

    def start_stamps(self) -> None:
        """Begins to time passes on the GPU."""
        self._is_stamped = True

    def leave_stamps(self) -> None:
        """Writes the rows since the last call; names of files say of which ranks."""
        folder, rank = os.environ[FOLDER_VARIABLE], self.ps.dp_rank or 0
        if self.ps.attn_tp_rank == 0:
            with open(os.path.join(folder, f"scheduler-{rank}.jsonl"), "a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in self._rows)
        with open(os.path.join(folder, f"worker-{rank}-{self.ps.tp_rank}.json"), "w", encoding="utf-8") as file:
            json.dump(self._steps, file)
        self._rows.clear()
        self._steps.clear()
        self._passes.clear()

    def start_trace(self) -> None:
        """Begins a trace of launches with torch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        self._trace = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
        self._trace.__enter__()

    def end_trace(self) -> None:
        """Leaves calls of CUDA's that launch, kernels since then by name, and their times in order."""
        torch.cuda.synchronize()
        self._trace.__exit__(None, None, None)
        calls: Counter[str] = Counter()
        kernels: Counter[str] = Counter()
        times = []
        for event in self._trace.events():
            if "Launch" in event.name:
                calls[event.name] += 1
            elif str(event.device_type).endswith("CUDA"):
                kernels[event.name[:160]] += 1
                times.append([event.name[:200], event.time_range.start, event.time_range.elapsed_us()])
        folder = os.environ[FOLDER_VARIABLE]
        found = {"launches": dict(calls), "kernels": dict(kernels), "times_us": sorted(times, key=lambda row: row[1])}
        with open(os.path.join(folder, f"trace-{os.getpid()}.json"), "w", encoding="utf-8") as file:
            json.dump(found, file)


def _row(tokens: int, begin_s: float) -> list[Any]:
    """A worker's of a step that begins."""
    return [tokens, "eager", begin_s, 0.0, 0.0, 0.0, 0.0, {}, 0.0]


def _shape(batch: Any) -> tuple[int, int, int]:
    """Tokens, requests and requests in their prompt."""
    requests = len(batch.reqs)
    if batch.forward_mode.is_extend():
        return int(batch.extend_num_tokens), requests, requests
    return requests, requests, 0
