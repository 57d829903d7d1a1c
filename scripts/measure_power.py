#!/usr/bin/env python3
"""Measures the power that a GPU draws under loads of many kinds, for the energy model of `aicb`.

    python scripts/measure_power.py -o power.csv

Each load runs for a second to settle and three to be measured: joules of NVML's energy counter over seconds. Weights
come from memory in each round. FLOPs and bytes are those of the operands, each once.
"""

import argparse
import csv
import threading
import time

import pynvml

SETTLING_S, MEASURED_S = 1.0, 3.0
SHAPES = ((4096, 12288), (6144, 4096), (24576, 4096))
LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD = 36, 4096, 12288, 32, 8, 128
"""Qwen3-8B."""
CONTEXT = 1024
NO_SHAPE = (0, 0, 0)
COLUMNS = ("load", "dtype", "m", "n", "k", "rounds_per_s", "tflops", "tb_per_s", "sm_clock_mhz", "power_w", "celsius")

pynvml.nvmlInit()
DEVICE = pynvml.nvmlDeviceGetHandleByIndex(0)


def measured(step):
    """(rounds per second, W, MHz, °C) of a function that does some milliseconds of work and waits for it."""
    end, rounds, clocks, done = time.perf_counter() + SETTLING_S, 0, [], threading.Event()
    while time.perf_counter() < end:
        step()

    def sample():
        while not done.wait(0.1):
            clocks.append(pynvml.nvmlDeviceGetClockInfo(DEVICE, pynvml.NVML_CLOCK_SM))

    sampler = threading.Thread(target=sample)
    sampler.start()
    began, joules = time.perf_counter(), pynvml.nvmlDeviceGetTotalEnergyConsumption(DEVICE) / 1e3
    while time.perf_counter() < began + MEASURED_S:
        step()
        rounds += 1
    seconds = time.perf_counter() - began
    joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(DEVICE) / 1e3 - joules
    done.set()
    sampler.join()
    celsius = pynvml.nvmlDeviceGetTemperature(DEVICE, pynvml.NVML_TEMPERATURE_GPU)
    return rounds / seconds, joules / seconds, sum(clocks) / len(clocks), celsius


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output", required=True)
    with open(parser.parse_args().output, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for name, dtype, shape, flops, moved, step in loads():
            rate, watts, mhz, celsius = measured(step)
            row = (name, dtype, *shape, f"{rate:.4g}", f"{flops * rate / 1e12:.4g}", f"{moved * rate / 1e12:.4g}")
            rows.writerow((*row, f"{mhz:.0f}", f"{watts:.1f}", celsius))
            file.flush()
            print(row, round(mhz), round(watts, 1), celsius, flush=True)


def loads():
    """(name, number format, (m, n, k), FLOPs and bytes of a round, round)."""
    yield "idle", "", NO_SHAPE, 0, 0, wait  # before there is a context
    yield from small_loads()
    yield from streams()
    for n, k in SHAPES:
        yield from products(n, k)
    yield from model_steps()
    yield "ready", "", NO_SHAPE, 0, 0, wait


def wait():
    time.sleep(0.05)


def graph(work):
    """Replays of some work, each waited for."""
    import torch

    work()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()

    def step():
        captured.replay()
        torch.cuda.synchronize()

    return step


def random(*shape):
    import torch

    return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.05


def small_loads():
    """What keeps a GPU waiting: nothing, kernels of a block each, and kernels that poll as those of collectives do."""
    import cupy

    small = random(4096)
    yield "ready", "", NO_SHAPE, 0, 0, wait
    yield "small kernels", "bf16", NO_SHAPE, 0, 0, graph(lambda: [small.add_(0.001) for _ in range(2000)])
    source = 'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'
    spin = cupy.RawKernel(source, "spin")
    for blocks in (1, 24, 132):

        def spinning(blocks=blocks):
            spin((blocks,), (512,), (10_000_000,))
            cupy.cuda.Device().synchronize()

        yield "spinning", "", (blocks, 512, 0), 0, 0, spinning


def streams():
    import torch

    big = torch.empty(2**29, device="cuda", dtype=torch.int64).random_()
    other = torch.empty_like(big)
    yield "copy", "", NO_SHAPE, 0, 16 * len(big), graph(lambda: other.copy_(big))
    yield "read", "", NO_SHAPE, 0, 8 * len(big), graph(lambda: torch.max(big))
    yield "write", "", NO_SHAPE, 0, 8 * len(other), graph(lambda: other.zero_())


def products(n, k):
    import torch

    sets = max(2, int(4e8 / (2 * n * k)))
    weights = [random(n, k) for _ in range(sets)]
    for m in (1, 16, 64, 128, 256, 512, 1024, 4096, 16384):
        x = random(m, k)
        step = graph(lambda x=x: [torch.mm(x, w.t()) for w in weights])
        yield "product", "bf16", (m, n, k), 2 * m * n * k * sets, 2 * (n * k + m * k + m * n) * sets, step
    if (n, k) == SHAPES[0]:
        x = random(1, k)
        step = graph(lambda x=x: [torch.mm(x, w.t()) for _ in range(20) for w in weights])
        for thirds in (1, 3, 9):

            def paused(thirds=thirds):
                began = time.perf_counter()
                step()
                time.sleep(thirds * (time.perf_counter() - began) / 3)

            yield f"product, then {thirds}/3 of its time nothing", "bf16", (1, n, k), *[40 * n * k * sets] * 2, paused
    quantised = [w.to(torch.float8_e4m3fn) for w in weights]
    one = torch.ones((), device="cuda")
    for m in (16, 128, 512, 1024, 4096, 16384):
        x = random(m, k).to(torch.float8_e4m3fn)
        step = graph(lambda x=x: [torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16) for w in quantised])
        yield "product", "fp8", (m, n, k), 2 * m * n * k * sets, (n * k + m * k + 2 * m * n) * sets, step


