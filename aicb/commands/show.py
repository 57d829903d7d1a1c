"""Commands that look at a model: its operators with shapes, FLOPs and bytes, and the memory it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, cast

import numpy as np
import typer

from aicb.commands.predict import EstimatorName
from aicb.experts.load import ExpertLoad, parse_expert_load
from aicb.experts.profile import RankLoad, load_profile
from aicb.kernels.kernel import Kernel
from aicb.measurements.gpu import get_gpu
from aicb.model.architecture import Model, MoeFfn, kv_bytes_per_token_per_rank, state_bytes_per_rank
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import KvDtype, Precision, WeightDtype
from aicb.operators.batch import Batch
from aicb.operators.dense_kernel import check_dense_kernel
from aicb.operators.experts_kernel import check_experts_kernel
from aicb.operators.gqa import check_gqa_kernel
from aicb.operators.hybrid_kernels import check_hybrid_kernels
from aicb.operators.lists import iteration_operators
from aicb.operators.memory import GPU_MEMORY_UTILIZATION, InstanceMemory, instance_memory, weight_bytes
from aicb.operators.mla import check_mla_kernel, check_rope_kernel
from aicb.operators.moe_kernels import check_moe_kernels
from aicb.operators.norm_kernel import check_norm_kernel
from aicb.operators.operator import Communication, Operator
from aicb.operators.quantisation import check_quant_kernel
from boundary.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from aicb.commands.iteration import EngineKernels, KernelTime

MAX_TOKENS = 10_000_000
"""Of one iteration; engines batch thousands."""
MAX_KV_TOKENS = 100_000_000
"""Of one request; published models end at some millions."""
TABLE_COLUMNS = 120
"""Width of tables that are not drawn on a terminal."""


class RequestPhase(StrEnum):
    """Kind of requests in a shown batch."""

    PREFILL = "prefill"
    DECODE = "decode"


class Format(StrEnum):
    """Number formats on the command line."""

    BF16 = "bf16"
    FP8 = "fp8"


class WeightFormat(StrEnum):
    """Number formats of weights on the command line."""

    BF16 = "bf16"
    FP8 = "fp8"
    MXFP4 = "mxfp4"


_DTYPES: dict[Format, KvDtype] = {Format.BF16: "bf16", Format.FP8: "fp8"}
_WEIGHTS: dict[WeightFormat, WeightDtype] = {
    WeightFormat.BF16: "bf16",
    WeightFormat.FP8: "fp8",
    WeightFormat.MXFP4: "mxfp4",
}


ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Built-in name, or path of a config.json.")]
Tp = Annotated[int, typer.Option(help="Tensor-parallel size of attention.")]
Ep = Annotated[int, typer.Option(help="Expert-parallel size: 1, or tp·dp.")]
Dp = Annotated[int, typer.Option(help="Data-parallel attention ranks.")]
Pp = Annotated[int, typer.Option(help="Pipeline stages.")]
RedundantExperts = Annotated[int, typer.Option(help="Expert slots beyond the model's experts.")]
Weights = Annotated[
    WeightFormat,
    typer.Option(help="Format of weights; fp8 with 128x128 block scales, mxfp4 of the experts of gpt-oss."),
]
KvFormat = Annotated[Format, typer.Option(help="Format of the KV cache.")]
ExpertLoadText = Annotated[
    str | None,
    typer.Option(help="balanced, uniform, zipf:S, power_law:A or recorded:FILE: rows of the slowest rank."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    """Adds ``show`` and ``memory`` to the command line."""
    app.command()(show)
    app.command()(memory)


def show(
    model: ModelName,
    tp: Tp = 1,
    ep: Ep = 1,
    dp: Dp = 1,
    pp: Pp = 1,
    stage: Annotated[int, typer.Option(help="Pipeline stage to show.")] = 0,
    phase: Annotated[RequestPhase, typer.Option(help="One prefill, or a batch of decodes.")] = RequestPhase.DECODE,
    tokens: Annotated[int, typer.Option(help="Tokens of one rank: of the prompt chunk, or one per decode.")] = 1,
    kv: Annotated[int | None, typer.Option(help="KV tokens per request, new ones included.")] = None,
    weights: Weights = WeightFormat.BF16,
    kv_format: KvFormat = Format.BF16,
    redundant_experts: RedundantExperts = 0,
    expert_load: ExpertLoadText = None,
    gpu: Annotated[str | None, typer.Option(help="Also price the iteration on this GPU.")] = None,
    estimator: Annotated[EstimatorName, typer.Option(help="Prices the kernels, with --gpu.")] = EstimatorName.AUTO,
    overlap_shared_expert: Annotated[bool, typer.Option(help="Shared expert on its own stream, with --gpu.")] = False,
    drafts: Annotated[int, typer.Option(help="Drafted tokens that decodes verify, with --gpu.")] = 0,
    acceptance: Annotated[
        float | None, typer.Option(help="Probability that a draft is accepted: by default that of DeepSeek's layer.")
    ] = None,
    experts_kernel: Annotated[
        str,
        typer.Option(
            help="Of fp8 experts: deep_gemm, flashinfer, triton, triton_sglang; of mxfp4 ones: marlin, else Triton."
        ),
    ] = "deep_gemm",
    mla_kernel: Annotated[
        str, typer.Option(help="Of decodes of latents: flash_mla, fa3, fa3_chunks, fa3_sglang, flashinfer.")
    ] = "flash_mla",
    gqa_kernel: Annotated[str, typer.Option(help="Of other decodes: fa3, fa3_captured, fa3_sglang.")] = "fa3",
    quant_kernel: Annotated[str, typer.Option(help="Before fp8 products: triton or vllm.")] = "triton",
    dense_kernel: Annotated[str, typer.Option(help="Of other fp8 products: deep_gemm or flashinfer.")] = "deep_gemm",
    rope_kernel: Annotated[str, typer.Option(help="Of RoPE: in_place, compiled (of latents), sglang.")] = "in_place",
    hybrid_kernels: Annotated[str, typer.Option(help="Around gated delta rules: fused or compiled.")] = "fused",
    norm_kernel: Annotated[str, typer.Option(help="After all-reduces: apart or flashinfer.")] = "apart",
    moe_kernels: Annotated[str, typer.Option(help="Around experts' products: generic, sglang or vllm.")] = "generic",
    as_json: AsJson = False,
) -> None:
    """List the operators of one iteration on one rank, with shapes, FLOPs, bytes and weights.

    --kv defaults to the tokens of a prefill, and to 1024 for decodes. Values are per execution; totals multiply by
    the number of layers that repeat an operator. With --gpu, the compute time of the iteration is added: all ranks
    have this batch, the slowest is priced, collectives are not. So is the time of each kernel alone, at the reference
    clock of the GPU, with what it is taken from. Which kernels an engine runs is stated by --experts-kernel,
    --mla-kernel, --gqa-kernel, --quant-kernel, --dense-kernel, --rope-kernel, --hybrid-kernels, --norm-kernel and
    --moe-kernels.
    Without --expert-load, rows are those expected under uniform routing; an iteration is then priced with uniform.
    """
    loaded = load_model(model)
    partition = Partition(tp=tp, ep=ep, dp=dp, pp=pp, redundant_experts=redundant_experts)
    precision = Precision(_WEIGHTS[weights], _DTYPES[kv_format])
    loaded.check(precision, "--weights")
    if gpu is not None:
        get_gpu(gpu).check(precision, "--weights")
    batch = _shown_batch(phase, tokens, kv)
    load = parse_expert_load(expert_load) if expert_load is not None else None
    of_rank = None if load is None else _rank_load(load, partition)
    check_experts_kernel(experts_kernel, partition, precision)
    kernels = _engine_kernels(
        experts_kernel=experts_kernel,
        mla_kernel=mla_kernel,
        gqa_kernel=gqa_kernel,
        quant_kernel=quant_kernel,
        dense_kernel=dense_kernel,
        rope_kernel=rope_kernel,
        hybrid_kernels=hybrid_kernels,
        norm_kernel=norm_kernel,
        moe_kernels=moe_kernels,
    )
    operators = iteration_operators(
        *(loaded, partition, precision, batch),
        stage=stage,
        load=of_rank,
        shared_expert_apart=overlap_shared_expert,
        **kernels,
    )
    if gpu is None and (drafts or overlap_shared_expert or estimator is not EstimatorName.AUTO):
        raise InputError("--gpu: found none, expected a GPU for --estimator, --drafts and --overlap-shared-expert")
    facts = {
        "model": loaded.name,
        "parameters": loaded.parameters,
        "active_parameters": loaded.active_parameters,
        "max_context_tokens": loaded.max_context_tokens,
        "partition": asdict(partition),
        "precision": asdict(precision),
        "stage": stage,
        "phase": phase.value,
        "tokens": tokens,
        "kv_bytes_per_token": loaded.kv_bytes_per_token(precision.kv),
        "kv_bytes_per_token_per_rank": kv_bytes_per_token_per_rank(loaded, partition, precision, stage),
        "state_bytes_per_request_per_rank": state_bytes_per_rank(loaded, partition, precision, stage),
    }
    priced: dict[str, object] = {}
    times: list[KernelTime] = []
    if gpu is not None:
        from aicb.commands.iteration import Choices, kernel_times, price_iteration

        chosen = Choices(gpu, estimator.value, load, overlap_shared_expert, drafts, acceptance, kernels)
        priced = price_iteration(loaded, partition, precision, batch, stage, chosen)
        times = kernel_times(operators, precision, chosen)
    if as_json:
        listed = [_as_row(operator) for operator in operators]
        for row, time in zip(listed, times, strict=bool(times)):
            row.update(asdict(time))
        result = {**facts, "operators": listed, "totals": _totals(operators)}
        typer.echo(json.dumps({**result, "iteration": priced} if priced else result, indent=1))
    else:
        _print(_operator_table(loaded, operators))
        typer.echo("  ".join(f"{name} {facts[name]:,}" for name in ("parameters", "active_parameters")))
        typer.echo("  ".join(f"{name} {value:,}" for name, value in facts.items() if "_bytes" in name))
        if priced:
            _print(_time_table(operators, times))
            typer.echo("iteration: " + "  ".join(f"{name} {value}" for name, value in priced.items()))


def _engine_kernels(**kernels: str) -> EngineKernels:
    """Raises: InputError, no such kernel; experts are checked by who knows how they are divided."""
    check_mla_kernel(kernels["mla_kernel"])
    check_gqa_kernel(kernels["gqa_kernel"])
    check_quant_kernel(kernels["quant_kernel"])
    check_dense_kernel(kernels["dense_kernel"])
    check_rope_kernel(kernels["rope_kernel"])
    check_hybrid_kernels(kernels["hybrid_kernels"])
    check_norm_kernel(kernels["norm_kernel"])
    check_moe_kernels(kernels["moe_kernels"])
    return cast("EngineKernels", kernels)


def _rank_load(load: ExpertLoad, partition: Partition) -> Callable[[MoeFfn, int], RankLoad]:
    """Experts of the slowest rank under a load."""
    return lambda moe, tokens: load_profile(load, (moe.experts, moe.experts_per_token), partition)(tokens)


def memory(
    model: ModelName,
    gpu: Annotated[str, typer.Option(help="GPU type.")] = "h200",
    tp: Tp = 1,
    ep: Ep = 1,
    dp: Dp = 1,
    pp: Pp = 1,
    redundant_experts: RedundantExperts = 0,
    weights: Weights = WeightFormat.BF16,
    kv_format: KvFormat = Format.BF16,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of HBM the instance may use; unless said vLLM's, as in a run.")
    ] = GPU_MEMORY_UTILIZATION,
    max_batched_tokens: Annotated[int, typer.Option(help="Tokens of the largest iteration.")] = 8192,
    max_seqs: Annotated[
        int,
        typer.Option(help="Requests of the largest batch; a run takes its engine's, which may be more."),
    ] = 256,
    block_tokens: Annotated[int, typer.Option(help="Tokens per KV block.")] = 16,
    cuda_graphs: Annotated[bool, typer.Option(help="Whether CUDA graphs are captured.")] = True,
    as_json: AsJson = False,
) -> None:
    """Plan the memory of the fullest GPU of an instance: weights, activations, runtime and KV blocks."""
    loaded, precision, known = load_model(model), Precision(_WEIGHTS[weights], _DTYPES[kv_format]), get_gpu(gpu)
    loaded.check(precision, "--weights")
    known.check(precision, "--weights")
    plan = instance_memory(
        loaded,
        Partition(tp=tp, ep=ep, dp=dp, pp=pp, redundant_experts=redundant_experts),
        precision,
        known,
        gpu_memory_utilization=gpu_memory_utilization,
        max_batched_tokens=max_batched_tokens,
        max_seqs=max_seqs,
        block_tokens=block_tokens,
        cuda_graphs=cuda_graphs,
    )
    if as_json:
        rows = {"model": loaded.name, "gpu": gpu, **asdict(plan), **_kv_rows(plan, block_tokens)}
        typer.echo(json.dumps(rows, indent=1))
    else:
        _print(_memory_table(f"{loaded.name} on {gpu}", plan, block_tokens))


def _kv_rows(plan: InstanceMemory, block_tokens: int) -> dict[str, object]:
    """Groups of layers where there are several, and the tokens of one request that would take all blocks."""
    groups = plan.kv_groups
    kept = groups.spanned * groups.most_spanned_blocks(block_tokens)
    rows: dict[str, object] = {"kv_tokens": max(plan.num_kv_blocks - kept, 0) // max(groups.whole, 1) * block_tokens}
    if groups.span is None:
        return {"kv_groups": 1, **rows}
    shown = f"{groups.whole} of all tokens, {groups.spanned} {groups.span.kind} ({groups.span.tokens} tokens)"
    return {"kv_groups": shown, **rows}


def _shown_batch(phase: RequestPhase, tokens: int, kv: int | None) -> Batch:
    if not 1 <= tokens <= MAX_TOKENS:
        raise InputError(f"--tokens: found {tokens}, expected 1 to {MAX_TOKENS}")
    if kv is not None and kv > MAX_KV_TOKENS:
        raise InputError(f"--kv: found {kv}, expected at most {MAX_KV_TOKENS}")
    if phase is RequestPhase.PREFILL:
        length = tokens if kv is None else kv
        if length < tokens:
            raise InputError(f"--kv: found {kv}, expected at least the {tokens} new tokens")
        return Batch.prefill([tokens], [length - tokens])
    length = 1024 if kv is None else kv
    if length < 2:
        raise InputError(f"--kv: found {kv}, expected at least 2 for a decode")
    return Batch.decode(np.full(tokens, length, dtype=np.int64))


def describe(kernel: Kernel | Communication) -> str:
    """Shape of an operator in few characters."""
    if isinstance(kernel, Communication):
        norm = " and norm" if kernel.is_normalised else ""
        return f"{kernel.op}{norm} {kernel.size_bytes} B in {kernel.group}"
    return kernel.describe()


def _as_row(operator: Operator) -> dict[str, object]:
    return {
        "name": operator.name,
        "count": operator.count,
        "phase": operator.phase.value,
        "kind": type(operator.kernel).__name__,
        "shape": describe(operator.kernel),
        "flops": operator.flops,
        "moved_bytes": operator.moved_bytes,
        "communicated_bytes": _communicated_bytes(operator),
        "weight_elements": operator.weight_elements,
        "weight_bytes": weight_bytes(operator),
    }


def _totals(operators: list[Operator]) -> dict[str, float]:
    return {
        "flops": sum(op.count * op.flops for op in operators),
        "moved_bytes": sum(op.count * op.moved_bytes for op in operators),
        "communicated_bytes": sum(op.count * _communicated_bytes(op) for op in operators),
        "weight_elements": sum(op.count * op.weight_elements for op in operators),
        "weight_bytes": sum(op.count * weight_bytes(op) for op in operators),
    }


def _communicated_bytes(operator: Operator) -> int:
    return operator.kernel.size_bytes if isinstance(operator.kernel, Communication) else 0


def _operator_table(model: Model, operators: list[Operator]) -> Table:
    from rich.table import Table

    table = Table(title=f"{model.name}: operators of one rank in one iteration", title_justify="left")
    table.add_column("operator", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("shape", overflow="fold")
    for name in ("GFLOP", "MB", "weights"):
        table.add_column(name, justify="right", no_wrap=True)
    for op in operators:
        elements = f"{op.weight_elements:,}" if op.weight_elements else ""
        moved = f"{op.moved_bytes / 1e6:.3f}" if op.moved_bytes else ""
        cells = (f"{op.flops / 1e9:.3f}" if op.flops else "", moved, elements)
        table.add_row(op.name, str(op.count), describe(op.kernel), *cells)
    table.add_section()
    totals = _totals(operators)
    cells = (f"{totals['flops'] / 1e9:,.3f}", f"{totals['moved_bytes'] / 1e6:,.3f}", f"{totals['weight_elements']:,}")
    sent = totals["communicated_bytes"]
    table.add_row("total, times count", "", f"communicated {sent:,.0f} B" if sent else "", *cells)
    return table


def _time_table(operators: list[Operator], times: list[KernelTime]) -> Table:
    from rich.table import Table

    table = Table(title="its kernels, each alone", title_justify="left")
    table.add_column("operator", no_wrap=True)
    for name in ("count", "µs", "times count"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("time from", overflow="fold")
    for operator, time in zip(operators, times, strict=True):
        if time.time_us is not None:
            both = (f"{time.time_us:,.2f}", f"{operator.count * time.time_us:,.1f}")
            table.add_row(operator.name, str(operator.count), *both, time.time_from)
    table.add_section()
    total_us = sum(operator.count * (time.time_us or 0.0) for operator, time in zip(operators, times, strict=True))
    table.add_row("total", "", "", f"{total_us:,.1f}", "")
    return table


def _memory_table(title: str, plan: InstanceMemory, block_tokens: int) -> Table:
    from rich.table import Table

    kv = _kv_rows(plan, block_tokens)
    rows = {
        "weights": _size(plan.weights_bytes),
        "activations": _size(plan.activation_bytes),
        "runtime": _size(plan.runtime_bytes),
        "left for KV": _size(plan.available_kv_bytes),
        "KV of a token": _size(plan.kv_bytes_per_token_per_rank),
        "state of a request": _size(plan.state_bytes_per_request_per_rank),
        "KV blocks": f"{plan.num_kv_blocks:,} of {block_tokens} tokens",
        "tokens of one request": f"{kv['kv_tokens']:,}",
    }
    if plan.kv_groups.span is not None:
        rows["groups of layers"] = str(kv["kv_groups"])
    table = Table("of the fullest GPU", "", title=f"memory of {title}", title_justify="left")
    table.columns[1].justify = "right"
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _size(size_bytes: int) -> str:
    """Bytes as GPUs and engines state their memory, in powers of 1024: ``109.7 GiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:,.4g} {unit}"
    return f"{size_bytes} B"


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_COLUMNS)
    console.print(table)
