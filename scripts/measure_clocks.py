#!/usr/bin/env python3
"""Measures the SM clock that a GPU sustains under matrix products of many shapes, for ``ClockLaw`` of `aicb`.

    python scripts/measure_clocks.py -o clocks.csv

Each product runs back to back for 0.35 s, with operand sets in turns so that weights come from memory. The clock is the
mean over the last 0.1 s, from the SMs' own counters; power is a reading of NVML near the end.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch

from aicb.kernels.point import point
from aicb.profiling.cost import flops, moved_bytes, operand_sets
from aicb.profiling.libraries.deep_gemm import DeepGemm
from aicb.profiling.libraries.torch_native import TorchNative
from aicb.profiling.sm_clock import SmClock
from aicb.profiling.timing import capture

SITES = {
    "bf16": ((24576, 4096), (4096, 12288), (6144, 4096), (5120, 2048), (2112, 7168)),
    "fp8": ((4096, 7168), (7168, 2048), (2112, 7168)),
}
ROWS = {"bf16": (1, 32, 64, 128, 256, 512, 1024, 4096, 16384), "fp8": (1, 64, 128, 512, 1024, 4096, 16384)}
SETTLING_S, SAMPLED_S, PAUSE_S = 0.25, 0.1, 0.1
COLUMNS = ("dtype", "m", "n", "k", "time_us", "sm_clock_mhz", "tflops", "tb_per_s", "power_w")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    points = [
        point("gemm", dtype, {"m": m, "n": n, "k": k}) for dtype in SITES for n, k in SITES[dtype] for m in ROWS[dtype]
    ]
    random.Random(0).shuffle(points)
    libraries = {"bf16": TorchNative("cuda"), "fp8": DeepGemm()}
    clock = SmClock()
    rows = []
    for item in points:
        library = libraries[item.dtype]
        if library.missing():
            continue
        runs = [library.kernel(item).run for _ in range(operand_sets(item))]
        time_us, clock_mhz, power_w = sustained(runs, clock)
        rate = (flops(item) / time_us / 1e6, moved_bytes(item) / time_us / 1e6)
        rows.append((item.dtype, item["m"], item["n"], item["k"], *map(_rounded, (time_us, clock_mhz, *rate, power_w))))
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *sorted(rows)])


def sustained(runs: list[Callable[[], object]], clock: SmClock) -> tuple[float, float, float]:
    """(µs per call, SM clock in MHz, power in W) once the clock has settled."""
    import pynvml

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
    time.sleep(PAUSE_S)
    rounds = max(1, 200 // len(runs))
    graph = capture(runs, rounds, torch.cuda.Stream())
    began = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    one_s = time.perf_counter() - began
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    sampled = max(1, round(SAMPLED_S / one_s))
    for _ in range(max(1, round(SETTLING_S / one_s))):
        graph.replay()
    clock.start()
    events[0].record()
    for _ in range(sampled):
        graph.replay()
    events[1].record()
    clock.stop()
    time.sleep(SETTLING_S)
    power_w = pynvml.nvmlDeviceGetPowerUsage(device) / 1000
    torch.cuda.synchronize()
    mhz = clock.mean_mhz()
    assert mhz is not None, "the counters of the SMs cannot be read without Triton"
    return events[0].elapsed_time(events[1]) * 1e3 / (sampled * rounds * len(runs)), mhz, power_w


def _rounded(value: float) -> float:
    return round(value, 3)


if __name__ == "__main__":
    main()
