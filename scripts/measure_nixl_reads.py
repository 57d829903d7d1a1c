#!/usr/bin/env python3
"""Measures what NIXL's transfers between two GPUs of a machine take, by the number, size and runs of their descriptors.

    python scripts/measure_nixl_reads.py reads.json
    python scripts/measure_nixl_reads.py reads.json --threads 0 --transports tcp,cuda_copy,self
    python scripts/measure_nixl_reads.py writes.json --write --threads 8

Needs two NVIDIA GPUs, PyTorch and the package nixl. One process owns 4 GiB of the second GPU, the other reads from it
as vLLM's NixlConnector does: descriptors of all pieces are prepared once, a transfer names those it reads and is polled
until it is done. Pieces leave a gap after each ``run``, so that NIXL merges those of a run alone. Costs of a connector
(`kv_transfer.connector.within_node`) follow: time over runs, of few and of many. With ``--write`` the process of the
first GPU writes to the second as SGLang's prefill instance does: a descriptor is one token's slot in one region of the
cache, and a chunk's slots adjoin in each of `REGIONS` regions.

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
MOST_SLOTS = 600_000
SIZES_BYTES = (16 << 10, 32 << 10, 128 << 10)
"""Blocks of 16 tokens of one layer have 16 to 32 KiB with keys, or values, of four and eight heads of 128 in bf16."""
COUNTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 16_384, 65_536)
RUNS = {1024: (2, 4, 16), 16_384: (2, 4, 16)}
SLOTS_BYTES = (1152, 2048)
"""A token's latent of DeepSeek-V3; its keys, or values, of eight heads of 128, in bf16."""
REGIONS = 72
"""Keys and values of 36 layers."""
CHUNKS = (1, 16, 64, 256, 1024, 4096, 8192)
"""Tokens of a chunk."""
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


def timed(pipe: Connection, threads: int, *, writes: bool) -> dict[str, Any]:
    """Reads from the other process, or writes to it."""
    import numpy as np
    import torch

    agent, here = agent_of("reader", 0, threads)
    metadata, there, owner_us = pipe.recv()
    peer = agent.add_remote_agent(metadata)
    launches_us, rows = {"before": [launch_us(), owner_us]}, []
    for size in SLOTS_BYTES if writes else SIZES_BYTES:
        pieces = min(MEMORY_BYTES // size, MOST_SLOTS if writes else MOST_PREPARED)

        def prepared(name: str, address: int, gpu: int, size: int = size, pieces: int = pieces) -> Any:
            table = np.full((pieces, 3), (0, size, gpu), dtype=np.uint64)
            table[:, 0] = np.uint64(address) + np.uint64(size) * np.arange(pieces, dtype=np.uint64)
            return agent.prep_xfer_dlist(name, agent.get_xfer_descs(table, "VRAM"))

        local, remote = prepared("NIXL_INIT_AGENT", here, 0), prepared(peer, there, 1)
        for count, run in _slots() if writes else _blocks():
            wanted = np.arange(count) + np.arange(count) // run
            if wanted[-1] < pieces:
                handles = local, remote, wanted
                rows.append([size, count, run, *_medians_us(agent, "WRITE" if writes else "READ", *handles)])
                print(json.dumps(rows[-1]), flush=True)
    pipe.send(None)
    launches_us["after"] = [launch_us(), pipe.recv()]
    return {"gpu": torch.cuda.get_device_name(), "launch_us": launches_us, "rows": rows}


def _blocks() -> list[tuple[int, int]]:
    """Pieces, and pieces of a run, of blocks as vLLM has them."""
    return [(count, run) for count in COUNTS for run in (1, *RUNS.get(count, ()))]


def _slots() -> list[tuple[int, int]]:
    """Likewise of chunks as SGLang has them; of 1,024 tokens also where slots adjoin less."""
    return [(REGIONS * tokens, tokens) for tokens in CHUNKS] + [(REGIONS * 1024, run) for run in (4, 16, 64, 256)]


def _medians_us(agent: Any, operation: str, local: Any, remote: Any, wanted: Any) -> list[float]:
    """To prepare a transfer, to post it, and until it is done after that; without the first."""
    times_us = []
    for _ in range(REPETITIONS):
        stamps = [time.perf_counter()]
        transfer = agent.make_prepped_xfer(operation, local, wanted, remote, wanted, notif_msg=b"done")
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
    parser.add_argument("--write", action="store_true", help="write, as SGLang does")
    parser.add_argument("--transports", default="all", help="UCX_TLS; without cuda_ipc, memory of the host is passed")
    arguments = parser.parse_args()
    os.environ["UCX_TLS"] = arguments.transports
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    owner_threads = 0 if arguments.write else arguments.threads  # SGLang's decode instance has none
    owner = context.Process(target=own_memory, args=(theirs, owner_threads), daemon=True)
    owner.start()
    stated = {"threads": arguments.threads, "transports": arguments.transports, "writes": arguments.write}
    found = {**stated, **timed(mine, arguments.threads, writes=arguments.write)}
    arguments.output.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
