#!/usr/bin/env python3
"""Makes parts of the H200's table from steps of vLLM's engine.

    python scripts/build_vllm_in_engine.py

``vllm_hybrid.parquet``: all kernels of these layers but products, attention and experts, of Qwen3-Next-80B-A3B divided
by TP 1 to 8, as the engine ran them (``tests/data/engine/vllm-h200-layers.json.gz``).
``vllm_experts_in_engine.parquet``: products of its experts divided by 8, which were not measured alone as those divided
by 1, 2 and 4 were.
``vllm_router_in_engine.parquet``: scores of GLM-4.5-Air's experts in fp32.
``vllm_logits_in_engine.parquet``: copies of gathered logits, in decodes of whole models on two GPUs.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from aicb.estimators.selection import select_estimator
from aicb.kernels.elementwise import HYBRID, Elementwise
from aicb.kernels.expert_points import UNIFORM
from aicb.kernels.expert_times import ENGINE_KERNEL
from aicb.kernels.gated_delta import VllmGatedDeltaPrefill
from aicb.kernels.grouped_gemm import GroupedGemm
from aicb.kernels.kernel import Kernel
from aicb.kernels.router import Fp32Router
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.lists import attention_operators, expert_operators, token_operators
from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, Row, write_table

REPOSITORY = Path(__file__).resolve().parent.parent
STEPS = REPOSITORY / "tests" / "data" / "engine" / "vllm-h200-layers.json.gz"
TARGETS = REPOSITORY / "aicb" / "data" / "h200"
MODEL = "qwen3-next-80b-a3b"
CONTEXT = 520
PRECISION = Precision(state="bf16")
H200 = get_gpu("h200")
ESTIMATOR = select_estimator("auto", H200, PRECISION)
assert H200.clock is not None
UNREAD_MHZ = H200.clock.reference_mhz
"""Where no clock was read: times of copies, which memory binds, count as they are."""
BUSY_TOKENS = 1024
"""Prompts from which on the clock falls while they are computed; it is back when they have ended."""
PRODUCTS = ("gdn_qkvz", "gdn_out", "qkv", "o")
HYBRID_PART, EXPERTS_PART = "vllm_hybrid", "vllm_experts_in_engine"
ROUTER_PART, LOGITS_PART = "vllm_router_in_engine", "vllm_logits_in_engine"
FP32_MODEL = "glm-4.5-air"
CAST_US, CAST_BYTES_PER_US = 1.05, 4.33e6
"""A cast to fp32 by itself: what 1 to 8,192 tokens of 4,096 values took where no norm made it along (kernels of
``tests/data/engine/vllm-h200-tp2-glm-4.5-air.json.gz``: 1.05, 1.13 and 1.41 us in decodes, 5.6, 24.3 and 47.5 in
prompts of 1,024, 4,096 and 8,192)."""
EXPERTS_TP = 8
"""Whose products of experts are taken."""
IDLE = "each step began on an idle GPU, whose clock was read after it"
ONE_RANK = "one rank's part of each TP, without collectives"
BUSY = "clocks of prompts from 1,024 tokens on, whose products lower them: those at which the table has these products"
KERNELS = (
    "Qwen3-Next-80B-A3B, 3 layers with the delta rule and one with attention, TP 1 to 8, states in bf16",
    (
        *(IDLE, BUSY, ONE_RANK),
        "sigmoid and product of the shared expert's gate: of steps in which nothing else ran meanwhile",
        "delta_split: one to three kernels, as Inductor chose for this TP",
    ),
)
EXPERTS = (
    "products of the 512 experts of Qwen3-Next-80B-A3B divided by 8, bf16, 64 columns each",
    (
        *(IDLE, BUSY, ONE_RANK),
        "up to 256 tokens the shared expert ran meanwhile, on a stream of its own",
        "experts that were met (active_groups): as many as even routing meets; not counted",
    ),
)
ROUTER = (
    "scores of the 128 experts of GLM-4.5-Air in fp32, TP 1 and 2",
    (
        *(IDLE, ONE_RANK),
        "products and sums of their parts as they ran; the cast before them is a part of the norm there, and added "
        "here as it was measured by itself in another engine",
    ),
)
LOGITS = (
    "gathered logits of Qwen3-8B, GLM-4.5-Air and Mixtral-8x7B with TP 2, bf16",
    (
        "steps followed one another; their clocks were not read (rotated_clock_mhz is the reference's)",
        "means over the 24 steps by which two runs differ (samples), so that prompts fall out",
    ),
)
"""What the points are, and what is to be known of them."""
OF_STEPS = "decodes of 1 to 256 requests, prompts of 64 to 16,384 tokens (tests/data/engine/vllm-h200-layers.json.gz)"
OF_SERVERS = "decodes of 8 and 64 requests (tests/data/engine/vllm-h200-tp2-*.json.gz)"
SERVERS = ("tp2-qwen3-8b", "tp2-glm-4.5-air", "tp2-mixtral-8x7b")
STRIDED_COPY = "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy"
"""Nothing else copies so in these engines."""


class Ran(NamedTuple):
    """A kernel of a step."""

    name: str
    stream: int
    time_us: float


def main() -> None:
    measured = json.loads(gzip.decompress(STEPS.read_bytes()))
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for engine in measured["engines"].values():
        for kind, tokens, step in steps_of(engine):
            ran = [Ran(measured["names"][name], stream, us) for name, stream, _, us in step["kernels"]]
            if engine["model"] == FP32_MODEL:
                row = row_of_router(ran, tokens, step["sm_mhz"])
                found[row["op"], row["m"]].append(row)
            elif engine["model"] == MODEL:
                for row in rows_of_step(ran, engine["tp"], tokens, step["sm_mhz"], is_decode=kind == "decode"):
                    place = [row.get(column) for column in ("op", "m", "n", "rows", "heads", "q_len")]
                    found[tuple(place)].append(row)
    rows = [*(merged(same) for same in found.values()), *rows_of_logits()]
    for part, points, cautions in (
        (HYBRID_PART, *KERNELS),
        (EXPERTS_PART, *EXPERTS),
        (ROUTER_PART, *ROUTER),
        (LOGITS_PART, *LOGITS),
    ):
        write(part, [row for row in rows if row["run"] == part], provenance(measured, part, points, cautions))


def rows_of_logits() -> Iterator[Row]:
    """Of decodes of 8 and 64 requests, 24 steps each."""
    for server in SERVERS:
        measured = json.loads(gzip.decompress((STEPS.parent / f"vllm-h200-{server}.json.gz").read_bytes()))
        for requests in (8, 64):
            few, more = (copies(measured["kernels"][f"decode-{requests}-{outputs}"]) for outputs in (9, 33))
            time_us, shape = (more[1] - few[1]) / (more[0] - few[0]), (requests, measured["config"]["vocab_size"])
            kernel = Elementwise("logits_join", *shape, 4 * requests * shape[1])
            yield row_of(kernel, f"{server}/logits_join", time_us, more[0] - few[0], round(UNREAD_MHZ)) | {
                "run": LOGITS_PART
            }


def copies(kernels: dict[str, tuple[int, float]]) -> tuple[int, float]:
    """Number and time of the copies of logits."""
    (found,) = (of_kernel for name, of_kernel in kernels.items() if name.startswith(STRIDED_COPY))
    return found


def steps_of(engine: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Kind, tokens, and the step."""
    for kind in ("decode", "prefill"):
        for tokens, step in engine.get(kind, {}).items():
            yield kind, int(tokens), step


