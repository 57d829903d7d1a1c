"""A vLLM 0.24 engine with stamps inside: its client in this process, the core in another, workers in the core's process
or, on several GPUs, in their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from aicb.profiling.engine_host.norms import norm_kernel
from aicb.profiling.engine_host.served import EngineUnderTest, Recording

OWN = "aicb.profiling.engine_host.vllm_stamping"
READ_BACK = {
    "cache_config": ("enable_prefix_caching", "gpu_memory_utilization"),
    "parallel_config": ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel"),
    "scheduler_config": ("max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "async_scheduling"),
}
"""Arguments as the engine has understood them, by the section of its configuration."""


class VllmEngine:
    """vLLM's asynchronous engine."""

    packages: tuple[str, ...] = ("vllm", "torch", "triton")

    def __init__(self, under_test: EngineUnderTest, most_requests: int) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = {
            "model": under_test.folder,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "tensor_parallel_size": under_test.tp,
            "data_parallel_size": under_test.dp,
            "enable_expert_parallel": under_test.shares_experts,
            "max_model_len": 8192,
            "max_num_seqs": most_requests,
            "enable_prefix_caching": False,
            "disable_log_stats": True,
            "scheduler_cls": f"{OWN}.StampingScheduler",
            "worker_extension_cls": f"{OWN}.StampingWorker",
            **({"speculative_config": under_test.drafts.arguments()} if under_test.drafts else {}),
            **(under_test.arguments or {}),
        }
        self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def outputs(self, prompt: Sequence[int], tokens: int, name: str) -> AsyncIterator[int]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=tokens,
            min_tokens=tokens,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for output in self._engine.generate(TokensPrompt(prompt_token_ids=list(prompt)), sampling, name):
            yield len(output.outputs[0].token_ids)

    async def call(self, what: str) -> list[Any]:
        return list(await self._engine.collective_rpc(what) or ())

    def read_back(self) -> Recording:
        config = self._engine.vllm_config
        args = {
            name: getattr(getattr(config, section), name)
            for section, names in READ_BACK.items()
            for name in names
            if hasattr(getattr(config, section), name)
        }
        is_one = args.get("tensor_parallel_size", 1) * args.get("data_parallel_size", 1) == 1
        has_own = is_one or not config.parallel_config.disable_custom_all_reduce
        return {
            "args": args | {"max_model_len": config.model_config.max_model_len},
            "kv_blocks": [config.cache_config.num_gpu_blocks, config.cache_config.block_size],
            "collectives": "vllm" if has_own else "nccl",
            "norm_kernel": norm_kernel(config),
        }

    def shutdown(self) -> None:
        self._engine.shutdown()
