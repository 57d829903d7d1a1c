#!/usr/bin/env python3
"""Makes parts of the H200's table of vLLM's small kernels: some that were measured alone, some inside the engine.

    python scripts/build_vllm_elementwise.py

``vllm_group_quant.parquet`` and ``vllm_activation.parquet``: kernels that ``profile/other_kernels`` lists as others of
the operations ``quant`` and ``silu_mul``; they are operations of their own since, and no time is changed.
``vllm_around_experts.parquet``: what goes with the experts' products, from the kernels that engines ran in whole steps
(``tests/data/engine/vllm-host-default.json.gz``) and in single layers (``vllm-eager-layers.json.gz``).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aicb.model.architecture import Model, MoeFfn
from aicb.model.catalog import load_model
from aicb.profiling.store import PROVENANCE_FILE, TABLE_FILE, Row, read_table, write_table

REPOSITORY = Path(__file__).resolve().parent.parent
H200 = REPOSITORY / "aicb" / "data" / "h200"
MEASURED = H200 / "profile" / "other_kernels"
ENGINES = REPOSITORY / "tests" / "data" / "engine"

ALONE = {
    "vllm_group_quant": (
        "group_quant",
        "vllm/per_token_group_fp8_quant",
        "1x128 quantisation of bf16 rows to e4m3, scales column by column, as vLLM 0.24.0 does it before fp8 products; "
        "shapes of the models of profile/profile.provenance.json",
    ),
    "vllm_activation": (
        "silu_and_mul",
        "vllm/silu_and_mul",
        "SwiGLU activation of bf16 rows, as vLLM 0.24.0 runs it between the products of its experts; shapes of the "
        "models of profile/profile.provenance.json, but for widths that were measured inside engines "
        "(vllm_around_experts)",
    ),
}
"""By part: the operation it becomes, the kernel, and what its points are."""

MODELS = {"qwen3-30b-a3b": "qwen3-30b-a3b", "deepseek-v3": "deepseek-v3-l8", "qwen3-next-80b-a3b": "qwen3-next-80b-l8"}
"""Models with experts, and what they are called there."""
SUM = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BF"
"""Which nothing else runs in these steps: torch's sum over bf16, four values a thread."""
ACTIVATION = "void vllm::act_and_mul_kernel"
CHOICE = "void vllm::moe::topkGating"
"""Of models whose router chooses by softmax."""
COPIES = {1: "memcpy32_post", 1024: "Memcpy DtoD", 2048: "Memcpy DtoD", 4096: "Memcpy DtoD"}
"""Names of the copy of the experts' results, by tokens; in graphs of more than one token it was not told apart."""
COPYING_MODEL = "qwen3-30b-a3b"
"""The only one of the three in which nothing else of a layer is copied."""
OTHER_COPIES = 3
"""Of its step, outside layers, of some bytes each."""
LIGHT_MHZ, REFERENCE_MHZ = 1810.0, 1600.0
"""Clocks of an H200 under decodes, and that its times are converted to (``aicb/data/gpus/h200.yaml``)."""
IN_ENGINES = {"vllm_activation": frozenset({512, 768, 2048})}
"""Widths of their experts, whose activations are taken from the engines."""
SINGLE_LAYERS = {"deepseek-v3": ("deepseek-v3-l8", "experts")}
"""The model whose copies are taken from one layer of each step, where they follow the sum."""


def main() -> None:
    for part, (operation, kernel, points) in ALONE.items():
        measured = read_table(MEASURED / TABLE_FILE)
        replaced = IN_ENGINES.get(part, frozenset())
        rows = [row | {"op": operation} for row in measured if row["kernel"] == kernel and row["n"] not in replaced]
        facts = json.loads((MEASURED / PROVENANCE_FILE).read_text(encoding="utf-8"))
        write(part, rows, {name: facts[name] for name in ("gpu", "runs", "cautions")} | {"points": points})
    steps, layers = (
        json.loads(gzip.decompress((ENGINES / f"{name}.json.gz").read_bytes()))["models"]
        for name in ("vllm-host-default", "vllm-eager-layers")
    )
    rows = [*rows_of_steps(steps), *rows_of_layers(layers)]
    write("vllm_around_experts", rows, provenance(steps[COPYING_MODEL]["env"]))


def write(part: str, rows: list[Row], facts: dict[str, Any]) -> None:
    target = H200 / f"{part}.parquet"
    with TemporaryDirectory() as made:
        own = Path(made)
        write_table(own, rows, facts)
        target.write_bytes((own / TABLE_FILE).read_bytes())
        target.with_suffix(".provenance.json").write_bytes((own / PROVENANCE_FILE).read_bytes())
    print(f"{len(rows)} rows written to {target}")


