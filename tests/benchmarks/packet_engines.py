"""Speed, memory, setup, stepping and skipping of the packet engines: ``python -m tests.benchmarks.packet_engines``.

Links of 400 Gbit/s and 500 ns, packets of 4,096 B with headers of 48 B and an ACK for each, DCQCN. A packet hop is one
packet serialised on one link, ACKs included. The four loads are those on which ns-3-alibabacloud's release build was
measured, on one core of an AMD Zen 4 server: another machine, so that ratios are indicative. Rates are the best of
three runs, processor time.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from netsim import BackendUnavailable, FlowGraph, Topology, create_backend
from netsim.backends.packet.backend import PacketBackend
from netsim.roce.config import RoceConfig
from tests.validation.network_cases import MB, clos, expert_all_to_all, incast, permutation, rails, star

ALIBABACLOUD_MHOPS: Final = {"W1": 0.73, "W2": 1.07, "W3": 0.83, "W4": 0.57}
"""Million packet hops per second of ns-3-alibabacloud, release, 4,096 B."""
LOADS: Final[dict[str, tuple[str, Callable[[], tuple[Topology, FlowGraph]]]]] = {
    "W1": ("star of 16, incast of 20 MB", lambda: (star(16), incast(15, 20 * MB))),
    "W2": ("star of 16, permutation of 20 MB", lambda: (star(16), permutation(16, 20 * MB, 1))),
    "W3": ("Clos of 64, permutation of 5 MB", lambda: (clos(), permutation(64, 5 * MB, 1))),
    "W4": ("rails of 64, expert all-to-all", lambda: (rails(), expert_all_to_all())),
}
NEVER_PS: Final = 10**14


def backend_of(engine: str, topology: Topology, **config: Any) -> PacketBackend:
    roce = RoceConfig.model_validate({"header_bytes": 48, **config})
    return cast(PacketBackend, create_backend(engine, topology, roce))


def run(backend: PacketBackend, graph: FlowGraph) -> tuple[float, np.ndarray]:
    """Seconds of processor time, and the flows' ends."""
    begin = time.process_time()
    handle = backend.submit(graph, 0)
    while not any(c.flow is None for c in backend.advance(NEVER_PS)):
        pass
    return time.process_time() - begin, backend.flow_times(handle).end_ps


def print_rates(engine: str) -> None:
    for load, (name, make) in LOADS.items():
        topology, graph = make()
        best = 0.0
        for _ in range(3):
            backend = backend_of(engine, topology)
            seconds, _ends = run(backend, graph)
            best = max(best, backend.packet_hops() / seconds / 1e6)
            backend.close()
        ratio = best / ALIBABACLOUD_MHOPS[load]
        print(f"{engine:7} {load} {name:33} {best:6.2f} M hops/s {ratio:6.1f} x ns-3-alibabacloud", flush=True)


def memory_mib(field: str) -> float:
    """VmRSS, memory now, or VmHWM, its peak since `forget_peak`, of this process (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def set_up(engine: str, hosts: int) -> tuple[float, float, float]:
    """Seconds of setup, and peak MiB that setup, and with it a permutation of 1 MB messages, add.

    To be called in a process of its own.
    """
    leaves = 8 if hosts <= 512 else 128
    topology, graph = clos(hosts, leaves, leaves), permutation(hosts, MB, 1)
    forget_peak()
    before = memory_mib("VmRSS")
    begin = time.process_time()
    backend = backend_of(engine, topology)
    backend.submit(graph, 0)
    seconds = time.process_time() - begin
    built = memory_mib("VmHWM") - before
    while not any(c.flow is None for c in backend.advance(NEVER_PS)):
        pass
    return seconds, built, memory_mib("VmHWM") - before


def print_set_up(engine: str) -> None:
    for hosts in (512, 16_384):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            seconds, built, ran = pool.apply(set_up, (engine, hosts))
        print(f"{engine:7} Clos of {hosts:,}: setup {seconds:.2f} s, {built:.0f} MiB; permutation {ran:.0f} MiB")


def print_idle_steps(engine: str, steps: int = 200_000) -> None:
    backend = backend_of(engine, clos())
    begin = time.process_time()
    for at_ps in range(1, steps + 1):
        backend.advance(at_ps)
    print(f"{engine:7} idle advance: {(time.process_time() - begin) / steps * 1e9:.0f} ns")
    backend.close()


def print_skipping() -> None:
    cases = {
        "single flow": (clos(), FlowGraph.from_lists([0], [63], [256 * MB])),
        "permutation of 16": (star(16), permutation(16, 256 * MB, 1)),
        "incast 15:1": (star(16), incast(15, 256 * MB)),
    }
    for name, (topology, graph) in cases.items():
        for scheme in ("none", "dcqcn", "hpcc"):
            full, ends = run(backend_of("packet", topology, congestion_control=scheme), graph)
            backend = backend_of("packet", topology, congestion_control=scheme, skip_tolerance=0.01)
            short, skipped_ends = run(backend, graph)
            error = np.abs(skipped_ends / ends - 1).max()
            skipped = backend.skipped_ps() / int(skipped_ends.max())
            print(
                f"skipping, {name}, 256 MB, {scheme:5} {full / short:8.1f} x faster, "
                f"worst flow {100 * error:.3f} % off, {100 * skipped:.1f} % of the time skipped",
                flush=True,
            )


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for engine in ("packet", "ns3"):
        try:
            print_rates(engine)
        except BackendUnavailable as reason:
            print(f"{engine}: {reason}")
            continue
        print_set_up(engine)
        print_idle_steps(engine)
    print_skipping()


if __name__ == "__main__":
    main()
