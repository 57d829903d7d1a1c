#!/usr/bin/env python3
"""Times NCCL collectives on the GPUs of one node, with forced algorithms and protocols, eager and in CUDA graphs.

    python scripts/measure_nccl.py -o DIR [--ranks 4 2] [--seconds 150]

Writes DIR/nccl.csv (ranks, op, algorithm, protocol, mode, bytes, time_us, p10_us, p90_us, calls) and DIR/nccl.json
(versions, GPUs, topology, settings). Needs torch and NCCL; one process per GPU calls NCCL directly.

Sizes are those of nccl-tests; ``incast`` is every other rank sending that many bytes to rank 0. A sample is a run of
back-to-back calls between two CUDA events, in ``graph`` mode one replay of a captured graph; ``time_us`` is the median
over samples of the mean over ranks, per call. Data are bf16, out of place. Algorithm and protocol are forced by
NCCL_ALGO and NCCL_PROTO, ``auto`` is NCCL's choice without NVLS (NCCL_NVLS_ENABLE=0).
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

SIZES = [1 << k for k in range(10, 30)]
BF16, SUM = 9, 0  # ncclBfloat16, ncclSum of nccl.h
ELEMENT_BYTES = 2
SAMPLES = 15
MOST_CALLS = 20  # per sample
SAMPLE_US = 1500  # aim for the length of a sample
FIELDS = ("ranks", "op", "algorithm", "protocol", "mode", "bytes", "time_us", "p10_us", "p90_us", "calls")


class Series(NamedTuple):
    op: str
    algorithm: str
    protocol: str
    mode: str


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


class Nccl:
    """The calls of libnccl that are timed; every error raises."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_library_path())

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def version(self) -> str:
        code = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(code))
        return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"