def row_of_router(ran: list[Ran], tokens: int, sm_mhz: int) -> Row:
    """Of one product with the sum of its parts: medians over the layers that have experts."""
    kernel = Fp32Router(tokens, 128, 4096)
    runs = [list(same) for is_fp32, same in groupby(ran, lambda each: is_fp32_product(each.name)) if is_fp32]
    assert len(runs) == sum("topk" in each.name for each in ran), (tokens, runs)
    cast_us = CAST_US + tokens * kernel.k * (2 + 4) / CAST_BYTES_PER_US
    time_us = median(sum(each.time_us for each in run) for run in runs) + cast_us
    shape = {"m": tokens, "n": kernel.n, "k": kernel.k}
    return {
        **{"op": "router_fp32", "kernel": "vllm/router_fp32", "dtype": "bf16", "tag": f"{FP32_MODEL}/router", **shape},
        **{"cold_us": time_us, "graph_us": time_us, "samples": len(runs), "bytes": kernel.cost(PRECISION).moved_bytes},
        **{"rotated_us": time_us, "rotated_clock_mhz": float(sm_mhz), "run": ROUTER_PART},
    }


def is_fp32_product(name: str) -> bool:
    """One of cuBLAS's, or the sum of its parts."""
    is_sum = name.startswith("void reduce_1Block") or ("splitKreduce" in name and "float, float, float, float" in name)
    return is_sum or name.startswith("void dot_kernel") or "simt_sgemm" in name or "f32f32_f32f32" in name


def write(part: str, rows: list[Row], facts: dict[str, Any]) -> None:
    target = TARGETS / f"{part}.parquet"
    with TemporaryDirectory() as made:
        write_table(Path(made), rows, facts)
        target.write_bytes((Path(made) / TABLE_FILE).read_bytes())
        target.with_suffix(".provenance.json").write_bytes((Path(made) / PROVENANCE_FILE).read_bytes())
    print(f"{len(rows)} rows written to {target}")


