"""``vidur-pd search`` and what it shares with ``plan``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from boundary.errors import InputError

if TYPE_CHECKING:
    from vidur_pd.search.evaluation.outcome import Outcome
    from vidur_pd.search.search import SearchResult
    from vidur_pd.search.space.space import Space
    from vidur_pd.search.workers import Workers

WorkerCount = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes; as many as there are processors unless said.")
]
RayAddress = Annotated[str | None, typer.Option("--ray", help="Address of a Ray cluster, instead of processes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print search.json, and nothing else.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Override a field of the search: evaluations=100 (repeatable).")
]
OutFolder = Annotated[
    Path, typer.Option("-o", "--out", help="Folder for results, and for the study, with which the same search goes on.")
]


def search(
    space: Annotated[Path, typer.Argument(help="YAML: base, choices, objective; relative paths start at its folder.")],
    out: OutFolder,
    settings: Settings = None,
    workers: WorkerCount = None,
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Find the deployment that serves a workload best within its SLO.

    Writes search.json, points.csv, search.html, and of the best point config.yaml and launch.txt.
    """
    from vidur_pd.search.space.space import read_space

    found = read_space(space, settings or [])
    carry_out(found, out, [space], workers=workers, ray=ray, as_json=as_json)


def carry_out(
    space: Space, out: Path, inputs: Sequence[Path], *, workers: int | None, ray: str | None, as_json: bool
) -> None:
    """Searches, writes the files and prints the answer."""
    from boundary.result_folder import ResultFolder
    from vidur_pd.search.evaluation.evaluation import without_repeats
    from vidur_pd.search.output.files import SEARCH_FILES, STUDY_FILE, search_tree, write_search
    from vidur_pd.search.screening import screen
    from vidur_pd.search.search import Search
    from vidur_pd.search.study import Study

    if workers is not None and ray is not None:
        raise InputError(f"--workers: found {workers} with --ray {ray}, expected one of them")
    space = without_repeats(space)
    with ResultFolder(out, SEARCH_FILES, inputs) as folder:
        screening = screen(space)
        if not screening.candidates:
            raise InputError(
                f"{space.where}: found no point that can be run ({screening.reasons()}), expected at least one"
            )
        with Study(out / STUDY_FILE, space.digest) as study:
            at_work = _workers(space, workers, ray, len(screening.candidates))
            try:
                progress = _Progress(len(screening.candidates), is_shown=not as_json)
                result = Search(space, screening, study, at_work).run(progress.report)
            finally:
                at_work.close()
        write_search(result, folder)
        folder.place()
    if as_json:
        print(json.dumps(search_tree(result)))
        return
    print_search(result)
    print(f"page {out / 'search.html'}")


def print_search(result: SearchResult) -> None:
    """The answer, and a table of the best points."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from vidur_pd.search.output.answer import (
        answer,
        best_of_each_deployment,
        deployment,
        latency_cells,
        latency_columns,
        margin_text,
    )

    console = Console()
    first, *others = answer(result).split("\n")
    console.print(f"[{'bold' if result.best else 'bold red'}]{escape(first)}[/]", highlight=False)
    for line in others:
        console.print(escape(line), highlight=False)
    if not result.ranking:
        return
    objective = result.space.file.objective
    shown = best_of_each_deployment(result)[:5]
    latencies = latency_columns(each.last() for each in shown)
    table = Table("deployment", objective.unit, *latencies, "margin", "limited by")
    for each in shown:
        outcome = each.last()
        table.add_row(
            escape(deployment(result.space.config(each.candidate.point))),
            f"{objective.value_of(outcome):.4g}",
            *latency_cells(outcome, latencies),
            margin_text(outcome.margin),
            escape(outcome.limited_by),
        )
    (console if console.is_terminal else Console(width=160)).print(table)


def _workers(space: Space, number: int | None, ray: str | None, points: int) -> Workers:
    from vidur_pd.search.workers import InThisProcess, OnRay, Processes, processes_at_most

    if ray is not None:
        return OnRay(space, ray)
    most = min(number or processes_at_most(), points)
    return InThisProcess(space) if most == 1 else Processes(space, most)


class _Progress:
    """A line on standard error after every batch."""

    def __init__(self, points: int, *, is_shown: bool) -> None:
        self._points, self._is_shown = points, is_shown

    def report(self, done: int, best: Outcome | None) -> None:
        if self._is_shown:
            found = "none meets the SLO yet" if best is None else f"the best so far has {best.gpus} GPUs in all"
            sys.stderr.write(f"vidur-pd: {done} of at most {self._points} points run, {found}\n")
