"""``vidur-pd workload``: look into, convert, generate and fit request traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from boundary.errors import InputError
from boundary.output_files import check_output
from vidur_pd.commands.own_columns import Columns, TimeUnitOption, known_unit, named_columns, read_own

if TYPE_CHECKING:
    from vidur_pd.config.workload import WorkloadFile
    from vidur_pd.workload import Workload
    from vidur_pd.workload.statistics import LengthStatistics, WorkloadStatistics

app = typer.Typer(help="Look into, convert, generate and fit request traces.", no_args_is_help=True)

ReadableFormat = Literal[
    "auto", "csv", "vidur", "vidur_lengths", "azure", "burstgpt", "mooncake", "qwen_bailian", "bench"
]
Format = Annotated[ReadableFormat, typer.Option("--format", help="Format of the trace that is read.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="File to write: .csv or .jsonl, optionally with .gz.")]
To = Annotated[
    Literal["csv", "vidur", "mooncake"] | None,
    typer.Option("--to", help="Format to write; by default csv for .csv, mooncake for .jsonl."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

SAMPLE = Path(__file__).parents[1] / "workload" / "data" / "sample_conversations.csv"
DEFAULT_WORKLOAD: dict[str, Any] = {
    "kind": "synthetic",
    "requests": 1000,
    "arrivals": {"kind": "poisson", "qps": 1.0},
    "lengths": {"kind": "fixed", "prefill": 2048, "decode": 512},
}
"""What ``generate`` starts from without a file; the lengths are Vidur's default."""


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="Trace, plain or .gz.")],
    trace_format: Format = "auto",
    columns: Columns = None,
    time_unit: TimeUnitOption = "s",
    as_json: AsJson = False,
) -> None:
    """Rate, burstiness, lengths and prefix reuse of a trace."""
    named = named_columns(columns or [])
    trace = read_own(path, named, known_unit(time_unit, named), trace_format)
    _show(trace.workload, as_json, {"format": trace.format})


@app.command()
def sample(
    output: Annotated[Path, typer.Option("--output", "-o", help="CSV file to write.")] = Path(
        "sample_conversations.csv"
    ),
) -> None:
    """Writes the trace that comes along: conversations whose rows say which prompts share their beginning."""
    from boundary.output_files import write_atomically

    check_output(output)
    write_atomically(output, SAMPLE.read_bytes())
    typer.echo(f"written {output}")