def model_steps():
    """Decode steps and prompts of Qwen3-8B in PyTorch: they check what the others are fitted to."""
    import torch
    from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

    width = (HEADS + 2 * KV_HEADS) * HEAD
    sites = ((width, HIDDEN), (HIDDEN, HEADS * HEAD), (2 * FFN, HIDDEN), (HIDDEN, FFN))
    layers = [[random(*site) for site in sites] for _ in range(LAYERS)]
    weights = LAYERS * sum(n * k for n, k in sites)

    def attention(qkv, past):
        """Of requests with ``past`` [2, requests, KV heads, context, head], or of one prompt without any."""
        batch, tokens = (1, len(qkv)) if past is None else (len(qkv), 1)
        heads = qkv.view(batch, tokens, HEADS + 2 * KV_HEADS, HEAD).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
        k, v = (k, v) if past is None else past
        out = scaled_dot_product_attention(q, k, v, is_causal=past is None, enable_gqa=True)
        return out.transpose(1, 2).reshape(len(qkv), HEADS * HEAD)

    def forward(x, past):
        for qkv, out, up, down in layers:
            x = x + attention(rms_norm(x, (HIDDEN,)) @ qkv.t(), past) @ out.t()
            gate, value = (rms_norm(x, (HIDDEN,)) @ up.t()).chunk(2, 1)
            x = x + (silu(gate) * value) @ down.t()
        return x

    with torch.inference_mode():
        for requests in (1, 8, 64, 256):
            x, past = random(requests, HIDDEN), random(2, requests, KV_HEADS, CONTEXT, HEAD)
            flops = 2 * requests * (weights + 2 * LAYERS * HEADS * HEAD * CONTEXT)
            load = ("bf16", (requests, CONTEXT, LAYERS), flops, 2 * weights + LAYERS * 2 * past.numel())
            yield "decode", *load, graph(lambda x=x, past=past: forward(x, past))
            if requests == 1:
                yield "decode, eager", *load, lambda x=x, past=past: (forward(x, past), torch.cuda.synchronize())
        for tokens in (128, 512, 2048, 8192):
            flops = 2 * tokens * (weights + LAYERS * HEADS * HEAD * tokens)
            moved = 2 * weights + 2 * LAYERS * tokens * (2 * width + 3 * FFN + 6 * HIDDEN)
            x = random(tokens, HIDDEN)
            yield "prefill", "bf16", (tokens, 0, LAYERS), flops, moved, graph(lambda x=x: forward(x, None))


if __name__ == "__main__":
    main()