def rows_of_step(ran: list[Ran], tp: int, tokens: int, sm_mhz: int, *, is_decode: bool) -> Iterator[Row]:
    """Medians over the layers of a step; not of kernels that ran while others did."""
    times: dict[str, list[float]] = defaultdict(list)
    for layer in list(split_layers(ran))[1:-1]:  # the first has no results of experts to add; the head follows the last
        for name, time_us in times_of_layer(layer, is_decode=is_decode).items():
            times[name].append(time_us)
    together = {"shared_gate_sigmoid", "shared_gate_mul"} if any(kernel.stream for kernel in ran) else frozenset()
    kernels = operators(tp, tokens, is_decode=is_decode)
    if not is_decode and tokens >= BUSY_TOKENS:
        sm_mhz = clock_of_products({name: median(times[name]) for name in PRODUCTS}, kernels)
    for name, kernel in kernels.items():
        if is_taken(kernel) and name not in together:
            yield row_of(kernel, f"{MODEL}/{name}/tp{tp}", median(times[name]), len(times[name]), sm_mhz)
    if tp == EXPERTS_TP:
        for name in ("moe_gate_up", "moe_down"):
            yield row_of(kernels[name], f"{MODEL}/{name}/tp{tp}", median(times[name]), len(times[name]), sm_mhz)


def clock_of_products(times_us: dict[str, float], kernels: dict[str, Kernel]) -> int:
    """MHz at which dense products, which the tensor cores bind, take what the H200's table has at its reference."""
    assert H200.clock is not None
    ratios = [ESTIMATOR.price(kernels[name]).time_us / time_us for name, time_us in times_us.items()]
    return round(H200.clock.reference_mhz * median(ratios))


def split_layers(ran: Iterable[Ran]) -> Iterator[list[Ran]]:
    """Layers of a step, each from the norm on that begins it; what comes before the first is dropped."""
    layer: list[Ran] | None = None
    for kernel in ran:
        if is_input_norm(kernel.name):
            if layer:
                yield layer
            layer = []
        if layer is not None:
            layer.append(kernel)
    if layer:
        yield layer


def is_input_norm(name: str) -> bool:
    return name.startswith("triton_red_fused") and "moe_forward" not in name


def times_of_layer(layer: list[Ran], *, is_decode: bool) -> dict[str, float]:
    """By operator: the sum of its kernels, which follow one another as listed here."""
    times: dict[str, float] = defaultdict(float)
    names = [kernel.name for kernel in layer]
    after = next(place for place, name in enumerate(names) if "moe_forward" in name)
    times["input_norm"], times["post_attention_norm"] = layer[0].time_us, layer[after].time_us
    if any("conv1d" in name for name in names):
        times |= times_of_rule(layer[1:after], is_decode=is_decode)
    else:
        places = [place for place, name in enumerate(names) if name.startswith("nvjet")]
        times["qkv"], times["o"] = product_us(layer, places[0]), product_us(layer, places[1])
        for kernel in layer[1:after]:
            if "qk_rmsnorm_rope_gate" in kernel.name:
                times["gated_head_norm"] += kernel.time_us
            elif kernel.name.startswith("triton_poi") and "sigmoid" in kernel.name:
                times["output_gate"] += kernel.time_us
    gate_up, down = (kernel.time_us for kernel in layer[after:] if kernel.name == "fused_moe_kernel")
    times |= {"moe_gate_up": gate_up, "moe_down": down}
    for kernel in layer[after:]:
        if "sigmoid_kernel" in kernel.name:
            times["shared_gate_sigmoid"] += kernel.time_us
        elif kernel.name.startswith("void at::native::elementwise_kernel"):
            times["shared_gate_mul"] += kernel.time_us
    return times


def times_of_rule(kernels: list[Ran], *, is_decode: bool) -> dict[str, float]:
    """Between the norms of a layer with the delta rule."""
    times: dict[str, float] = defaultdict(float)
    names = [kernel.name for kernel in kernels]
    conv = next(place for place, name in enumerate(names) if "conv1d" in name)
    sums = next(place for place, name in enumerate(names) if name.startswith("triton_per"))
    products = [place for place, name in enumerate(names) if name.startswith("nvjet")]
    times["gdn_qkvz"], times["gdn_out"] = product_us(kernels, products[0]), product_us(kernels, products[2])
    for kernel in kernels[:conv]:
        if kernel.name.startswith("triton_poi"):
            times["gdn_join" if "clone" in kernel.name else "gdn_split"] += kernel.time_us
    times["gdn_conv"] = kernels[conv].time_us
    rule = kernels[conv + 1 : sums]
    assert rule[-1].name.startswith("triton_poi"), rule[-1]
    times["gdn_clear"] = rule.pop().time_us
    if is_decode:
        (only,) = rule
        times["gdn_decode"] = only.time_us
    else:
        assert "post_conv" in rule[0].name, rule[0]
        assert "Memcpy DtoD" in rule[-1].name, rule[-1]
        times["gdn_prepare"], times["gdn_results"] = rule[0].time_us, rule[-1].time_us
        times["gdn_prefill"] = sum(kernel.time_us for kernel in rule[1:-1])
    times["gdn_norm_sums"] = kernels[sums].time_us
    times["gdn_gated_norm"] = kernels[sums + 1].time_us
    assert "silu" in kernels[sums + 1].name, kernels[sums + 1]
    return times


