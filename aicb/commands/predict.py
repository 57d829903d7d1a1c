"""The command that prices a table of operators."""

from __future__ import annotations

import csv
import io
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from aicb.kernels.fitting.estimate import UnmeasuredShape
from boundary.output_files import check_output, write_atomically
from boundary.text_files import read_text


class TimingName(StrEnum):
    """Kinds of time, see ``aicb.measurements.timing``."""

    ENGINE = "engine"
    GRAPH = "graph"
    COLD = "cold"


class EstimatorName(StrEnum):
    """Estimators, see ``aicb.estimators.selection``."""

    AUTO = "auto"
    INTERPOLATION = "interpolation"
    FOREST = "forest"
    TRANSFER = "transfer"
    ROOFLINE = "roofline"


class StateName(StrEnum):
    """Formats of recurrent state."""

    BF16 = "bf16"
    FP32 = "fp32"


def register(app: typer.Typer) -> None:
    """Adds ``predict`` to the command line."""
    app.command()(predict)


def predict(
    gpu: Annotated[str, typer.Option(help="GPU by name (h200), or a folder with gpu.yaml.")],
    table: Annotated[Path, typer.Option(help="CSV with a column op and the shape columns of each operation.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV to write: the input and four more columns.")],
    timing: Annotated[
        TimingName,
        typer.Option(
            help="graph: warm graph replay, cold where not measured. cold: flushed L2. engine: inside a model."
        ),
    ] = TimingName.GRAPH,
    estimator: Annotated[
        EstimatorName,
        typer.Option(
            help="auto: the GPU's table, transfer from the H200 for what it lacks; forest: forests on the table."
        ),
    ] = EstimatorName.AUTO,
    state: Annotated[
        StateName, typer.Option(help="Format of gated-delta-rule state; measured: fp32.")
    ] = StateName.FP32,
    measured_only: Annotated[bool, typer.Option(help="Fail (exit code 1) where a time would be an estimate.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Price the operators of a CSV table: adds time, error and source. Columns: see aicb/README.md."""
    from aicb.estimators.selection import select_estimator
    from aicb.formats import operator_table
    from aicb.measurements.gpu import get_gpu, gpu_files
    from aicb.model.precision import Precision

    check_output(output, [table, *gpu_files(gpu)])
    pricing = select_estimator(estimator.value, get_gpu(gpu), Precision(state=state.value), timing.value)
    columns, rows, estimates = operator_table.predict(
        read_text(table, "a table").splitlines(keepends=True), pricing, str(table)
    )
    estimated = [i for i, found in enumerate(estimates) if found.is_estimate]
    if measured_only and estimated:
        raise UnmeasuredShape(f"{table}: row {estimated[0] + 1}: {estimates[estimated[0]].source}")
    _write(
        output,
        [*columns, *operator_table.ADDED_COLUMNS],
        [
            [*row.values(), f"{found.time_us:.10g}", str(found.is_estimate).lower(), found.source, f"{found.error:.3g}"]
            for row, found in zip(rows, estimates, strict=True)
        ],
    )
    summary = {"rows": len(rows), "estimates": len(estimated), "output": str(output)}
    typer.echo(json.dumps(summary) if as_json else f"{len(rows)} rows, {len(estimated)} estimates: {output}")


def _write(path: Path, columns: list[str], rows: list[list[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
