"""Costs of launching: a null kernel, an empty event pair, a host launch, a node and a replay of a large graph."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from aicb.kernels.point import Point, point
from aicb.profiling.timing import CudaTimer, Spread, capture

GRAPH_NODES = 1000
_SAMPLES = 21


def launch_costs(timer: CudaTimer) -> list[tuple[Point, str, Spread, Spread | None]]:
    """(point, label, cold, warm) of each launch cost on the current CUDA device.

    A null kernel and an empty event pair are timed as any kernel is, so that they are the floor of its cold times.
    """
    tiny = torch.zeros(1, device="cuda")

    def null() -> None:
        tiny.zero_()

    for _ in range(20):
        null()
    stream = torch.cuda.Stream()
    few, many = capture([null], 10, stream), capture([null], GRAPH_NODES, stream)
    replays = [_replay_us(many) for _ in range(_SAMPLES)]
    in_graph = Spread.of([_events_us(few.replay) / 10 for _ in range(_SAMPLES)])
    return [
        (point("null_kernel", "", {}), "torch/null_kernel", timer.cold(null), in_graph),
        (point("empty_event_pair", "", {}), "empty_event_pair", timer.cold(lambda: None), None),
        (point("eager_launch_host", "", {}), "eager_launch_host", _spread(lambda: _eager_us(null)), None),
        (
            point("graph_node", "", {}),
            f"graph_{GRAPH_NODES}_null",
            Spread.of([d / GRAPH_NODES for _, d in replays]),
            None,
        ),
        (point("graph_replay_host", "", {}), f"graph_{GRAPH_NODES}_null", Spread.of([h for h, _ in replays]), None),
    ]


def _spread(sample: Callable[[], float]) -> Spread:
    return Spread.of([sample() for _ in range(_SAMPLES)])


def _events_us(run: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _eager_us(run: Callable[[], object], calls: int = 200) -> float:
    """Host time per launch; few enough calls that the launch queue does not fill."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    elapsed = (time.perf_counter() - began) * 1e6 / calls
    torch.cuda.synchronize()
    return elapsed


def _replay_us(graph: torch.cuda.CUDAGraph) -> tuple[float, float]:
    """(host, device) time of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    began = time.perf_counter()
    graph.replay()
    host = (time.perf_counter() - began) * 1e6
    end.record()
    end.synchronize()
    return host, float(start.elapsed_time(end)) * 1e3
