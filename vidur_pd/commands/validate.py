"""``vidur-pd validate``: the accuracy tables, computed again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boundary.errors import InputError

if TYPE_CHECKING:
    from aicb.estimators.accuracy.held_out import Errors
    from aicb.estimators.accuracy.transferred import TransferErrors
    from vidur_pd.commands.validation.measured_engine import MeasuredEngine

Row = dict[str, Any]


class Section(StrEnum):
    """Parts of the accuracy tables."""

    COMPUTE = "compute"
    COUPLING = "coupling"
    SERVING = "serving"
    ENGINE = "engine"


class TimingName(StrEnum):
    """Kinds of kernel time, see ``aicb.estimators.Timing``."""

    GRAPH = "graph"
    COLD = "cold"
    ENGINE = "engine"


def validate(
    only: Annotated[list[Section] | None, typer.Option(help="Sections; all by default. Repeatable.")] = None,
    timing: Annotated[TimingName, typer.Option(help="Kind of kernel times (compute).")] = TimingName.ENGINE,
    kernels: Annotated[str, typer.Option(help="Only kernels whose name has this in it (compute).")] = "",
    cases: Annotated[str, typer.Option(help="Only these cases, separated by commas (coupling).")] = "",
    published: Annotated[Path | None, typer.Option(help="Folder of aiconfigurator's tables NAME.csv.gz.")] = None,
    measurements: Annotated[Path | None, typer.Option(help="Folder of serving runs vllm-MODEL-tp1.json.gz.")] = None,
    engine: Annotated[
        list[Path] | None, typer.Option(help="File of `aicb profile engine`, compared alone. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all rows as JSON, and nothing else.")] = False,
) -> None:
    """Compare estimates with held-out measurements, couplings with the exact one, and serving runs with an engine.

    Takes some minutes. What needs data that is not shipped is skipped with a line that says what is missing. Errors
    are relative, in percent in tables and as fractions in JSON. With --engine, only recordings of engines of your own
    are compared with their simulation, if --only asks for no more: on the host that was recorded (own), on the same as
    fast as it was in each phase (then), and on the default one.
    """
    tables: dict[str, list[Row]] = {}
    skipped: dict[str, str] = {}
    engines = _engines(engine or [])
    for section in only or ([Section.ENGINE] if engines else list(Section)):
        match section:
            case Section.COMPUTE:
                parts = _compute(timing.value, kernels, published, skipped)
            case Section.COUPLING:
                parts = {"coupling": _coupling(cases)}
            case Section.SERVING:
                parts = _serving(measurements, skipped)
            case Section.ENGINE:
                parts = _of_engines(engines, skipped)
        for title, rows in parts.items():
            tables[title] = list(rows)
            if not as_json:
                _print(title, tables[title])
    if as_json:
        typer.echo(json.dumps({**tables, "skipped": skipped}))
        return
    for title, reason in skipped.items():
        typer.echo(f"skipped {title}: {reason}")


def _compute(timing: str, kernels: str, published: Path | None, skipped: dict[str, str]) -> dict[str, Iterable[Row]]:
    from aicb.estimators.accuracy.held_out import beyond, cases, held_out, repeats
    from aicb.estimators.accuracy.measured_transfers import measured_experts, measured_transfers
    from aicb.estimators.accuracy.published import published as compare_published
    from aicb.estimators.accuracy.transferred import transferred

    chosen = [case for case in cases(timing) if kernels in case.kernel]  # type: ignore[arg-type]
    if not chosen:
        known = sorted({case.kernel for case in cases(timing)})  # type: ignore[arg-type]
        raise InputError(f"--kernels: found {kernels!r}, expected part of one of {', '.join(known)}")
    parts: dict[str, Iterable[Row]] = {
        f"kernels held out, {timing} times": (_errors(found) for case in chosen for found in held_out(case)),
        f"kernels beyond measured ranges, {timing} times": (
            _errors(found) for case in {id(case.surface): case for case in chosen}.values() for found in beyond(case)
        ),
    }
    if not kernels:
        parts["the same shapes in two sessions"] = map(_errors, repeats(timing))  # type: ignore[arg-type]
        parts["transferred to an H100, our measurements"] = map(_errors, measured_transfers())
        parts["transferred to an H100, vLLM's experts"] = map(_errors, measured_experts())
    if published is not None:
        parts["published tables"] = map(_errors, compare_published(published))
        parts["transferred to an H100, published tables"] = map(_errors, transferred(published))
    else:
        for title in ("published tables", "transferred to an H100, published tables"):
            skipped[title] = "found no --published, expected a folder of aiconfigurator's tables"
    return parts


def _errors(found: Errors | TransferErrors) -> Row:
    return asdict(found)


def _coupling(names: str) -> Iterator[Row]:
    from vidur_pd.commands.validation.coupling import CASES, compare

    chosen = [name.strip() for name in names.split(",") if name.strip()] or list(CASES)
    for name in chosen:
        if name not in CASES:
            raise InputError(f"--cases: found {name!r}, expected some of {', '.join(CASES)}")
    for name in chosen:
        found = compare(CASES[name])
        for coupling in ("isolated", "fluid"):
            yield {"case": name, "coupling": coupling, **found[coupling].errors(found["exact"])}


def _serving(folder: Path | None, skipped: dict[str, str]) -> dict[str, Iterable[Row]]:
    from vidur_pd.commands.validation.serving import compare_serving, measurements

    if folder is None:
        skipped["serving"] = "found no --measurements, expected a folder of vllm-MODEL-tp1.json.gz"
        return {}
    found = measurements(folder)
    if not found:
        raise InputError(f"{folder}: found no vllm-MODEL-tp1.json.gz, expected measured serving runs")
    return {
        f"serving, {model}": (
            asdict(row) | {"error": row.error, "p90_error": row.p90_error} for row in compare_serving(path, model)
        )
        for model, path in found.items()
    }


def _engines(files: list[Path]) -> list[MeasuredEngine]:
    """Recorded engines, each of which can be simulated."""
    if not files:
        return []
    from vidur_pd.commands.validation.engine import check_simulable
    from vidur_pd.commands.validation.measured_engine import read_engine

    engines = [read_engine(file) for file in dict.fromkeys(files)]
    for each in engines:
        check_simulable(each)
    return engines


def _of_engines(engines: list[MeasuredEngine], skipped: dict[str, str]) -> dict[str, Iterable[Row]]:
    from vidur_pd.commands.validation.engine import compare_hosts, drafted_tokens, mean_errors

    if not engines:
        skipped["engine"] = "found no --engine, expected a file of aicb profile engine"
    parts: dict[str, Iterable[Row]] = {}
    for each in engines:
        title, rows = f"engine {each.where}", list(compare_hosts(each))
        skipped |= {
            f"{load} of {each.where}": f"found a step of {step_s:.1f} s, expected a load in which no kernel is compiled"
            for load, step_s in each.compiling_s.items()
        }
        parts |= {title: rows, f"{title}, means of absolute errors": mean_errors(rows)}
        if drafts := list(drafted_tokens(each)):
            parts[f"{title}, tokens of a step"] = drafts
    return parts


def _print(title: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ():
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(name, value) for name, value in row.items()))
    (console if console.is_terminal else Console(width=120)).print(table)


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    if name == "ratio":
        return f"{value:.2f}"
    if not isinstance(value, float):
        return str(value)
    match name.rpartition("_")[2]:
        case "s":
            return f"{value:.4f}"
        case "ms" | "tokens":
            return f"{value:.2f}"
        case _:
            return f"{100 * value:.1f} %"