def rows_of_steps(engines: dict[str, Any]) -> Iterator[Row]:
    """Sums of three models, and copies of one, at 1 to 4,096 tokens: means of the layers of one step."""
    for name, key in MODELS.items():
        model, network = load_model(name), _experts(load_model(name))
        for profile in engines[key]["profiles"]:
            tokens = 1 if profile["label"] == "decode-B1" else int(profile["label"].removeprefix("prefill-"))
            k, kernels = network.experts_per_token, profile["by_kernel"]
            rows, width = tokens * k, network.intermediate
            pairs = {"m": rows, "experts_per_token": k}
            moved = 2.0 * model.hidden * (rows + tokens)
            sums = _launched(kernels, SUM)
            yield _row("moe_sum", "torch/sum", f"{name}/moe_unpermute", pairs, model.hidden, moved, sums, tokens)
            activations = _launched(kernels, ACTIVATION)
            own = (f"{name}/moe_silu_mul", {"m": rows}, width, 6.0 * rows * width)
            yield _row("silu_and_mul", "vllm/silu_and_mul", *own, activations, tokens)
            if not network.has_correction_bias:
                scores = (f"{name}/topk", {"m": tokens, "experts_per_token": k}, network.experts)
                moved = 2.0 * tokens * network.experts + 12.0 * rows
                yield _row("topk_softmax", "vllm/topk_gating", *scores, moved, _launched(kernels, CHOICE), tokens)
            if name == COPYING_MODEL and tokens in COPIES:
                count, total_us = _launched(kernels, COPIES[tokens])
                if tokens > 1:
                    count, total_us = count - OTHER_COPIES, total_us - OTHER_COPIES * _small_copy_us(engines[key])
                yield _copy(name, model.hidden, tokens, (count, total_us))


def rows_of_layers(engines: dict[str, Any]) -> Iterator[Row]:
    """Copies of the results of one layer, at one token and 1,024."""
    for name, (key, layer) in SINGLE_LAYERS.items():
        for label, tokens in (("decode-B1", 1), ("prefill-1024", 1024)):
            kernels = engines[key]["profiles"][label]["layers"][layer]
            (place,) = [place for place, (kernel, _) in enumerate(kernels) if kernel.startswith(SUM)]
            kernel, time_us = kernels[place + 1]
            assert kernel.startswith(COPIES[1024]), "the copy follows the sum"
            yield _copy(name, load_model(name).hidden, tokens, (1, time_us))


def _experts(model: Model) -> MoeFfn:
    return next(layer.ffn for layer in model.kinds if isinstance(layer.ffn, MoeFfn))


def _launched(kernels: list[tuple[str, int, float]], name: str) -> tuple[int, float]:
    """(number, total time in us) of the kernels of a step whose name begins so."""
    (found,) = [(count, total_us) for kernel, count, total_us in kernels if kernel.startswith(name)]
    return found


def _small_copy_us(engine: dict[str, Any]) -> float:
    """What the copies outside layers take: a decode has no others of this name."""
    (decode,) = [profile for profile in engine["profiles"] if profile["label"] == "decode-B1"]
    count, total_us = _launched(decode["by_kernel"], COPIES[1024])
    assert count == OTHER_COPIES, "copies outside layers"
    return total_us / count


def _copy(model: str, hidden: int, tokens: int, launched: tuple[int, float]) -> Row:
    moved, rows = 4.0 * hidden * tokens, {"m": tokens}
    return _row("expert_copy", "cuda/memcpy", f"{model}/moe_output", rows, hidden, moved, launched, tokens)


def _row(
    operation: str,
    kernel: str,
    tag: str,
    rows: dict[str, int],
    columns: int,
    moved: float,
    launched: tuple[int, float],
    tokens: int,
) -> Row:
    count, total_us = launched
    time_us = round(total_us / count, 3)
    return {
        **{"op": operation, "kernel": kernel, "dtype": "bf16", "tag": f"{tag}/tp1"},
        **rows,
        **{"n": columns, "cold_us": time_us, "graph_us": time_us, "samples": count, "bytes": moved},
        **{"rotated_us": time_us, "rotated_clock_mhz": LIGHT_MHZ if tokens == 1 else REFERENCE_MHZ},
        "run": "engines",
    }


def provenance(environment: dict[str, Any]) -> dict[str, Any]:
    versions = {name: environment["versions"][name] for name in ("vllm", "torch", "triton")}
    return {
        "gpu": "h200",
        "runs": {
            "engines": {
                "environment": {"device": "NVIDIA H200", "versions": versions, "python": environment["python"]},
                "timing": {
                    "graph_us": "torch's profiler in one step of the running engine, mean over its layers (samples), "
                    "without what passes between kernels",
                    "cold_us, rotated_us": "the same: nothing was measured apart from an engine",
                },
            }
        },
        "cautions": [
            "one step each: spread between steps is not known",
            "clocks as the engine had them, not recorded: a decode of one request is taken to have run at that of "
            "light loads (clocks.csv), prompts at the reference clock, at which their products are the engine's",
            "300 tokens and one token: in a CUDA graph; more, and copies of DeepSeek-V3: eager",
        ],
        "points": "Qwen3-30B-A3B, DeepSeek-V3 and Qwen3-Next-80B-A3B, 1, 300, 1024, 2048 and 4096 tokens. moe_sum: sum "
        "over the experts of a token (torch.sum over [T, k, h], as vLLM 0.24.0 has it for more than four experts); m: "
        "pairs of tokens and experts. silu_and_mul: activation of pairs. topk_softmax: choice of experts by softmax of "
        "scores in bf16, but for DeepSeek-V3. expert_copy: copy of the results, Qwen3-30B-A3B and DeepSeek-V3",
    }


if __name__ == "__main__":
    main()
