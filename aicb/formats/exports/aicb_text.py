"""AICB's compute description: one text file of times per key, and a JSON file of their spread.

    {model}-world_size{ws}-tp{tp}-pp{pp}-ep{ep}-bpg{bs}-seq{seq}-{phase}.txt
    inference_term:{phase}
    {key}:
        time_gpu_max: <µs>
        time_gpu_min: <µs>
        time_gpu_avg: <µs>

A key holds the time of one layer that has it. Predicted times do not vary, so minimum, mean and maximum agree. The file
name carries the real pp. Keys follow the model: DeepSeek's for latent attention, else those of Qwen3, with ``mlp_up``
and ``mlp_down`` for dense layers.
"""

from __future__ import annotations

import json
from pathlib import Path

from aicb.formats.exports.layers import ExportJob, LayerCost
from aicb.model.architecture import LatentAttention
from boundary.errors import InputError
from boundary.output_files import write_atomically
from boundary.quoting import quoted
from boundary.text_files import read_text

_DEEPSEEK_KEYS = {
    "atten_norm": "atten_qkv",
    "atten_rotary_emb": "atten_qkv",
    "atten_o": "atten_linear",
    "moe_norm": "moe_up_gate",
    "moe_route_gate": "moe_up_gate",
    "moe_route_select_experts": "moe_up_gate",
    "moe_expert_up": "moe_up_gate",
    "moe_expert_act": "moe_up_gate",
    "moe_expert_down": "moe_down",
    "shared_up": "moe_up_gate",
    "shared_act": "moe_up_gate",
    "shared_down": "moe_down",
}
_QWEN_KEYS = {"shared_up": "moe_expert_up", "shared_act": "moe_expert_act", "shared_down": "moe_expert_down"}

LAYER_OF_KEY = (
    ("atten_norm", "attention_norm"),
    ("gdn", "attention_gdn"),
    ("atten", "attention_layer"),
    ("mlp", "mlp"),
    ("moe_norm", "moe_norm"),
    ("moe_route", "moe_route"),
    ("moe", "moe_expert"),
)
"""Substring of a key and the layer its readers add it to; the first that fits."""


def write_aicb(job: ExportJob, costs: list[LayerCost], directory: Path) -> list[Path]:
    """Writes the description and its companion; returns both paths."""
    description, companion = aicb_paths(job, directory)
    times = _key_times(costs)
    lines = [f"inference_term:{job.phase}"]
    for key, time_us in times.items():
        lines.append(f"{key}:")
        lines += [f"    time_gpu_{kind}: {time_us:.6f}" for kind in ("max", "min", "avg")]
    write_atomically(description, "\n".join(lines) + "\n")
    spread = {key: {"variance": 0.0, "P99": round(time_us, 6)} for key, time_us in times.items()}
    write_atomically(companion, json.dumps(spread, indent=1) + "\n")
    return [description, companion]


def aicb_paths(job: ExportJob, directory: Path) -> list[Path]:
    """Files of an export: the description and its companion."""
    return [directory / f"{job.stem('bpg')}.txt", directory / f"{job.model_name}_time_list_stats.txt"]


def _key_times(costs: list[LayerCost]) -> dict[str, float]:
    """µs per key; kinds of layers that share a key (dense and MoE attention) cost the same and are taken once."""
    times: dict[str, float] = {}
    for cost in costs:
        keys = _DEEPSEEK_KEYS if isinstance(cost.layer.attention, LatentAttention) else _QWEN_KEYS
        own: dict[str, float] = {}
        for part, time_us in cost.part_us.items():
            key = keys.get(part, part)
            own[key] = own.get(key, 0.0) + time_us
        for key, time_us in own.items():
            times.setdefault(key, time_us)
    return times


def read_aicb(path: Path) -> tuple[str, dict[str, dict[str, float]]]:
    """Phase, and per key the times ``max``, ``min``, ``avg`` [µs].

    Raises:
        InputError: the file is not such a description.
    """
    first, *lines = read_text(path, "an AICB compute description").splitlines() or [""]
    word, _, phase = first.partition(":")
    if word != "inference_term":
        raise InputError(
            f"{path}: line 1: found {quoted(first)}, expected inference_term:prefill or inference_term:decode"
        )
    times: dict[str, dict[str, float]] = {}
    key = ""
    for number, line in enumerate(lines, start=2):
        name, _, value = line.strip().partition(":")
        if not line.startswith(" "):
            key = name
            times[key] = {}
            continue
        try:
            times[key][name.removeprefix("time_gpu_")] = float(value)
        except (KeyError, ValueError):
            raise InputError(f"{path}: line {number}: found {quoted(line)}, expected a time in microseconds") from None
    return phase.strip(), times


def sum_by_layer(times: dict[str, dict[str, float]]) -> dict[str, int]:
    """[ns] what readers of the format add up, by ``LAYER_OF_KEY``."""
    sums: dict[str, int] = {}
    for key, values in times.items():
        layer = next((layer for word, layer in LAYER_OF_KEY if word in key), None)
        if layer is not None:
            sums[layer] = sums.get(layer, 0) + round(values["avg"] * 1000)
    return sums
