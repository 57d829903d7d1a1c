"""Command line of the simulator: ``vidur-pd run``, ``report``, ``compare``, ``validate``, ``workload``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boundary.command_line import run_command_line
from boundary.errors import InputError
from vidur_pd.commands.capacity import capacity
from vidur_pd.commands.diff import diff
from vidur_pd.commands.explain import explain
from vidur_pd.commands.init import init
from vidur_pd.commands.listing import list_known
from vidur_pd.commands.load_options import Clients, Rate, load_settings
from vidur_pd.commands.plan import plan
from vidur_pd.commands.schema import schema
from vidur_pd.commands.search import search
from vidur_pd.commands.validate import validate
from vidur_pd.commands.workload import app as workload_app

if TYPE_CHECKING:
    from vidur_pd.metrics.summary import Summary
    from vidur_pd.simulation import Progress

app = typer.Typer(
    help="Simulate LLM inference clusters with prefill/decode disaggregation on a contended network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(workload_app, name="workload")


def _show_version(wanted: bool) -> None:
    if wanted:
        from vidur_pd import __version__

        print(f"vidur-pd {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Simulate LLM inference clusters with prefill/decode disaggregation on a contended network."""
    del version


ConfigFile = Annotated[Path, typer.Argument(help="YAML configuration; its relative paths start at its folder.")]
OutFolder = Annotated[
    Path, typer.Option("-o", "--out", help="Folder for the results, which replace earlier ones; other files stay.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field: a.b=value (repeatable); paths are relative to the configuration."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]


Streamed = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Write requests and iterations as they end, in bounded memory: requests.parquet, and no requests.csv.",
    ),
]


