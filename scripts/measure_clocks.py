#!/usr/bin/env python3
"""Measures the SM clocks that a GPU gives kernels under load, for ``ClockLaw`` and ``PowerLoad`` of `aicb`.

    python scripts/measure_clocks.py -o clocks.csv [--kinds products prompts ...] [--fa3 _vllm_fa3_C.abi3.so]

A board limits power twice: what it draws now, within tens of milliseconds and to 3 to 12 % above its limit, and the
mean of about a second, to the limit. So each kernel runs alone and back to back, after a second of rest, with operand
sets in turns so that weights come from memory, and two clocks are counted by the SMs: of a burst, 0.25 to 0.5 s after
its beginning, and settled, over 2.2 s from 2.6 s on, where the clock still swings about its mean once a second.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from aicb.kernels.decode_attention import PAGE_TOKENS
from aicb.kernels.point import Point, point
from aicb.profiling.compile_ahead import compile_ahead
from aicb.profiling.cost import flops, moved_bytes, operand_sets
from aicb.profiling.kernel_library import Library
from aicb.profiling.libraries.deep_gemm import DeepGemm
from aicb.profiling.libraries.flash_attention import FlashAttention3
from aicb.profiling.libraries.flash_attention_mla import FlashAttentionMla
from aicb.profiling.libraries.torch_native import TorchNative
from aicb.profiling.sm_clock import SmClock
from aicb.profiling.timing import capture

PRODUCTS = {
    "bf16": {
        (24576, 4096): (1, 64, 128, 256, 512, 1024, 4096, 16384),
        (4096, 12288): (64, 256, 1024, 16384),
        (6144, 4096): (128, 256, 512, 4096),
        (5120, 2048): (256, 1024, 16384),
        (2112, 7168): (256, 1024, 16384),
    },
    "fp8": {
        (4096, 7168): (64, 128, 512, 1024, 16384),
        (7168, 2048): (128, 512, 1024, 16384),
        (2112, 7168): (128, 512, 1024),
    },
}
"""Rows m of weights (n, k)."""
PROMPTS = (
    (32, 8, 128, 16384, 0, 1),
    (32, 4, 128, 4096, 0, 1),
    (32, 8, 128, 2048, 0, 1),
    (32, 8, 128, 2048, 30720, 1),
    (8, 1, 128, 16384, 0, 1),
    (64, 8, 64, 16384, 0, 1),
    (16, 2, 256, 16384, 0, 1),
    (32, 8, 128, 512, 0, 16),
)
"""(heads, KV heads, head dimension, new tokens, past tokens, requests)"""
LATENT_PROMPTS = ((128, 4096), (16, 16384))
"""(heads, new tokens), expanded"""
DECODES = (
    (32, 8, 128, 256, 2048),
    (32, 8, 128, 64, 8192),
    (32, 8, 128, 64, 2048),
    (32, 8, 128, 4, 32768),
    (32, 4, 128, 256, 1024),
    (64, 8, 128, 128, 2048),
    (8, 1, 128, 256, 4096),
    (64, 8, 64, 128, 4096),
    (16, 2, 256, 128, 4096),
    (64, 4, 128, 64, 8192),
    (96, 8, 128, 64, 4096),
)
"""(heads, KV heads, head dimension, requests, KV tokens of each)"""
LATENT_DECODES = ((128, 64, 4096), (128, 256, 1024), (16, 64, 4096), (16, 256, 4096), (32, 128, 2048), (128, 8, 4096))
"""(heads, requests, KV tokens of each)"""
MOST_SETS = 8
REST_S, BURST_S, SETTLED_S = 1.0, (0.25, 0.5), (2.6, 4.8)
GRAPH_S = 0.02
COMPILING_S = 120.0
SHAPE = ("m", "n", "k", "heads", "kv_heads", "d_qk", "d_v", "batch", "q_len", "kv_len")
MEASURED = ("burst_us", "burst_mhz", "time_us", "sm_clock_mhz", "tflops", "tb_per_s", "power_w")
Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Clocks:
    """Of one kernel under load: µs per round of its runs, MHz of the SMs, W drawn."""

    burst_us: float
    burst_mhz: float
    settled_us: float
    settled_mhz: float
    power_w: float
    """Mean of the settled time."""


class Load:
    """Kernels that run back to back on this device, replayed as one graph."""

    def __init__(self, runs: Sequence[Run], clock: SmClock) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml, self._device = pynvml, pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        self._clock = clock
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        once_s = self._seconds(lambda: [run() for run in runs])
        self._rounds = max(1, min(100, round(GRAPH_S / once_s)))
        self._graph = capture(runs, self._rounds, torch.cuda.Stream())
        self._replay_s = self._seconds(self._graph.replay)

    def clocks(self) -> Clocks:
        """Rests, then runs to the end of the settled time."""
        time.sleep(REST_S)
        self._replay(BURST_S[0])
        burst_us, burst_mhz, _ = self._counted(BURST_S[1] - BURST_S[0])
        self._replay(SETTLED_S[0] - BURST_S[1])
        return Clocks(burst_us, burst_mhz, *self._counted(SETTLED_S[1] - SETTLED_S[0]))

    def _counted(self, seconds: float) -> tuple[float, float, float]:
        """(µs per round, MHz, W) over so long."""
        self._clock.start()
        self._events[0].record()
        replays = self._replay(seconds)
        self._events[1].record()
        self._clock.stop()
        power = [self._power_w()]
        while not self._events[1].query():
            time.sleep(0.01)
            power.append(self._power_w())
        torch.cuda.synchronize()
        mhz = self._clock.mean_mhz()
        assert mhz is not None, "the counters of the SMs cannot be read without Triton"
        rounds = replays * self._rounds
        return self._events[0].elapsed_time(self._events[1]) * 1e3 / rounds, mhz, statistics.fmean(power)

    def _replay(self, seconds: float) -> int:
        replays = max(1, round(seconds / self._replay_s))
        for _ in range(replays):
            self._graph.replay()
        return replays

    def _power_w(self) -> float:
        """Drawn now, not NVML's mean of a second."""
        field = self._nvml.NVML_FI_DEV_POWER_INSTANT
        return float(self._nvml.nvmlDeviceGetFieldValues(self._device, [field])[0].value.uiVal) / 1000

    @staticmethod
    def _seconds(run: Run) -> float:
        run()
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - began