@app.command()
def convert(
    path: Annotated[Path, typer.Argument(help="Trace, plain or .gz.")],
    output: Output,
    trace_format: Format = "auto",
    columns: Columns = None,
    time_unit: TimeUnitOption = "s",
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """Rewrites a trace in another format.

    To change it as well (window, load, lengths), describe it in a file and use generate.
    """
    from vidur_pd.workload.writing import write_trace

    check_output(output, [path])
    named = named_columns(columns or [])
    trace = read_own(path, named, known_unit(time_unit, named), trace_format)
    if not trace.has_arrivals:
        raise InputError(f"{path}: found no arrival times, expected a trace with them (generate can draw some)")
    write_trace(trace.workload, output, to)
    _show(trace.workload, as_json, {"written": str(output)})


@app.command()
def generate(
    output: Output,
    config: Annotated[
        Path | None,
        typer.Argument(help="YAML with a workload section; a simulation's file will do."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a field: seed=1, workload.requests=500, workload.arrivals.qps=8, …"),
    ] = None,
    to: To = None,
    as_json: AsJson = False,
) -> None:
    """Writes the workload that a configuration describes, drawn or taken from a trace.

    Without a configuration: 1000 requests of 2048 + 512 tokens, one per second (Poisson), to be changed with --set.
    """
    from vidur_pd.workload import generator, load_workload
    from vidur_pd.workload.loading import trace_paths
    from vidur_pd.workload.writing import write_trace

    section = _configured(config, overrides or [])
    base_dir = Path() if config is None else config.parent
    check_output(output, [*([] if config is None else [config]), *trace_paths(section.workload, base_dir)])
    workload = load_workload(section.workload, base_dir=base_dir, rng=lambda name: generator(section.seed, name))
    write_trace(workload, output, to)
    _show(workload, as_json, {"written": str(output)})


@app.command()
def fit(
    path: Annotated[Path, typer.Argument(help="Trace in a known format, plain or .gz.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="YAML file to write.")],
    trace_format: Format = "auto",
    lengths: Annotated[Literal["quantiles", "lognormal"], typer.Option(help="Form of the lengths.")] = "quantiles",
    prefixes: Annotated[bool, typer.Option(help="Fit shared prefixes where the trace has block ids.")] = True,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the sample that is compared.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Turns a trace into a generator and says how well it fits.

    The file is a workload for generate, or for a simulation's file; how well it fits is in its first lines.
    """
    from boundary.output_files import write_atomically
    from boundary.yaml_text import dump_yaml
    from vidur_pd.config.workload import WorkloadFile
    from vidur_pd.workload import generator, load_workload, read_trace
    from vidur_pd.workload.fit_quality import measure_fit
    from vidur_pd.workload.fitting import fit_section

    check_output(output, [path])
    trace = read_trace(path, trace_format)
    if not trace.has_arrivals:
        raise InputError(f"{path}: found no arrival times, expected a trace with them (generate can draw some)")
    tree = {"seed": seed, "workload": fit_section(trace.workload, lengths, with_prefixes=prefixes)}
    fitted = WorkloadFile.model_validate(tree).workload
    sample = load_workload(fitted, base_dir=Path(), rng=lambda name: generator(seed, name))
    quality = measure_fit(trace.workload, sample)
    notes = [f"fitted to {path.name}", *(f"{name}: {text}" for name, text in quality.rows())]
    write_atomically(output, "".join([*(f"# {note}\n" for note in notes), dump_yaml(tree)]).encode())
    if as_json:
        typer.echo(json.dumps({"written": str(output)} | asdict(quality), indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join([*notes, f"written {output}"]))


def _configured(config: Path | None, overrides: list[str]) -> WorkloadFile:
    """The workload section of a file, or the default one, with the overrides applied.

    The other sections of a simulation's file are left out; whatever else is unknown is refused, in the file or in an
    override.
    """
    from pydantic import ValidationError

    from boundary.yaml_text import read_yaml_mapping
    from vidur_pd.config.file import apply_override, describe
    from vidur_pd.config.workload import WorkloadFile

    tree = (
        {"workload": deepcopy(DEFAULT_WORKLOAD)}
        if config is None
        else _without_other_sections(read_yaml_mapping(config, "a workload"))
    )
    for override in overrides:
        apply_override(tree, override)
    try:
        return WorkloadFile.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{config or 'options'}: {describe(error, WorkloadFile)}") from None


def _without_other_sections(tree: dict[str, Any]) -> dict[str, Any]:
    from vidur_pd.config import SimulationConfig
    from vidur_pd.config.workload import WorkloadFile

    others = SimulationConfig.model_fields.keys() - WorkloadFile.model_fields.keys()
    return {key: value for key, value in tree.items() if key not in others}


def _show(workload: Workload, as_json: bool, extra: dict[str, str]) -> None:
    from vidur_pd.workload.statistics import describe_workload

    statistics = describe_workload(workload)
    if as_json:
        typer.echo(json.dumps(asdict(statistics) | extra, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for label, text in [*_rows(statistics), *extra.items()]:
        table.add_row(label.replace("_", " "), text)
    Console(highlight=False, soft_wrap=True).print(table)


def _rows(statistics: WorkloadStatistics) -> Iterator[tuple[str, str]]:
    yield "source", statistics.source
    yield "requests", f"{statistics.requests:,}"
    yield "span", f"{statistics.span_s:,.3f} s"
    if statistics.rate_qps is not None and statistics.gap_cv is not None:
        yield "rate", f"{statistics.rate_qps:.4g} requests/s (CV of gaps {statistics.gap_cv:.3f})"
    yield "prefill tokens", _lengths_text(statistics.prefill_tokens)
    yield "decode tokens", _lengths_text(statistics.decode_tokens)
    if statistics.perfect_cache_hit_share is not None:
        yield (
            "prefix reuse",
            f"{statistics.perfect_cache_hit_share:.1%} of {statistics.prompt_blocks:,} blocks of "
            f"{statistics.hash_block_tokens} tokens ({statistics.distinct_blocks:,} distinct)",
        )
    if statistics.trimmed_requests:
        yield "trimmed", f"{statistics.trimmed_requests:,} requests"
    if statistics.skipped_rows:
        yield "skipped", f"{statistics.skipped_rows:,} rows without output"


def _lengths_text(lengths: LengthStatistics) -> str:
    return (
        f"mean {lengths.mean:,.1f}, p50 {lengths.p50:,.0f}, p90 {lengths.p90:,.0f}, "
        f"p99 {lengths.p99:,.0f}, max {lengths.max:,}"
    )
