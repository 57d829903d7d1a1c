"""Commands that exchange times with other simulators: export layer times, import measured tables."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from aicb.commands.show import MAX_KV_TOKENS, AsJson, Format, ModelName, RequestPhase
from boundary.errors import InputError
from boundary.output_files import check_output, make_folder

MOST_SEQUENCES = 2**16
"""Of one batch."""


class ExportFormat(StrEnum):
    """File formats of layer times."""

    AICB = "aicb"
    VIDUR = "vidur"
    SIMAI = "simai"


class ImportFormat(StrEnum):
    """Origins of measured tables."""

    AICONFIGURATOR = "aiconfigurator"
    INFERSIM = "infersim"
    VIDUR = "vidur"
    PROFILE = "profile"


_DTYPES: dict[Format, Literal["bf16", "fp8"]] = {Format.BF16: "bf16", Format.FP8: "fp8"}
_PHASES: dict[RequestPhase, Literal["prefill", "decode"]] = {
    RequestPhase.PREFILL: "prefill",
    RequestPhase.DECODE: "decode",
}


def register(app: typer.Typer) -> None:
    """Adds ``export`` and ``import`` to the command line."""
    app.command("export")(export)
    app.command("import")(import_tables)


def export(
    model: ModelName,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write to; made if missing.")],
    form: Annotated[ExportFormat, typer.Option("--format", help="File format.")],
    gpu: Annotated[str, typer.Option(help="GPU; without measurements, times are transferred from the H200.")] = "h200",
    tp: Annotated[int, typer.Option(help="Tensor-parallel size of attention.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel size: 1 or a multiple of tp.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    batch: Annotated[int, typer.Option(help="Requests per data-parallel rank.")] = 1,
    seq: Annotated[int, typer.Option(help="Prompt tokens (prefill) or KV tokens (decode) per request.")] = 1024,
    phase: Annotated[RequestPhase, typer.Option(help="Prefills or decodes.")] = RequestPhase.DECODE,
    weights: Annotated[Format, typer.Option(help="Format of weights.")] = Format.BF16,
    as_json: AsJson = False,
) -> None:
    """Write the compute time of every layer in the format of AICB, Vidur (SimAI's fork) or SimAI.

    Attention is data parallel over ep / tp ranks where ep exceeds tp. Routing is uniform; the slowest rank is priced.
    """
    from aicb.estimators.selection import select_estimator
    from aicb.formats.exports import (
        ExportJob,
        aicb_paths,
        layer_costs,
        simai_paths,
        vidur_paths,
        write_aicb,
        write_simai,
        write_vidur,
    )
    from aicb.measurements.gpu import get_gpu, gpu_files
    from aicb.model.catalog import load_model, model_files
    from aicb.model.partition import Partition
    from aicb.model.precision import Precision

    shortest = 1 if phase is RequestPhase.PREFILL else 2
    for name, value, least, most in (("batch", batch, 1, MOST_SEQUENCES), ("seq", seq, shortest, MAX_KV_TOKENS)):
        if not least <= value <= most:
            raise InputError(f"{name}: found {value}, expected {least} to {most}")
    if min(tp, ep) >= 1 and ep > 1 and ep % tp:
        raise InputError(f"ep: found {ep}, expected 1 or a multiple of tp {tp}")
    partition = Partition(tp=tp, ep=ep, dp=max(ep // tp, 1) if tp > 0 else 1, pp=pp)
    precision = Precision(_DTYPES[weights])
    device = get_gpu(gpu)
    device.check(precision, "--weights")
    loaded = load_model(model)
    loaded.check(precision, "--weights")
    job = ExportJob(loaded, partition, precision, _PHASES[phase], batch, seq)
    named, write = {
        ExportFormat.AICB: (aicb_paths, write_aicb),
        ExportFormat.VIDUR: (vidur_paths, write_vidur),
        ExportFormat.SIMAI: (simai_paths, write_simai),
    }[form]
    costs = layer_costs(job, select_estimator("auto", device, precision))
    make_folder(output)
    for path in named(job, output):
        check_output(path, [*model_files(model), *gpu_files(gpu)])
    paths = [str(path) for path in write(job, costs, output)]
    total_us, estimated_us = sum(sum(c.part_us.values()) for c in costs), sum(c.estimated_us for c in costs)
    summary = {"files": paths, "layers_us": round(total_us, 3), "estimated_share": round(estimated_us / total_us, 4)}
    typer.echo(
        json.dumps(summary)
        if as_json
        else f"{', '.join(paths)}: {total_us:.1f} µs in all layers, {estimated_us / total_us:.0%} estimates"
    )


def import_tables(
    tables: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Tables to read.")],
    form: Annotated[ImportFormat, typer.Option("--format", help="Where the tables come from.")],
    gpu: Annotated[str, typer.Option(help="GPU the times were measured on: a name, or a folder with gpu.yaml.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the new table; made if missing.")],
    where: Annotated[
        list[str] | None, typer.Option(help="COLUMN=VALUE: keep these rows only (version=0.5.14); repeatable.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads per rank, for InferSim's MLA tables.")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn measured kernel times, of other projects or of aicb profile, into a table (kernels.csv, provenance.json)."""
    from aicb.formats.imports import import_files, table_paths, write_table
    from aicb.measurements.gpu import get_gpu

    device = get_gpu(gpu)
    conditions = {}
    for text in where or []:
        column, separator, value = text.partition("=")
        if not separator:
            raise InputError(f"where: found {text!r}, expected COLUMN=VALUE")
        conditions[column] = value
    imported = import_files(form.value, tables, conditions, heads)
    make_folder(output)
    for path in table_paths(output):
        check_output(path, tables)
    write_table(imported, device, output)
    counts = {op: sum(row["op"] == op for row in imported.rows) for op in sorted({row["op"] for row in imported.rows})}
    summary = {"output": str(output), "rows": counts, "cautions": list(imported.cautions)}
    typer.echo(json.dumps(summary) if as_json else f"{output}: {', '.join(f'{n} {op}' for op, n in counts.items())}")
    if not as_json:
        for caution in imported.cautions:
            typer.echo(f"caution: {caution}")
