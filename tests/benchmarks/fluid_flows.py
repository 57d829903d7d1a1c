"""Cost of the fluid engine on one core: ``python -m tests.benchmarks.fluid_flows [--large]``.

Every line compares with a reference measured in the same run: solving the rates of all flows from scratch, once, times
the instants with a start or an end, at each of which a simulator without repair would solve them (for fewer flows as
they end, so the factor is an upper bound). CPU time of the process, the best of three runs where they are short;
memory is the process's peak so far.
"""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netsim import FlowGraph, Router, Topology, WireFormat, rail_optimized
from netsim.backends.fluid import FluidBackend

FAR_PS = 10**15
MS_PS = 10**9


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    make: Callable[[], tuple[Topology, FlowGraph]]
    wire: WireFormat | None = None
    rate_tolerance: float = 0


def dispatch(*, equal: bool) -> tuple[Topology, FlowGraph]:
    """Expert-parallel dispatch of 64 GPUs on 8 rails and 8 spines: 56 flows each to the GPUs of other servers."""
    topology = rail_optimized(8, spines=8)
    pairs = [(src, dst) for src in range(64) for dst in range(64) if src // 8 != dst // 8]
    sizes = [114_688] * len(pairs) if equal else np.random.default_rng(0).integers(50_000, 180_000, len(pairs)).tolist()
    return topology, FlowGraph.from_lists([s for s, _ in pairs], [d for _, d in pairs], sizes)


def random_pairs(gpus: int, flows: int, window_ps: int) -> tuple[Topology, FlowGraph]:
    """Flows of 0.5 to 1.5 MB between random GPUs; starts are uniform over the window, which is Poisson given their
    number."""
    rng = np.random.default_rng(0)
    src = rng.integers(0, gpus, flows)
    dst = (src + rng.integers(1, gpus, flows)) % gpus
    ready = np.sort(rng.integers(0, window_ps, flows)) if window_ps else np.zeros(flows, dtype=np.int64)
    graph = FlowGraph.from_lists(
        src.tolist(),
        dst.tolist(),
        rng.integers(500_000, 1_500_000, flows).tolist(),
        ready_ps=ready.tolist(),
        flow_label=list(range(flows)),
    )
    return rail_optimized(gpus // 8), graph


CASES = [
    Case("EP64 dispatch, equal sizes", lambda: dispatch(equal=True)),
    Case("EP64 dispatch, equal sizes, wire format", lambda: dispatch(equal=True), WireFormat()),
    Case("EP64 dispatch, unequal sizes", lambda: dispatch(equal=False)),
    Case("EP64 dispatch, unequal sizes, wire format", lambda: dispatch(equal=False), WireFormat()),
    Case("5,000 random over 1,024 GPUs, at once", lambda: random_pairs(1024, 5_000, 0)),
    Case("20,000 random over 1,024 GPUs, at once", lambda: random_pairs(1024, 20_000, 0)),
    Case("  same, rate_tolerance 0.001", lambda: random_pairs(1024, 20_000, 0), None, 1e-3),
    Case("100,000 random over 16,384 GPUs, at once", lambda: random_pairs(16_384, 100_000, 0)),
    Case("100,000 random over 16,384 GPUs, within 1 ms", lambda: random_pairs(16_384, 100_000, MS_PS)),
]
LARGE = [
    Case("100,000 random over 1,024 GPUs, at once", lambda: random_pairs(1024, 100_000, 0)),
    Case("  same, rate_tolerance 0.001", lambda: random_pairs(1024, 100_000, 0), None, 1e-3),
    Case("100,000 random over 1,024 GPUs, within 1 ms", lambda: random_pairs(1024, 100_000, MS_PS), None, 1e-3),
]


def cpu_seconds(case: Case, topology: Topology, graph: FlowGraph, until_ps: int) -> tuple[float, int]:
    """CPU seconds from submission until the clock is there, and the number of instants with a start or an end."""
    backend = FluidBackend(topology, case.wire, rate_tolerance=case.rate_tolerance)
    begin = time.process_time()
    handle = backend.submit(graph, 0)
    backend.advance(until_ps)
    seconds = time.process_time() - begin
    times = backend.flow_times(handle)
    instants = len(np.unique(times.start_ps)) + len(np.unique(times.end_ps))
    backend.close()
    return seconds, instants


def scratch_seconds(case: Case, topology: Topology, graph: FlowGraph) -> float:
    """CPU seconds to give all flows, at once, their first rates."""
    at_once = FlowGraph.from_lists(graph.src, graph.dst, graph.size_bytes, flow_label=graph.flow_label)
    backend = FluidBackend(topology, case.wire)
    backend.submit(at_once, 0)
    begin = time.process_time()
    backend.advance(0)
    return time.process_time() - begin


def measure(case: Case) -> None:
    topology, graph = case.make()
    runs = [cpu_seconds(case, topology, graph, FAR_PS)]
    runs += [cpu_seconds(case, topology, graph, FAR_PS) for _ in range(2) if runs[0][0] < 1]
    seconds, instants = min(runs)
    scratch = min(scratch_seconds(case, topology, graph) for _ in range(3))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{case.name:46} {len(graph):>7,} flows {seconds * 1e3:10.2f} ms"
        f" {seconds / instants * 1e6:8.2f} µs per instant;"
        f" from scratch {scratch * 1e3:7.2f} ms each, up to {scratch * instants / seconds:8,.0f}×;"
        f" peak {peak_mib:,.0f} MiB",
        flush=True,
    )


def measure_routing(gpus: int, flows: int) -> None:
    """Paths of random pairs, each asked for the first time, against asking again."""
    topology, graph = random_pairs(gpus, flows, 0)
    begin = time.process_time()
    router = Router(topology)
    setup = time.process_time() - begin
    rows = list(zip(graph.src.tolist(), graph.dst.tolist(), graph.flow_label.tolist(), strict=True))
    took = []
    for _ in range(2):
        begin = time.process_time()
        for row in rows:
            router.path_latency_ps(*row)
        took.append((time.process_time() - begin) / flows * 1e6)
    print(f"routing over {gpus:,} GPUs: setup {setup * 1e3:.1f} ms, {took[0]:.2f} µs per new path, {took[1]:.2f} known")


def main() -> None:
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, one core")
    for case in CASES + (LARGE if "--large" in sys.argv else []):
        measure(case)
    for gpus in (1024, 16_384):
        measure_routing(gpus, 100_000)


if __name__ == "__main__":
    main()
