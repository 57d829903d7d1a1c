"""An executor for vLLM 0.24.0 that pretends to compute, and writes down when requests came in and tokens went out.

For ``scripts/measure_frontend.py``, which sets the environment: a step takes ``PRETENDED_STEP_S`` and
``PRETENDED_PREFILL_TOKEN_S`` for every prompt token, tokens are those of ``PRETENDED_TOKENS`` (a JSON list) one
after another, stamps are appended to ``PRETENDED_STAMPS``: ``in REQUEST TIME`` when the engine's process has received a
request, ``out TIME REQUESTS`` when tokens have been sampled. Times are of the monotonic clock, which all processes
share.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

FLUSH_EVERY_S = 0.3


class PretendingExecutor(Executor):  # type: ignore[misc]
    """Everything of vLLM but the GPU: the scheduler, the engine's process and the API server are its own."""

    supported_tasks = ("generate",)

    def _init_executor(self) -> None:
        self._step_s = float(os.environ["PRETENDED_STEP_S"])
        self._prefill_token_s = float(os.environ["PRETENDED_PREFILL_TOKEN_S"])
        self._tokens = itertools.cycle(json.loads(Path(os.environ["PRETENDED_TOKENS"]).read_text()))
        self._stamps = Path(os.environ["PRETENDED_STAMPS"]).open("a", buffering=1 << 20)  # noqa: SIM115
        self._flushed_s = time.monotonic()
        self._uncomputed: dict[str, int] = {}
        """Prompt tokens that have not been scheduled, of prompts that are not done."""
        unpack = EngineCoreProc.preprocess_add_request

        def stamped(core: Any, request: Any) -> Any:
            self._stamps.write(f"in {request.request_id} {time.monotonic():.6f}\n")
            return unpack(core, request)

        EngineCoreProc.preprocess_add_request = stamped

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False
    ) -> Any:
        return [None]

    def get_kv_cache_specs(self) -> Any:
        return [{"layer": FullAttentionSpec(block_size=32, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)}]

    def determine_available_memory(self) -> list[int]:
        return [2**34]

    def initialize_from_config(self, kv_cache_configs: Any) -> None: ...

    def check_health(self) -> None: ...

    def shutdown(self) -> None:
        self._stamps.flush()

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        began_s = time.monotonic()
        for new in scheduler_output.scheduled_new_reqs:
            self._uncomputed[new.req_id] = len(new.prompt_token_ids) - new.num_computed_tokens
        scheduled: dict[str, int] = scheduler_output.num_scheduled_tokens
        output = self._output(scheduled) if scheduled else EMPTY_MODEL_RUNNER_OUTPUT
        prefilled = sum(count for count in scheduled.values() if count > 1)
        duration_s = self._step_s + self._prefill_token_s * prefilled if scheduled else 0.0
        time.sleep(max(0.0, began_s + duration_s - time.monotonic()))
        self._stamp(output)
        if not non_block:
            return output
        future: Future[Any] = Future()
        future.set_result(output)
        return future

    def _output(self, scheduled: dict[str, int]) -> Any:
        tokens: list[list[int]] = []
        for name, count in scheduled.items():
            left = self._uncomputed.pop(name, 0) - count
            if left > 0:
                self._uncomputed[name] = left
            tokens.append([] if left > 0 else [next(self._tokens)])
        places = {name: place for place, name in enumerate(scheduled)}
        return ModelRunnerOutput(req_ids=list(scheduled), req_id_to_index=places, sampled_token_ids=tokens)

    def _stamp(self, output: Any) -> None:
        now_s = time.monotonic()
        names = [name for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=False) if tokens]
        if names:
            self._stamps.write(f"out {now_s:.6f} {' '.join(names)}\n")
        if now_s - self._flushed_s > FLUSH_EVERY_S:
            self._stamps.flush()
            self._flushed_s = now_s
