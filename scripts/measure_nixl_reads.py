#!/usr/bin/env python3
"""Measures what NIXL's reads between two GPUs of a machine take, by the number, size and runs of their descriptors.

    python scripts/measure_nixl_reads.py reads.json
    python scripts/measure_nixl_reads.py reads.json --threads 0 --transports tcp,cuda_copy,self

Needs two NVIDIA GPUs, PyTorch and the package nixl. One process owns 4 GiB of the second GPU, the other reads from it
as vLLM's NixlConnector does: descriptors of all pieces are prepared once, a transfer names those it reads and is polled
until it is done. Pieces leave a gap after each ``run``, so that NIXL merges those of a run alone. Costs of a connector
(`kv_transfer.connector.within_node`) follow: time over runs, of few and of many.

The file has one row per case: [bytes of a piece, pieces, pieces of a run, µs to prepare, to post, until done], all
medians, and the time of launches of both processes, before and after.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30
MOST_PREPARED = 150_000
SIZES_BYTES = (16 << 10, 32 << 10, 128 << 10)
"""Blocks of 16 tokens of one layer have 16 to 32 KiB with keys, or values, of four and eight heads of 128 in bf16."""
COUNTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 16_384, 65_536)
RUNS = {1024: (2, 4, 16), 16_384: (2, 4, 16)}
REPETITIONS = 7
LAUNCHES = 500


def agent_of(name: str, gpu: int, threads: int) -> tuple[Any, int]:
    """An agent with memory of one GPU, and the memory's address."""
    import torch
    from nixl._api import nixl_agent, nixl_agent_config

    torch.cuda.set_device(gpu)
    agent = nixl_agent(name, nixl_agent_config(num_threads=threads, capture_telemetry=True))
    memory = torch.randint(0, 255, (MEMORY_BYTES,), dtype=torch.uint8, device="cuda")
    agent.memory = memory  # lives as long
    agent.register_memory(agent.get_reg_descs([(memory.data_ptr(), MEMORY_BYTES, gpu, "")], "VRAM"), backends=["UCX"])
    return agent, memory.data_ptr()


def launch_us() -> float:
    """Time of a launch of a small kernel from Python; the median of five loops."""
    import torch

    numbers, times_us = torch.zeros(16, device="cuda"), []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            numbers.add_(1.0)
        times_us.append((time.perf_counter() - begin) / LAUNCHES * 1e6)
    return round(statistics.median(times_us), 2)


def own_memory(pipe: Connection, threads: int) -> None:
    """The process that is read from."""
    agent, address = agent_of("owner", 1, threads)
    pipe.send((agent.get_agent_metadata(), address, launch_us()))
    while not pipe.poll(0.002):
        agent.get_new_notifs()
    pipe.send(launch_us())


def read(pipe: Connection, threads: int) -> dict[str, Any]:
    """Reads from the other process."""
    import numpy as np
    import torch

    agent, here = agent_of("reader", 0, threads)
    metadata, there, owner_us = pipe.recv()
    peer = agent.add_remote_agent(metadata)
    launches_us, rows = {"before": [launch_us(), owner_us]}, []
    for size in SIZES_BYTES:
        pieces = min(MEMORY_BYTES // size, MOST_PREPARED)

        def prepared(name: str, address: int, gpu: int, size: int = size, pieces: int = pieces) -> Any:
            table = np.array([(address + size * piece, size, gpu) for piece in range(pieces)], dtype=np.uint64)
            return agent.prep_xfer_dlist(name, agent.get_xfer_descs(table, "VRAM"))

        local, remote = prepared("NIXL_INIT_AGENT", here, 0), prepared(peer, there, 1)
        for count in COUNTS:
            for run in (1, *RUNS.get(count, ())):
                wanted = np.arange(count) + np.arange(count) // run
                if wanted[-1] < pieces:
                    rows.append([size, count, run, *_medians_us(agent, local, remote, wanted)])
                    print(json.dumps(rows[-1]), flush=True)
    pipe.send(None)
    launches_us["after"] = [launch_us(), pipe.recv()]
    return {"gpu": torch.cuda.get_device_name(), "launch_us": launches_us, "rows": rows}


def _medians_us(agent: Any, local: Any, remote: Any, wanted: Any) -> list[float]:
    """To prepare a transfer, to post it, and until it is done after that; without the first."""
    times_us = []
    for _ in range(REPETITIONS):
        stamps = [time.perf_counter()]
        transfer = agent.make_prepped_xfer("READ", local, wanted, remote, wanted, notif_msg=b"read")
        stamps.append(time.perf_counter())
        agent.transfer(transfer)
        stamps.append(time.perf_counter())
        while (state := agent.check_xfer_state(transfer)) == "PROC":
            time.sleep(2e-5)
        stamps.append(time.perf_counter())
        if state != "DONE":
            raise SystemExit(f"a transfer of {len(wanted)} pieces ended as {state}")
        agent.release_xfer_handle(transfer)
        times_us.append([(stamps[i + 1] - stamps[i]) * 1e6 for i in range(3)])
        time.sleep(0.003)
    return [round(statistics.median(part), 1) for part in zip(*times_us[1:], strict=True)]


def main() -> int:
    """Runs all cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--threads", type=int, default=4, help="num_threads of NIXL's agents; vLLM's default is 4")
    parser.add_argument("--transports", default="all", help="UCX_TLS; without cuda_ipc, memory of the host is passed")
    arguments = parser.parse_args()
    os.environ["UCX_TLS"] = arguments.transports
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    owner = context.Process(target=own_memory, args=(theirs, arguments.threads), daemon=True)
    owner.start()
    found = {"threads": arguments.threads, "transports": arguments.transports, **read(mine, arguments.threads)}
    arguments.output.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
