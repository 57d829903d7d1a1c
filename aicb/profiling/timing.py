"""Timers: cold single calls, and calls inside a replayed graph with the SM clock they ran at.

Cold: the L2 is flushed by a memset of at least five times its size, then one call is timed between two events. The
flush also hides the host's launch time; where the host needs longer than the flush, it is repeated. Replayed: calls
captured into one CUDA graph; elapsed time over calls. The calls may take turns through several operand sets, so that
none finds its operands in L2, as in an engine, where every layer has its own weights and cache. The SM clock is read
on the device before and after the replays: under the power limit it moves by a third within tens of milliseconds, and
a time means little without it. On a CPU the same interface times with the host clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

from aicb.profiling.sm_clock import SmClock

FLUSH_OVER_L2 = 6.1
"""Size of the flushed buffer over L2; at least 5 (384 MB for the 60 MiB of an H200)."""
WARM_UPS = 3
_COLD_BUDGET_US = 40_000.0
_COLD_SAMPLES = (7, 21)
_GRAPH_BUDGET_US = 2_000.0
_GRAPH_CALLS = (1, 128)
_GRAPH_REPLAYS = (4, 9)
_REPLAY_BUDGET_US = 12_000.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and percentiles [µs] of ``count`` samples."""

    median_us: float
    p10_us: float
    p90_us: float
    count: int

    @classmethod
    def of(cls, samples_us: list[float]) -> Spread:
        """Nearest-rank percentiles."""
        ordered = sorted(samples_us)
        last = len(ordered) - 1
        return cls(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered))


@dataclass(frozen=True, slots=True)
class Replayed:
    """Time per call in replays of a graph."""

    spread: Spread
    clock_mhz: float | None
    """Mean SM clock during the replays; ``None`` where it cannot be read."""


class Timer(Protocol):
    """Times a kernel on one device."""

    def cold(self, run: Callable[[], object]) -> Spread:
        """Single calls after a flush, event floor included."""
        ...

    def replayed(
        self, runs: Sequence[Callable[[], object]], expected_us: float, check: Callable[[], None] | None = None
    ) -> Replayed:
        """Per call in a graph where ``runs`` take turns; ``check`` runs after a first replay into poisoned outputs."""
        ...

    def clocks(self) -> dict[str, int]:
        """SM and memory clocks [MHz] and power [W] while the last samples ran; empty where not known."""
        ...


def _count(budget_us: float, expected_us: float, bounds: tuple[int, int]) -> int:
    least, most = bounds
    return min(max(int(budget_us / max(expected_us, 0.1)), least), most)


class CudaTimer:
    """CUDA events on the current device."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._flush = torch.empty(int(FLUSH_OVER_L2 * properties.L2_cache_size), dtype=torch.uint8, device="cuda")
        self._stream = torch.cuda.Stream()
        self._clocks: dict[str, int] = {}
        self._sensor = _Sensor.open()
        self._sm_clock = SmClock()
        self._flush_us = self._time_flush()

    def _time_flush(self) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._flush.zero_()
        start.record()
        for _ in range(5):
            self._flush.zero_()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / 5

    def cold(self, run: Callable[[], object]) -> Spread:
        for _ in range(WARM_UPS - 1):
            run()
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        host_us = (time.perf_counter() - began) * 1e6
        torch.cuda.synchronize()
        total_us = (time.perf_counter() - began) * 1e6
        flushes = 1 + int(2.0 * host_us / self._flush_us)
        samples = _count(_COLD_BUDGET_US, total_us + flushes * self._flush_us, _COLD_SAMPLES)
        pairs = []
        for _ in range(samples):
            for _ in range(flushes):
                self._flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            pairs.append((start, end))
        self._clocks = self._sensor.read() if self._sensor else {}
        torch.cuda.synchronize()
        return Spread.of([float(start.elapsed_time(end)) * 1e3 for start, end in pairs])

    def replayed(
        self, runs: Sequence[Callable[[], object]], expected_us: float, check: Callable[[], None] | None = None
    ) -> Replayed:
        rounds = -(-_count(_GRAPH_BUDGET_US, expected_us, _GRAPH_CALLS) // len(runs))
        calls = rounds * len(runs)
        graph = capture(runs, rounds, self._stream)
        graph.replay()
        if check is not None:
            check()
        graph.replay()
        replays = _count(_REPLAY_BUDGET_US, calls * expected_us, _GRAPH_REPLAYS)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        self._sm_clock.start()
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        self._sm_clock.stop()
        torch.cuda.synchronize()
        gaps = itertools.pairwise(events)
        spread = Spread.of([float(start.elapsed_time(end)) * 1e3 / calls for start, end in gaps])
        return Replayed(spread, self._sm_clock.mean_mhz())

    def clocks(self) -> dict[str, int]:
        return self._clocks


def capture(runs: Sequence[Callable[[], object]], rounds: int, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """A graph of ``rounds`` turns through ``runs``.

    Faster than ``torch.cuda.graph``, which collects garbage and empties caches first.
    """
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for run in runs:
            run()
        stream.synchronize()
        graph.capture_begin()
        try:
            for _ in range(rounds):
                for run in runs:
                    run()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


class _Sensor:
    """Clocks and power of the current device through NVML."""

    def __init__(self, nvml: object, handle: object):
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls) -> _Sensor | None:
        """``None`` without the NVML bindings (``nvidia-ml-py``) or the device."""
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        except Exception:  # NVML is optional: any failure of it only leaves the clocks unrecorded
            return None
        return cls(pynvml, handle)

    def read(self) -> dict[str, int]:
        nvml = self._nvml
        return {
            "sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),  # type: ignore[attr-defined]
            "power_w": nvml.nvmlDeviceGetPowerUsage(self._handle) // 1000,  # type: ignore[attr-defined]
        }


class CpuTimer:
    """Host clock; no graphs, so warm calls run in a plain loop."""

    def __init__(self, flush_bytes: int = 32 << 20) -> None:
        self._flush = torch.empty(flush_bytes, dtype=torch.uint8)

    def cold(self, run: Callable[[], object]) -> Spread:
        run()
        samples = []
        for _ in range(_COLD_SAMPLES[0]):
            self._flush.zero_()
            samples.append(_elapsed_us(run, 1))
        return Spread.of(samples)

    def replayed(
        self, runs: Sequence[Callable[[], object]], expected_us: float, check: Callable[[], None] | None = None
    ) -> Replayed:
        def once() -> None:
            for run in runs:
                run()

        once()
        if check is not None:
            check()
        rounds = -(-_count(_GRAPH_BUDGET_US, expected_us, (1, 10)) // len(runs))
        samples = [_elapsed_us(once, rounds) / (rounds * len(runs)) for _ in range(3)]
        return Replayed(Spread.of(samples), None)

    def clocks(self) -> dict[str, int]:
        return {}


def _elapsed_us(run: Callable[[], object], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - began) * 1e6