def _library_path() -> str:
    """The libnccl that torch has loaded into this process, else the one of the system."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return next((line.split()[-1] for line in maps if "libnccl.so" in line), "libnccl.so.2")


def every_series() -> list[Series]:
    """In order of importance: graphs before eager calls, all_reduce first."""
    rings = [("ring", protocol) for protocol in ("ll", "ll128", "simple")]
    trees = [("tree", protocol) for protocol in ("ll", "ll128", "simple")]
    forced = {"all_reduce": rings + trees, "all_gather": rings, "reduce_scatter": rings, "broadcast": rings}
    alone = ("all_to_all", "send_recv", "incast")
    graphs = [Series(op, *pair, "graph") for op, pairs in forced.items() for pair in [*pairs, ("auto", "auto")]]
    graphs += [Series(op, "auto", "auto", "graph") for op in alone]
    return graphs + [Series(op, "auto", "auto", "eager") for op in (*forced, *alone)]


class Rank:
    """One rank of the communicators, on its own GPU."""

    def __init__(self, rank: int, most_bytes: int) -> None:
        import torch

        self.rank, self.nccl, self.torch = rank, Nccl(), torch
        torch.cuda.set_device(rank)
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.source, self.target = (
            torch.ones(most_bytes // ELEMENT_BYTES, dtype=torch.bfloat16, device="cuda") for _ in range(2)
        )
        self._communicators: dict[tuple[int, str, str], ctypes.c_void_p] = {}

    def communicator(self, ranks: int, algorithm: str, protocol: str) -> ctypes.c_void_p:
        """Made once per set of ranks and environment; every one of these ranks must ask for it in the same order."""
        key = (ranks, algorithm, protocol)
        if key not in self._communicators:
            for name, value in (("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)):
                os.environ.pop(name, None)
                if value != "auto":
                    os.environ[name] = {"ll": "LL", "ll128": "LL128"}.get(value, value.capitalize())
            handle, unique = ctypes.c_void_p(), UniqueId()
            if self.rank == 0:
                self.nccl.call("ncclGetUniqueId", ctypes.byref(unique))
            shared = [bytes(unique)]
            self.torch.distributed.broadcast_object_list(shared, src=0)
            unique = UniqueId.from_buffer_copy(shared[0])
            if self.rank < ranks:
                self.nccl.call("ncclCommInitRank", ctypes.byref(handle), ranks, unique, self.rank)
            self._communicators[key] = handle
        return self._communicators[key]

    def operation(self, op: str, size_bytes: int, ranks: int, handle: ctypes.c_void_p) -> Callable[[], None]:
        """A function that issues one operation on the current stream."""
        count, part = size_bytes // ELEMENT_BYTES, size_bytes // ELEMENT_BYTES // ranks
        send, receive = ctypes.c_void_p(self.source.data_ptr()), ctypes.c_void_p(self.target.data_ptr())
        call, tail = self.nccl.call, (handle, ctypes.c_void_p(self.stream.cuda_stream))

        match op:
            case "all_reduce":
                return lambda: call("ncclAllReduce", send, receive, ctypes.c_size_t(count), BF16, SUM, *tail)
            case "all_gather":
                return lambda: call("ncclAllGather", send, receive, ctypes.c_size_t(part), BF16, *tail)
            case "reduce_scatter":
                return lambda: call("ncclReduceScatter", send, receive, ctypes.c_size_t(part), BF16, SUM, *tail)
            case "broadcast":
                return lambda: call("ncclBroadcast", send, receive, ctypes.c_size_t(count), BF16, 0, *tail)
            case _:
                messages = list(self._messages(op, size_bytes, ranks))

        def exchange() -> None:
            call("ncclGroupStart")
            for name, pointer, elements, peer in messages:
                call(name, ctypes.c_void_p(pointer), ctypes.c_size_t(elements), BF16, peer, *tail)
            call("ncclGroupEnd")

        return exchange

    def _messages(self, op: str, size_bytes: int, ranks: int) -> Iterator[tuple[str, int, int, int]]:
        """(call, address, elements, peer) of this rank."""
        source, target = self.source.data_ptr(), self.target.data_ptr()
        part = size_bytes // ELEMENT_BYTES // ranks
        match op:
            case "all_to_all":
                for peer in range(ranks):
                    offset = peer * part * ELEMENT_BYTES
                    yield "ncclSend", source + offset, part, peer
                    yield "ncclRecv", target + offset, part, peer
            case "send_recv":
                yield "ncclSend", source, size_bytes // ELEMENT_BYTES, (self.rank + 1) % ranks
                yield "ncclRecv", target, size_bytes // ELEMENT_BYTES, (self.rank - 1) % ranks
            case "incast" if self.rank > 0:
                yield "ncclSend", source, size_bytes // ELEMENT_BYTES, 0
            case "incast":
                for peer in range(1, ranks):
                    yield "ncclRecv", target + (peer - 1) * size_bytes, size_bytes // ELEMENT_BYTES, peer
            case _:
                raise ValueError(op)

    def sample_us(self, issue: Callable[[], None], calls: int, samples: int) -> list[float]:
        """Time per call of each sample; ``issue`` issues all calls of one."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
        events[0].record(self.stream)
        for event in events[1:]:
            issue()
            event.record(self.stream)
        self.stream.synchronize()
        return [1e3 * a.elapsed_time(b) / calls for a, b in pairwise(events)]

    def time_us(self, series: Series, size_bytes: int, ranks: int, handle: ctypes.c_void_p) -> tuple[list[float], int]:
        """Samples of this rank, and the calls in each."""
        once = self.operation(series.op, size_bytes, ranks, handle)
        self.sample_us(once, 1, 2)
        guess = max(self.sample_us(once, 1, 3))
        if series.op == "incast":  # ranks that only send finish earlier
            guess = max(guess, 3 * size_bytes / 300e3)
        calls = int(min(MOST_CALLS, max(1, SAMPLE_US // max(guess, 1))))
        calls = self._agreed(calls, ranks)

        def issue() -> None:
            for _ in range(calls):
                once()

        if series.mode == "graph":
            graph = self.torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="relaxed")
            issue()
            graph.capture_end()
            issue = graph.replay
        self.sample_us(issue, calls, 2)
        return self.sample_us(issue, calls, SAMPLES), calls

    def _agreed(self, calls: int, ranks: int) -> int:
        """Rank 0's number of calls, for all."""
        shared = [calls]
        self.torch.distributed.broadcast_object_list(shared, src=0, group=self.groups[ranks])
        return int(shared[0])

    groups: dict[int, Any]


def check_sum(me: Rank, ranks: int, handle: ctypes.c_void_p) -> None:
    """An all_reduce of ones gives the number of ranks everywhere."""
    me.source.fill_(1)
    me.operation("all_reduce", 1 << 20, ranks, handle)()
    me.stream.synchronize()
    found = me.target[: (1 << 20) // ELEMENT_BYTES]
    assert bool((found == ranks).all()), f"rank {me.rank}: expected {ranks} everywhere"


def work(rank: int, world: int, rank_counts: list[int], sizes: list[int], seconds: float, folder: str) -> None:
    """One rank; rank 0 writes the table."""
    import torch
    import torch.distributed as dist

    begin = time.monotonic()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    me = Rank(rank, max(sizes) * world)
    me.groups = {n: dist.new_group(list(range(n))) for n in rank_counts}
    table = Path(folder) / "nccl.csv"
    if rank == 0:
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(FIELDS)
    for series in every_series():
        for ranks in rank_counts:
            handle = me.communicator(ranks, series.algorithm, series.protocol)
            if rank < ranks:
                if series.op == "all_reduce" and series.mode == "graph":
                    check_sum(me, ranks, handle)
                _measure_series(me, series, ranks, sizes, table)
        late = torch.tensor([int(time.monotonic() - begin > seconds)])
        dist.broadcast(late, src=0)
        if bool(late):
            break
    dist.barrier()
    if rank == 0:
        _describe(me, folder, world)
    os._exit(0)  # destroying 14 communicators takes longer than it is worth


def _measure_series(me: Rank, series: Series, ranks: int, sizes: list[int], table: Path) -> None:
    import numpy as np

    handle = me.communicator(ranks, series.algorithm, series.protocol)
    rows = []
    for size_bytes in sizes:
        samples, calls = me.time_us(series, size_bytes, ranks, handle)
        everyone: list[list[float]] = [[]] * ranks
        me.torch.distributed.all_gather_object(everyone, samples, group=me.groups[ranks])
        busy = everyone[:1] if series.op == "incast" else everyone  # senders finish before the receiver
        mean = np.mean(busy, axis=0)
        p10, p50, p90 = (f"{value:.3f}" for value in np.percentile(mean, (10, 50, 90)))
        rows.append(
            (ranks, series.op, series.algorithm, series.protocol, series.mode, size_bytes, p50, p10, p90, calls)
        )
    if me.rank == 0:
        with table.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)


def _describe(me: Rank, folder: str, world: int) -> None:
    torch = me.torch
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    links = subprocess.run(["nvidia-smi", "nvlink", "--status", "-i", "0"], capture_output=True, text=True, check=False)
    topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False).stdout
    about = {
        "gpus": subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines(),
        "topology": topology.split("Legend")[0].splitlines(),
        "nvlinks_of_gpu_0": [line.strip() for line in links.stdout.splitlines() if "Link" in line],
        "nccl": me.nccl.version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "processes": world,
        "settings": {name: os.environ[name] for name in sorted(os.environ) if name.startswith("NCCL_")},
        "samples": SAMPLES,
        "data_type": "bfloat16",
        "date": time.strftime("%Y-%m"),
    }
    (Path(folder) / "nccl.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, help="folder of the table")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 2])
    parser.add_argument("--seconds", type=float, default=150, help="start no further series after so long")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    options = parser.parse_args()
    import torch.multiprocessing as processes

    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    Path(options.output).mkdir(parents=True, exist_ok=True)
    world = max(options.ranks)
    arguments = (world, options.ranks, options.sizes, options.seconds, options.output)
    processes.spawn(work, args=arguments, nprocs=world, join=True)


if __name__ == "__main__":
    main()