def product_us(kernels: list[Ran], place: int) -> float:
    """A product, with the sum of its parts where it is divided."""
    after = kernels[place + 1 : place + 2]
    return kernels[place].time_us + sum(each.time_us for each in after if "splitKreduce" in each.name)


def operators(tp: int, tokens: int, *, is_decode: bool) -> dict[str, Kernel]:
    """Kernels as they are priced, by the operator's name."""
    parallel = (load_model(MODEL), Partition(tp=tp), PRECISION)
    batch = Batch.decode([CONTEXT] * tokens) if is_decode else Batch.prefill([tokens])
    listed = [
        *token_operators(*parallel, tokens=tokens, hybrid_kernels="compiled"),
        *attention_operators(*parallel, batch, hybrid_kernels="compiled"),
        *expert_operators(*parallel, tokens=tokens, group_tokens=tokens, is_decode=is_decode, moe_kernels="vllm"),
    ]
    return {each.name: each.kernel for each in listed if isinstance(each.kernel, Kernel)}


def is_taken(kernel: Kernel) -> bool:
    return isinstance(kernel, VllmGatedDeltaPrefill) or (isinstance(kernel, Elementwise) and kernel.name in HYBRID)


def row_of(kernel: Kernel, tag: str, time_us: float, layers: int, sm_mhz: int) -> Row:
    if isinstance(kernel, VllmGatedDeltaPrefill):
        operation, source, d = kernel.operations[0], "vllm/chunk_gated_delta_rule", kernel.head_dim
        (tokens,) = kernel.new_tokens.tolist()
        heads = {"heads": kernel.value_heads, "kv_heads": kernel.key_heads, "d_qk": d, "d_v": d}
        shape, part = {"batch": 1, "q_len": tokens, **heads, "queries": str(tokens)}, HYBRID_PART
    elif isinstance(kernel, GroupedGemm):
        operation, source, part = "grouped_gemm_gathered", ENGINE_KERNEL, EXPERTS_PART
        shape = {"rows": round(kernel.rows), "n": kernel.n, "k": kernel.k, "groups": kernel.groups}
        shape |= {"active_groups": round(kernel.active_groups), "distribution": UNIFORM}
    else:
        assert isinstance(kernel, Elementwise)
        operation, source, shape = kernel.name, f"vllm/{kernel.name}", {"m": kernel.rows, "n": kernel.cols}
        part = HYBRID_PART
    return {
        **{"op": operation, "kernel": source, "dtype": "bf16", "tag": tag, **shape},
        **{"cold_us": time_us, "graph_us": time_us, "samples": layers, "bytes": kernel.cost(PRECISION).moved_bytes},
        **{"rotated_us": time_us, "rotated_clock_mhz": float(sm_mhz), "run": part},
    }


def merged(rows: list[Row]) -> Row:
    """One row of a shape that several steps had, such as norms with every TP: the median."""
    time_us = round(median(row["rotated_us"] for row in rows), 3)
    times = dict.fromkeys(("cold_us", "graph_us", "rotated_us"), time_us)
    return rows[0] | times | {"samples": sum(row["samples"] for row in rows)}


def provenance(measured: dict[str, Any], run: str, points: str, cautions: Sequence[str]) -> dict[str, Any]:
    return {
        "gpu": "h200",
        "runs": {
            run: {
                "environment": {"device": measured["gpu"], "driver": measured["driver"], **measured["versions"]},
                "timing": {
                    "graph_us": "torch's profiler in steps of the running engine: medians over steps, layers (samples) "
                    "and, where the shape is the same, TP, unless a caution says otherwise; without what passes "
                    "between kernels",
                    "cold_us, rotated_us": "the same: nothing was measured apart from an engine",
                },
            }
        },
        "cautions": list(cautions),
        "points": f"{points}: {OF_SERVERS if run == LOGITS_PART else OF_STEPS}",
    }


if __name__ == "__main__":
    main()