def points() -> Iterator[tuple[str, Point]]:
    """(kind, point) of all that are measured."""
    for dtype, sites in PRODUCTS.items():
        for (n, k), rows in sites.items():
            yield from (("products", point("gemm", dtype, {"m": m, "n": n, "k": k})) for m in rows)
    for heads, kv_heads, dim, new, past, requests in PROMPTS:
        size = {"d_qk": dim, "d_v": dim, "page_tokens": PAGE_TOKENS}
        yield "prompts", _attention("prefill_attention", (heads, kv_heads), size, requests, (new, new + past))
    for heads, new in LATENT_PROMPTS:
        yield (
            "latent prompts",
            _attention("prefill_attention", (heads, heads), {"d_qk": 192, "d_v": 128}, 1, (new, new)),
        )
    for heads, kv_heads, dim, requests, kv in DECODES:
        size = {"d_qk": dim, "d_v": dim, "page_tokens": PAGE_TOKENS}
        yield "decodes", _attention("decode_attention", (heads, kv_heads), size, requests, (1, kv))
    for heads, requests, kv in LATENT_DECODES:
        size = {"d_qk": 576, "d_v": 512, "page_tokens": PAGE_TOKENS}
        yield "latent decodes", _attention("mla_decode_fa3", (heads, 1), size, requests, (1, kv))


def _attention(op: str, heads: tuple[int, int], size: dict[str, int], requests: int, tokens: tuple[int, int]) -> Point:
    """``heads``: of queries and of keys; ``tokens``: new ones and all, of each request."""
    new, kv = tokens
    shape = {"heads": heads[0], "kv_heads": heads[1], **size, "batch": requests, "q_len": new, "kv_len": kv}
    return point(op, "bf16", shape, lengths=(kv,) * requests, queries=(new,) * requests, distribution="equal")


def main() -> None:
    kinds = sorted({kind for kind, _ in points()})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--fa3", type=Path, help="vLLM's module, where vLLM is not installed")
    arguments = parser.parse_args()
    attention, latent = FlashAttention3(arguments.fa3), FlashAttentionMla(arguments.fa3)
    products: dict[str, Library] = {"bf16": TorchNative("cuda"), "fp8": DeepGemm()}
    compile_ahead([item for kind, item in points() if kind in arguments.kinds], os.cpu_count() or 1, COMPILING_S)
    clock = SmClock()
    with arguments.output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("kind", "dtype", *SHAPE, *MEASURED))
        for kind, item in points():
            library = latent if kind == "latent decodes" else attention if kind != "products" else products[item.dtype]
            if kind not in arguments.kinds or library.missing():
                continue
            sets = min(operand_sets(item), MOST_SETS)
            found = Load([library.kernel(item).run for _ in range(sets)], clock).clocks()
            burst_us, time_us = found.burst_us / sets, found.settled_us / sets
            rates = (flops(item) / time_us / 1e6, moved_bytes(item) / time_us / 1e6)
            shape = dict(item.shape)
            values = (burst_us, found.burst_mhz, time_us, found.settled_mhz, *rates, found.power_w)
            row = [kind, item.dtype, *(shape.get(name, "") for name in SHAPE), *(round(value, 3) for value in values)]
            writer.writerow(row)
            file.flush()
            print(*row)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
