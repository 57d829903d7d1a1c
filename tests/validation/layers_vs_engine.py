#!/usr/bin/env python3
"""Compares the operators that are priced for a layer with the kernels that vLLM 0.24.0 ran for it.

    python -m tests.validation.layers_vs_engine

A prompt of 1,024 tokens and a decode of one request on one H200, eagerly, so that kernels keep names by which they can
be told (``tests/data/engine/vllm-eager-layers.json.gz``). ``LAYERS`` and ``DECODES`` say in the engine's order which
operators its kernels compute. Steps are marked where compiled pieces, which are vLLM's default and what is priced, run
other kernels; whole prefills of these are compared apart (``vllm-host-default.json.gz``).
Times of single layers are at the reference clock, and so are those of stages that end before the clock of their load
is reached, which takes some 65 ms (docs/accuracy/engines.md): the engine was idle before each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from aicb.estimators.estimator import Estimator
from aicb.estimators.selection import select_estimator
from aicb.iteration.host import HostModel
from aicb.iteration.model import IterationModel
from aicb.iteration.overlap import Overlap
from aicb.iteration.pricing import price_lists
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.batch import Batch
from aicb.operators.lists import attention_operators, head_operators
from aicb.operators.operator import Operator
from tests.validation.engine_figures import Comparison, read_measurement

TOKENS = 1024
SETTLING_MS = 65.0
CONTEXT = 514
"""Of the decode: a prompt of 512 and two steps."""
MODELS = {
    "qwen3-8b": ("qwen3-8b", None, "bf16"),
    "qwen3-30b-a3b": ("qwen3-30b-a3b", None, "bf16"),
    "qwen3-next-80b-l8": ("qwen3-next-80b-a3b", 8, "bf16"),
    "deepseek-v3-l8": ("deepseek-v3", 8, "fp8"),
}
"""By name in the measurements: built-in model, layers where it was cut, format of weights."""
ENGINE_KERNELS = {
    "mla_kernel": "fa3_chunks",
    "gqa_kernel": "fa3_captured",
    "quant_kernel": "vllm",
    "dense_kernel": "flashinfer",
    "rope_kernel": "compiled",
    "hybrid_kernels": "compiled",
    "moe_kernels": "vllm",
}
"""What vLLM 0.24 runs."""
ENGINE_OVERLAP = Overlap(shared_expert_stream=True, shared_expert_tokens=256)

KERNELS = {
    "add_norm": "fused_add_rms_norm",
    "norm": "vllm::rms_norm_kernel",
    "head_norm_rope": "_fused_qk_rmsnorm_rope_gate",
    "layer_norm": "layer_norm_fwd",
    "rotary": "rotary_embedding_kernel|BatchQKApplyRotary",
    "cache": "reshape_and_cache|concat_and_cache",
    "attention": "FlashAttnFwd(Sm90|Combine)",
    "schedule": "prepare_varlen_num_blocks",
    "product": "nvjet|deep_gemm|router_gemm",
    "split_k": "splitKreduce",
    "quantise": "per_token_group_quant|scale_1x128",
    "dot": "dot_kernel|reduce_1Block",
    "activation": "act_and_mul",
    "gating": "topkGating|grouped_topk",
    "align": "moe_align_block_size|count_and_sort_expert",
    "experts": "fused_moe_kernel",
    "sum": r"reduce_kernel<128, 4",
    "concat": "ConcatMLAK|CatArray",
    "conv": "_causal_conv1d_(fwd|update)",
    "after_conv": "_fused_post_conv",
    "delta_rule": "chunk_|merge_16x16|recompute_w_u|fused_recurrent",
    "memory": "^Mem(cpy|set)",
    "torch": "at::native::",
}
"""Classes of kernels: patterns of their names, the first that is found."""


@dataclass(frozen=True, slots=True)
class Step:
    """Consecutive kernels of the engine that compute some operators."""

    operators: tuple[str, ...]
    """Empty: nothing is priced for these kernels."""
    kernels: tuple[str, ...]
    """In order, by ``KERNELS``."""
    is_eager: bool
    """Compiled pieces run other kernels for it."""


def steps(text: str) -> tuple[Step, ...]:
    """A step per line, ``operators: kernels``; ``N*kernel`` is repeated, ``!`` before a line marks what is compiled."""
    return tuple(_step(line.strip()) for line in text.strip().splitlines())


def _step(line: str) -> Step:
    operators, kernels = line.lstrip("!").split(":")
    listed: list[str] = []
    for kernel in kernels.split():
        number, _, name = kernel.rpartition("*")
        listed += [name] * int(number or 1)
    return Step(tuple(operators.replace("-", "").split()), tuple(listed), line.startswith("!"))


GROUPED_ATTENTION = """
input_norm: add_norm
qkv: product
!q_norm k_norm rope: 2*norm rotary
kv_write: cache
prefill_attention: attention torch
o: product
post_attention_norm: add_norm
"""
EXPERTS = """
router: product
topk: gating
moe_align: 2*align
moe_gate_up: experts
moe_silu_mul: activation
moe_down: experts
moe_unpermute: sum
moe_output: memory
"""
NEXT_EXPERTS = """
!-: memory
!post_attention_norm: 13*torch
router: product
shared_gate_up: product
shared_silu_mul: activation
shared_down: product
shared_gate: product
shared_gate_sigmoid shared_gate_mul: 2*torch
topk: gating
moe_align: 2*align
moe_gate_up: experts
moe_silu_mul: activation
moe_down: experts
moe_unpermute: sum
moe_output: memory
!-: torch
"""
LATENT_ATTENTION = """
input_norm: add_norm
attention_quant: quantise
qkv_a: product
q_a_norm: norm
q_b_quant: quantise
q_b: product
kv_a_norm: norm
!rope: rotary
kv_write: cache
kv_b_quant: quantise
kv_b: product
kv_b_assemble_k: concat
prefill_attention: schedule attention
-: memory
o_quant: quantise
o: product
post_attention_norm: add_norm
"""
LAYERS = {
    ("qwen3-8b", "layer"): steps(
        GROUPED_ATTENTION
        + """-: memory
        ffn_gate_up: product
        ffn_silu_mul: activation
        ffn_down: product"""
    ),
    ("qwen3-30b-a3b", "layer"): steps(GROUPED_ATTENTION + EXPERTS.strip()),
    ("qwen3-next-80b-l8", "gated delta"): steps(
        """!input_norm: 13*torch
        -: memory
        gdn_qkvz: product
        gdn_ba: product
        !gdn_split gdn_join gdn_clear: 6*torch concat torch
        gdn_conv: conv
        gdn_prepare: after_conv
        gdn_prefill: 4*torch 2*delta_rule torch 4*delta_rule 3*torch
        gdn_results: memory
        !gdn_norm_sums gdn_gated_norm: layer_norm
        gdn_out: product"""
        + NEXT_EXPERTS.rstrip()
    ),
    ("qwen3-next-80b-l8", "attention"): steps(
        """!input_norm: 13*torch
        -: memory
        qkv: product
        !gated_head_norm: 4*torch head_norm_rope
        kv_write: cache
        prefill_attention: attention torch
        !output_gate: 2*torch
        o: product"""
        + NEXT_EXPERTS.rstrip()
    ),
    ("deepseek-v3-l8", "dense"): steps(
        LATENT_ATTENTION
        + """ffn_quant: quantise
        ffn_gate_up: product
        ffn_silu_mul: activation
        ffn_down_quant: quantise
        ffn_down: product"""
    ),
    ("deepseek-v3-l8", "experts"): steps(
        LATENT_ATTENTION
        + """router: product split_k
        shared_quant: quantise
        shared_gate_up: product
        shared_silu_mul: activation
        shared_down_quant: quantise
        shared_down: product
        topk: gating
        moe_quant: quantise
        moe_align: 2*align
        moe_gate_up: experts
        moe_silu_mul: activation
        moe_down_quant: quantise
        moe_down: experts
        moe_unpermute: sum
        moe_output: memory
        shared_add: 2*torch"""
    ),
}
"""What the kernels of each kind of layer compute, in the engine's order."""
DECODED_EXPERTS = """
topk: gating
moe_align: torch
moe_gate_up: experts
moe_silu_mul: activation
moe_down: experts
moe_unpermute: sum
moe_output: memory
"""
DECODED_SHARED = """
shared_gate_up: product
shared_silu_mul: activation
shared_down: product
shared_gate: 2*dot
shared_gate_sigmoid shared_gate_mul: 2*torch
!-: torch
"""
DECODED_ATTENTION = """
input_norm: add_norm
qkv: product
!q_norm k_norm rope: 2*norm rotary
kv_write: cache
decode_attention: 2*attention
o: product split_k
post_attention_norm: add_norm
"""
DECODED_LATENT = """
input_norm: add_norm
qkv_a: quantise product
q_a_norm: norm
q_b: quantise product
kv_a_norm: norm
rope: rotary
kv_write: cache
q_absorb: product
mla_decode: 2*attention
o_unabsorb: product
o: quantise product
post_attention_norm: add_norm
"""
DECODES = {
    ("qwen3-8b", "layer"): steps(
        DECODED_ATTENTION
        + """ffn_gate_up: product
        ffn_silu_mul: activation
        ffn_down: product split_k"""
    ),
    ("qwen3-30b-a3b", "layer"): steps(DECODED_ATTENTION + "router: product" + DECODED_EXPERTS.rstrip()),
    ("qwen3-next-80b-l8", "gated delta"): steps(
        """!input_norm: 13*torch
        gdn_qkvz: product
        gdn_ba: product
        !gdn_split gdn_join gdn_clear: 6*torch concat torch
        gdn_conv: conv
        gdn_decode: delta_rule
        !gdn_norm_sums gdn_gated_norm: layer_norm
        gdn_out: product split_k
        !-: memory
        !post_attention_norm: 13*torch
        router: product"""
        + DECODED_EXPERTS.rstrip()
        + DECODED_SHARED.rstrip()
    ),
    ("qwen3-next-80b-l8", "attention"): steps(
        """!input_norm: 13*torch
        qkv: product
        !gated_head_norm: 4*torch head_norm_rope
        kv_write: cache
        decode_attention: 2*attention
        !output_gate: 2*torch
        o: product split_k
        !-: memory
        !post_attention_norm: 13*torch
        router: product"""
        + DECODED_EXPERTS.rstrip()
        + DECODED_SHARED.rstrip()
    ),
    ("deepseek-v3-l8", "dense"): steps(
        DECODED_LATENT
        + """ffn_gate_up: quantise product
        ffn_silu_mul: activation
        ffn_down: quantise product"""
    ),
    ("deepseek-v3-l8", "experts"): steps(
        DECODED_LATENT
        + """router: product
        topk: gating
        moe_quant: quantise
        moe_align: torch
        moe_gate_up: experts
        moe_silu_mul: activation
        moe_down_quant: quantise
        moe_down: experts
        moe_unpermute: sum
        moe_output: memory
        shared_gate_up: quantise product
        shared_silu_mul: activation
        shared_down: quantise product
        shared_add: 2*torch"""
    ),
}
"""The same of a decode of one request, where quantisation of inputs belongs to the product."""
BATCHES = {"prefill-1024": (LAYERS, Batch.prefill([TOKENS])), "decode-B1": (DECODES, Batch.decode([CONTEXT]))}
"""By name in the measurements: steps and what was priced."""
PLACES = {"layer": 0, "dense": 0, "experts": 3, "gated delta": 0, "attention": 3}
"""Of a layer of each kind."""


