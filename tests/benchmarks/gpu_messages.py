"""Messages between the memories of two GPUs of this machine, through UCX and through NCCL.

    python -m tests.benchmarks.gpu_messages -o FILE.json [--transports TLS] [--largest-bytes N]

UCX: single messages by `netsim.backends.rdma` (engine `ucx`, ``gpu`` of the hosts file), as `netsim calibrate-rdma`
measures them, after graphs of several sizes whose payloads are compared where they arrive. NCCL: torch's send and recv,
half of a round trip of the same size, 20 of them between two CUDA events; the median of seven. Needs UCX with CUDA,
torch, and two GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from netsim import FlowGraph
from netsim.backends.rdma.extension import load_engine
from netsim.backends.rdma.hosts import Hosts
from netsim.backends.rdma.message_times import measure_pair, octaves
from netsim.backends.rdma.session import Session

SMALLEST_BYTES = 1 << 10
REPEATS = 7
ROUND_TRIPS = 20
VERIFIED_BYTES = (0, 1, 1000, 4096, 65_536, 1_048_577, 100_000_000)


def hosts(transports: str | None) -> Hosts:
    """An agent for each GPU."""
    agents = [{"nodes": gpu, "gpu": gpu} for gpu in (0, 1)]
    return Hosts.model_validate({"agents": agents, "transports": transports, "progress": "spin"})


def verified(transports: str | None) -> dict[str, Any]:
    """What became of flows in both directions at once, whose payloads were compared."""
    sizes = VERIFIED_BYTES * 2
    graph = FlowGraph.from_lists([0, 1] * len(VERIFIED_BYTES), [1, 0] * len(VERIFIED_BYTES), sorted(sizes))
    with Session(hosts(transports), must_verify=True) as session:
        measured = session.execute(graph)
    return {
        "sizes_bytes": sorted(sizes),
        "failure": measured.failure,
        "statuses": sorted(set(measured.statuses())),
        "lanes": sorted(set(measured.lane)),
    }


def ucx_samples(transports: str | None, largest_bytes: int) -> dict[str, Any]:
    """Samples, and lines through them, in each direction."""
    sizes = octaves(largest_bytes, SMALLEST_BYTES)
    found = {}
    for nodes in ((0, 1), (1, 0)):
        with Session(hosts(transports)) as session:
            found[f"{nodes[0]} to {nodes[1]}"] = asdict(measure_pair(session, nodes, sizes, REPEATS))
    return found


def nccl_samples(rank: int, file: Path, sizes: list[int]) -> None:
    """Half round trips of send and recv, in microseconds, written by rank 0."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{file}.store", rank=rank, world_size=2)
    samples = []
    for size in sizes:
        buffer = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
        times = []
        for _ in range(REPEATS + 1):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.barrier()
            torch.cuda.synchronize()
            start.record()
            for _ in range(ROUND_TRIPS):
                if rank == 0:
                    dist.send(buffer, 1)
                    dist.recv(buffer, 1)
                else:
                    dist.recv(buffer, 0)
                    dist.send(buffer, 0)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / ROUND_TRIPS / 2)
        kept = times[1:]
        samples.append({"size_bytes": size, "median_us": float(np.median(kept)), "range_us": [min(kept), max(kept)]})
    if rank == 0:
        file.write_text(json.dumps(samples))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--transports", help="UCX_TLS; left out: what UCX prefers")
    parser.add_argument("--largest-bytes", type=int, default=1 << 30)
    given = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    tree = {
        "machine": {
            "gpus": [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())],
            "driver": nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").split()[0],
            "kernel": platform.release(),
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "ucx": load_engine("ucx").version(),
            "nvlinks_gpu_0": nvidia_smi("nvlink", "-s", "-i", "0").splitlines()[1:],
            "peer_access": torch.cuda.can_device_access_peer(0, 1),
        },
        "transports": given.transports,
        "verified": verified(given.transports),
    }
    write(given.output, tree)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nccl.json"
        sizes = list(octaves(given.largest_bytes, SMALLEST_BYTES))
        torch.multiprocessing.spawn(nccl_samples, (file, sizes), nprocs=2)
        tree["nccl"] = json.loads(file.read_text())
    write(given.output, tree)
    tree["ucx"] = ucx_samples(given.transports, given.largest_bytes)
    write(given.output, tree)


def write(file: Path, tree: dict[str, Any]) -> None:
    file.write_text(json.dumps(tree, indent=1) + "\n")


def nvidia_smi(*options: str) -> str:
    return subprocess.run(("nvidia-smi", *options), capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
