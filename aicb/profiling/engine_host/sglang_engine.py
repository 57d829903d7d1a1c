"""An SGLang engine with stamps inside: client and tokenizer manager in this process, a scheduler with its worker in
another for each GPU."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from aicb.profiling.engine_host.served import FOLDER_VARIABLE, EngineUnderTest, Recording

READ_BACK = {
    "mem_fraction_static": "gpu_memory_utilization",
    "chunked_prefill_size": "max_num_batched_tokens",
    "attention_backend": "attention_backend",
    "moe_runner_backend": "moe_runner_backend",
    "fp8_gemm_runner_backend": "fp8_gemm_runner_backend",
    "sampling_backend": "sampling_backend",
    "page_size": "page_size",
}
"""Arguments that SGLang computes, by what vLLM calls them where it has them."""


class SglangEngine:
    """SGLang's engine as a library; a server adds HTTP to it."""

    packages: tuple[str, ...] = ("sglang", "sglang-kernel", "torch", "triton")

    def __init__(self, under_test: EngineUnderTest, most_requests: int) -> None:
        from sglang.srt.entrypoints.engine import Engine

        from aicb.profiling.engine_host.sglang_stamping import run_scheduler

        class StampedEngine(Engine):  # type: ignore[misc]
            run_scheduler_process_func = staticmethod(run_scheduler)

        gpus = under_test.tp * under_test.dp
        arguments = {
            "model_path": under_test.folder,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "tp_size": gpus,
            "dp_size": under_test.dp,
            "ep_size": gpus if under_test.shares_experts else 1,
            "enable_dp_attention": under_test.dp > 1,
            "context_length": 8192,
            "max_running_requests": most_requests,
            **(under_test.arguments or {}),
        }
        self._dp = under_test.dp
        self._tp = under_test.tp
        self._engine = StampedEngine(**arguments)

    async def outputs(self, prompt: Sequence[int], tokens: int, name: str) -> AsyncIterator[int]:
        sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0.0}
        shown = 0
        async for output in await self._engine.async_generate(
            input_ids=list(prompt), sampling_params=sampling, stream=True, rid=name
        ):
            now = output["meta_info"]["completion_tokens"]
            if now > shown:
                yield now - shown
                shown = now

    async def call(self, what: str) -> list[Any]:
        await asyncio.sleep(0.05)  # the scheduler ends with the last batch after its output has left
        self._engine.collective_rpc(what)
        folder = Path(os.environ[FOLDER_VARIABLE])
        return [json.loads(file.read_text()) for file in sorted(folder.glob("trace-*.json"))]

    def read_back(self) -> Recording:
        found = self._engine.server_args
        (info, *_) = self._engine._scheduler_init_result.scheduler_infos
        return {
            "args": {
                **{name: getattr(found, field) for field, name in READ_BACK.items() if hasattr(found, field)},
                "tensor_parallel_size": self._tp,
                "data_parallel_size": self._dp,
                "enable_expert_parallel": found.ep_size > 1,
                "enable_prefix_caching": not found.disable_radix_cache,
                "max_num_seqs": info.get("max_running_requests") or found.max_running_requests,
                "max_model_len": found.context_length,
                "prompt_graph_sizes": _prompt_graphs(found.cuda_graph_config),
            },
            "kv_blocks": [int(info["max_total_num_tokens"]) // found.page_size, found.page_size],
            "collectives": "sglang",
            "norm_kernel": _norm_kernel(found, self._tp),
        }

    def shutdown(self) -> None:
        self._engine.shutdown()


def _norm_kernel(arguments: Any, tp: int) -> str:
    """What runs norms after all-reduces (``aicb.operators.norm_kernel``), by ``ServerArgs``."""
    return "flashinfer" if tp > 1 and arguments.flashinfer_allreduce_fusion_backend else "apart"


def _prompt_graphs(config: Any) -> list[int]:
    """Tokens for which SGLang replays prompts (``CudaGraphConfig``)."""
    return [] if str(config.prefill.backend) == "disabled" else sorted(config.prefill.bs)