@lru_cache
def _estimator(weights: str) -> Estimator:
    return select_estimator("auto", get_gpu("h200"), Precision(weights))  # type: ignore[arg-type]


def iteration_model(name: str, layers: slice | None = None) -> IterationModel:
    """The engine's model, or some of its layers; without gaps between kernels."""
    built_in, number, weights = MODELS[name]
    model = load_model(built_in)
    return IterationModel(
        replace(model, pattern=model.pattern[layers or slice(number)]),
        Partition(),
        Precision(weights),  # type: ignore[arg-type]
        get_gpu("h200"),
        estimator=_estimator(weights),
        host=replace(HostModel(), gap_us=0.0),
        experts_kernel="triton" if weights == "fp8" else "deep_gemm",
        overlap=ENGINE_OVERLAP,
        **ENGINE_KERNELS,  # type: ignore[arg-type]
    )


def stage_operators(model: IterationModel, batch: Batch) -> list[Operator]:
    """Operators of one iteration."""
    parallel, tokens = (model.model, model.partition, model.precision), int(batch.new_tokens.sum())
    return [
        *model._token_operators(tokens, 0),
        *model._as_run(attention_operators(*parallel, batch, stage=0, hybrid_kernels=model.hybrid_kernels)),
        *model._expert_operators(tokens, tokens, 0, bool(batch.is_decode.all())),
        *head_operators(*parallel, rows=1, stage=0),
    ]


