#!/usr/bin/env python3
"""Times FlashInfer's all-reduce with residual addition and RMS norm, and vLLM's all-reduce alone, between 2 or 4 GPUs.

    python scripts/measure_flashinfer_all_reduce.py --ranks 2 -o FILE

Needs torch, vLLM 0.24 and FlashInfer 0.6.12; one process per GPU. FILE has rows of (kernel, hidden, tokens,
is_one_shot, times_us), as ``tests/data/flashinfer_all_reduce*.json``: bf16, 40 calls one after another in a CUDA graph,
microseconds per call of seven replays, sorted. vLLM's alone copies its operand into a registered buffer first, which
its captured graphs do without. FlashInfer's kernel is called as vLLM calls it
(``compilation/passes/fusion/allreduce_rms_fusion.py``), up to the sizes to which it does.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HIDDEN = (2048, 4096, 5120, 7168, 8192)
TOKENS = (*(1 << power for power in range(13)), 6144, 8192)
MOST_TOKENS = 8192
MIB = 1 << 20
UP_TO_BYTES = {2: (64 * MIB, 32 * MIB), 4: (2 * MIB, 2 * MIB)}
"""By ranks: to which vLLM calls it on Hopper, and as one-shot."""
ELEMENT_BYTES = 2
CALLS, REPLAYS = 40, 7
EARLY_LAUNCH_TOKENS = 16
PORT = "29511"


def measure(rank: int, ranks: int, output: str) -> None:
    """In the process of one GPU; rank 0 writes."""
    import flashinfer.comm as comm
    import torch
    import torch.distributed as dist
    from flashinfer.comm.mnnvl import TorchDistBackend
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT, RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=ranks)
    on_hosts = dist.new_group(backend="gloo")
    custom = CustomAllreduce(on_hosts, torch.device(f"cuda:{rank}"))

    def times_us(call: Callable[[], Any], capturing: Any) -> list[float]:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with capturing, torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        found = []
        for _ in range(REPLAYS):
            dist.barrier(group=on_hosts)
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found.append(round(begin.elapsed_time(end) / CALLS * 1e3, 2))
        return sorted(found)

    rows: list[list[Any]] = []
    fused_up_to_bytes, one_shot_up_to_bytes = UP_TO_BYTES[ranks]
    for hidden in HIDDEN:
        most = min(fused_up_to_bytes // (hidden * ELEMENT_BYTES), MOST_TOKENS)
        workspace = comm.create_allreduce_fusion_workspace(
            backend="trtllm",
            world_size=ranks,
            rank=rank,
            max_token_num=most,
            hidden_dim=hidden,
            dtype=torch.bfloat16,
            comm_backend=TorchDistBackend(group=dist.group.WORLD),
            group=dist.group.WORLD,
        )
        weights = torch.ones(hidden, dtype=torch.bfloat16, device="cuda")
        for tokens in TOKENS:
            summed = torch.randn(tokens, hidden, dtype=torch.bfloat16, device="cuda")
            residual, apart = torch.randn_like(summed), torch.empty_like(summed)
            is_one_shot = tokens * hidden * ELEMENT_BYTES <= one_shot_up_to_bytes
            ends_late = is_one_shot or tokens > EARLY_LAUNCH_TOKENS

            def fused(
                summed: Any = summed, residual: Any = residual, one: bool = is_one_shot, late: bool = ends_late
            ) -> None:
                comm.allreduce_fusion(
                    input=summed,
                    workspace=workspace,  # noqa: B023
                    pattern=comm.AllReduceFusionPattern.kARResidualRMSNorm,
                    launch_with_pdl=True,
                    residual_out=residual,
                    norm_out=summed,
                    residual_in=residual,
                    rms_gamma=weights,  # noqa: B023
                    rms_eps=1e-6,
                    layout_code=comm.QuantizationSFLayout.SWIZZLED_128x4,
                    use_oneshot=one,
                    fp32_acc=True,
                    trigger_completion_at_end=late,
                )

            if tokens <= most:
                rows.append(["fused", hidden, tokens, is_one_shot, times_us(fused, nullcontext())])
            if custom.should_custom_ar(summed):

                def alone(summed: Any = summed, apart: Any = apart) -> None:
                    custom.all_reduce(summed, out=apart, registered=False)

                rows.append(["custom", hidden, tokens, is_one_shot, times_us(alone, custom.capture())])
        if rank == 0:
            gpu = torch.cuda.get_device_name()
            columns = ["kernel", "hidden", "tokens", "is_one_shot", "times_us"]
            Path(output).write_text(json.dumps({"gpu": gpu, "columns": columns, "rows": rows}), encoding="utf-8")
    os._exit(0)  # FlashInfer's workspaces are shared: whoever frees them first ends the other


def main() -> None:
    import torch.multiprocessing as processes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--ranks", type=int, choices=sorted(UP_TO_BYTES), default=2)
    stated = parser.parse_args()
    processes.spawn(measure, args=(stated.ranks, stated.output), nprocs=stated.ranks)


if __name__ == "__main__":
    main()