@app.command()
def run(
    config: ConfigFile,
    out: OutFolder,
    settings: Settings = None,
    rate: Rate = None,
    clients: Clients = None,
    stream: Streamed = False,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs with so many seeds: means and intervals; files of the first.")
    ] = 1,
    no_report: Annotated[bool, typer.Option("--no-report", help="No report.html: as output.report=false.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run one simulation and write requests.csv, summary.json, config.yaml and report.html."""
    from vidur_pd.metrics.console import print_result
    from vidur_pd.metrics.summary_file import summary_tree
    from vidur_pd.simulation.api import prepare
    from vidur_pd.simulation.input_files import input_files
    from vidur_pd.simulation.output import result_folder, stream_files, write_files
    from vidur_pd.simulation.seeds import with_seeds

    shortened = ["output.report=false"] if no_report else []
    if stream and seeds > 1:
        raise InputError(f"--seeds: found {seeds} with --stream, expected 1 (its files are written while it runs)")
    given = [*(settings or []), *load_settings(rate, clients), *shortened]
    simulation = prepare(config, settings=given)
    with result_folder(out, [config, *input_files(simulation.config)]) as folder:
        with _progress(is_shown=not (quiet or as_json)) as progress:
            with closing(simulation):
                result = stream_files(simulation, folder, progress) if stream else simulation.run(progress)
            if seeds > 1:
                result = with_seeds(result, config, given, seeds, progress)
        if not stream:
            write_files(result, folder)
        folder.place()
    if as_json:
        print(json.dumps(summary_tree(result.summary)))
        _warn_of_losses({str(out): result.summary})
    else:
        print_result(result.summary)
        if simulation.config.output.report:
            print(f"report {out / 'report.html'}")


@app.command()
def report(
    outs: Annotated[list[Path], typer.Argument(metavar="OUT...", help="Result folders.")],
    target: Annotated[Path | None, typer.Option("-o", "--out", help="HTML file of a comparison.")] = None,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Show changes between runs of other requests as well.")
    ] = False,
) -> None:
    """Write report.html again for one folder, or a comparison of several."""
    from boundary.result_folder import finish_result
    from vidur_pd.report import COMPARISON_FILE, write_comparison, write_report

    for out in outs:
        finish_result(out)
        if not (out / "summary.json").is_file():
            raise InputError(f"{out}: found no summary.json, expected a result folder of 'vidur-pd run'")
    if len(outs) == 1:
        print(write_report(outs[0], path=target))
        return
    if target is None and Path(COMPARISON_FILE).exists():
        raise InputError(
            f"{COMPARISON_FILE}: found a file, expected -o to say that it may be replaced, or another name"
        )
    print(write_comparison(outs, target or Path(COMPARISON_FILE), ranks_unlike=anyway))
    _print_comparison(outs, ranks_unlike=anyway)


@app.command()
def compare(
    config: ConfigFile,
    out: OutFolder,
    backends: Annotated[str, typer.Option(help="Network backends, separated by commas.")] = "analytical,fluid",
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Run one configuration on several network backends and compare the results."""
    from boundary.result_folder import ResultFolder, place_all
    from vidur_pd.metrics.summary_file import summary_tree
    from vidur_pd.report import COMPARISON_FILE, write_comparison_page
    from vidur_pd.simulation.api import prepare
    from vidur_pd.simulation.input_files import input_files
    from vidur_pd.simulation.output import result_folder, write_files

    names = [name.strip() for name in backends.split(",") if name.strip()]
    if len(set(names)) < 2 or len(set(names)) != len(names):
        raise InputError(
            f"--backends: found {backends!r}, expected at least two different names, as in analytical,fluid"
        )
    settings_of = {name: _settings_for(config, settings or [], name) for name in names}
    inputs = [config]
    for name in names:
        with closing(prepare(config, settings=settings_of[name])) as simulation:
            inputs += input_files(simulation.config)
    results = {}
    with ExitStack() as opened:
        whole = opened.enter_context(ResultFolder(out, {COMPARISON_FILE}, inputs))
        folders = {name: opened.enter_context(result_folder(out / name, inputs)) for name in names}
        for name, folder in folders.items():
            simulation = prepare(config, settings=settings_of[name])
            with _progress(is_shown=not as_json) as progress, closing(simulation):
                results[name] = simulation.run(progress)
            write_files(results[name], folder)
        page = whole.files / COMPARISON_FILE
        write_comparison_page([(name, folder.files) for name, folder in folders.items()], page)
        place_all([*folders.values(), whole])
    if as_json:
        print(json.dumps({name: summary_tree(result.summary) for name, result in results.items()}))
    else:
        _print_comparison([out / name for name in names])
        print(f"comparison {out / COMPARISON_FILE}")
    _warn_of_losses({name: result.summary for name, result in results.items()})


def _settings_for(config: Path, settings: list[str], backend: str) -> list[str]:
    """The settings of a run of a comparison: where a backend cannot have the coupling, collectives are isolated."""
    from netsim.backends.contract import capabilities_of
    from vidur_pd.config.file import load_config

    with_backend = [*settings, f"network.backend={backend}"]
    coupling, able = load_config(config, with_backend).network.coupling, capabilities_of(backend)
    if coupling == "isolated" or not (able.sends_traffic or (able.simulates_packets and coupling == "fluid")):
        return with_backend
    reason = "as its traffic takes real time" if able.sends_traffic else "which needs link loads"
    sys.stderr.write(f"vidur-pd: {backend}: coupling 'isolated' instead of {coupling!r}, {reason}\n")
    return [*with_backend, "network.coupling=isolated"]


def _print_comparison(outs: list[Path], *, ranks_unlike: bool = False) -> None:
    """Headline figures of several runs, each with its change against the first; what else differs goes to stderr."""
    from rich.console import Console
    from rich.table import Table

    from vidur_pd.report import comparison_table, comparison_warnings, unranked_runs

    for warning in comparison_warnings(outs):
        sys.stderr.write(f"vidur-pd: {warning}\n")
    rows = comparison_table(outs, ranks_unlike=ranks_unlike)
    table = Table("", *(rows[0]["texts"] if rows else ()))
    for row in rows:
        cells = []
        for run, text in row["texts"].items():
            change = row["change_texts"].get(run)
            cells.append(f"{text} ({change})" if change else text)
        table.add_row(row["metric"], *cells)
    console = Console()
    console.print(table)
    if not ranks_unlike and (unranked := unranked_runs(outs)):
        console.print(
            f"changes of {', '.join(unranked)} are left out, as requests differ; --anyway shows them", markup=False
        )


app.command()(init)
app.command("list")(list_known)
app.command()(schema)
app.command()(explain)
app.command()(diff)
app.command()(validate)
app.command()(capacity)
app.command()(search)
app.command()(plan)


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[Progress | None]:
    """A bar that a simulation moves; ``None`` where none is shown."""
    if not is_shown:
        yield None
        return
    from rich import progress
    from rich.console import Console

    text, time = progress.TextColumn("{task.description}"), progress.TimeElapsedColumn()
    columns = (text, progress.BarColumn(), progress.MofNCompleteColumn(), time)
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=None)

        def advance(done: int, total: int, simulated_s: float) -> None:
            bar.update(task, completed=done, total=total, description=f"simulated {simulated_s:8.1f} s")

        yield advance


def _warn_of_losses(summaries: dict[str, Summary]) -> None:
    """Says on standard error how many requests of each run were not served, and why."""
    from vidur_pd.metrics.console import not_served

    for name, summary in summaries.items():
        for line in not_served(summary):
            sys.stderr.write(f"vidur-pd: {name}: {line}\n")


def main() -> None:
    """Console script: exit code 0, 1 for a failure, 2 for bad input."""
    run_command_line(app, "vidur-pd")


if __name__ == "__main__":
    main()