def layer_operators(model: IterationModel, batch: str) -> dict[str, Operator]:
    """Operators of one of ``BATCHES`` in a model of one layer, by name, without embedding and head."""
    whole = {each.name for each in head_operators(model.model, model.partition, model.precision, rows=1, stage=0)}
    return {
        each.name: each for each in stage_operators(model, BATCHES[batch][1]) if each.name not in {"embedding", *whole}
    }


def layer_model(name: str, kind: str) -> IterationModel:
    """One layer of a kind."""
    return iteration_model(name, slice(PLACES[kind], PLACES[kind] + 1))


def kernels_of(name: str, kind: str, batch: str) -> list[tuple[str, float]]:
    """(class, microseconds) of each kernel of a layer in order."""
    listed = read_measurement("vllm-eager-layers")["models"][name]["profiles"][batch]["layers"][kind]
    return [(_class_of(kernel), time_us) for kernel, time_us in listed]


def _class_of(kernel: str) -> str:
    return next((name for name, pattern in KERNELS.items() if re.search(pattern, kernel)), kernel)


def compare_steps(name: str, kind: str, batch: str) -> Iterator[tuple[Step, Comparison]]:
    """Each step of a layer; operators that the head norms' kernel computes save their launch, as in a stage."""
    model = layer_model(name, kind)
    operators = layer_operators(model, batch)
    listed = BATCHES[batch][0][name, kind]
    priced = price_lists([[operators[each] for each in step.operators] for step in listed], model._pricing)
    measured = iter(kernels_of(name, kind, batch))
    for step, cost in zip(listed, priced, strict=True):
        measured_us = sum(next(measured)[1] for _ in step.kernels)
        yield step, Comparison(" ".join(step.operators) or "nothing", measured_us / 1e3, cost.total_ps / 1e9)


STEP_KERNELS = r"Memcpy HtoD|Memcpy DtoH|_compute_slot_mapping|ArgMax|CUDAFunctor_add<int>|compare_scalar"
"""Copies of inputs and outputs, and their preparation: of a step, not of its layers."""


def compare_stages(name: str) -> list[Comparison]:
    """Kernels of whole prefills in the default mode, the head included."""
    found: list[Comparison] = []
    model = iteration_model(name)
    for profile in sorted(_profiles(name), key=lambda each: str(each["label"])):
        phase, _, tokens = profile["label"].partition("-")
        if phase != "prefill" or int(tokens) < TOKENS:
            continue
        measured_ms = _kernels_ms(profile)
        if measured_ms < SETTLING_MS:
            simulated_ms = (
                price_lists([stage_operators(model, Batch.prefill([int(tokens)]))], model._pricing)[0].total_ps / 1e9
            )
        else:
            simulated_ms = _device_ms(model, Batch.prefill([int(tokens)]))
        found.append(Comparison(f"prefill of {tokens}", measured_ms, simulated_ms))
    return found


def compare_decode(name: str) -> Comparison:
    """A whole decode of one request in a CUDA graph, at the clock of such a load: the time in which some kernel runs,
    as those of shared experts run beside others."""
    (profile,) = [profile for profile in _profiles(name) if profile["label"] == "decode-B1"]
    decode = _device_ms(iteration_model(name), BATCHES["decode-B1"][1])
    beside_ms = (profile["gpu_sum_us"] - profile["gpu_busy_us"]) / 1e3
    return Comparison("decode of 1", _kernels_ms(profile) - beside_ms, decode)


def _profiles(name: str) -> list[dict[str, Any]]:
    return read_measurement("vllm-host-default")["models"][name]["profiles"]  # type: ignore[no-any-return]


def _kernels_ms(profile: dict[str, Any]) -> float:
    of_layers = (time_us for kernel, _, time_us in profile["by_kernel"] if not re.search(STEP_KERNELS, kernel))
    return float(sum(of_layers) / 1e3)


def _device_ms(model: IterationModel, batch: Batch) -> float:
    cost = model.price_device([batch])
    return (cost.compute_ps - cost.host_ps) / 1e9


def main() -> None:
    for batch, name, kind in ((batch, *layer) for batch in BATCHES for layer in LAYERS):
        print(f"{name}, {kind}, {batch}: measured, priced, us")
        for step, row in compare_steps(name, kind, batch):
            mark = "eager" if step.is_eager else ""
            print(f"  {row.name:24s} {row.measured_ms * 1e3:8.1f} {row.simulated_ms * 1e3:8.1f} {mark}")
    for name in MODELS:
        for row in (*compare_stages(name), compare_decode(name)):
            print(f"{name} {row.name}: {row.measured_ms:.2f} {row.simulated_ms:.2f} ms {row.error:+.1%}")


if __name__ == "__main__":
    main()
