"""Files of a search: ``search.json``, ``points.csv``, the best ``config.yaml``, ``launch.txt`` and ``search.html``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from boundary.output_files import naming_failures
from boundary.result_folder import ResultFolder
from vidur_pd.config import SimulationConfig
from vidur_pd.config.file import dump_config, parse_config
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.output.analysis import importance, pareto_front
from vidur_pd.search.output.answer import answer, counts_of
from vidur_pd.search.output.launch import launch_text
from vidur_pd.search.output.page import search_page
from vidur_pd.search.search import Evaluated, SearchResult
from vidur_pd.search.space.space import choice_text

STUDY_FILE: Final = "study.sqlite"
SEARCH_FILES: Final = frozenset({"search.json", "points.csv", "config.yaml", "launch.txt", "search.html"})
MOST_RANKED: Final = 20
"""Points in ``search.json``; ``points.csv`` has all."""


def write_search(result: SearchResult, folder: ResultFolder) -> None:
    """Writes all of them, not into place yet. Raises: OutputError."""
    files = folder.files
    with naming_failures(folder.path):
        (files / "search.json").write_text(json.dumps(search_tree(result), indent=2) + "\n", encoding="utf-8")
        (files / "points.csv").write_text(points_csv(result), encoding="utf-8")
        if result.best is not None:
            config = configuration_of(result, result.best)
            (files / "config.yaml").write_text(dump_config(config), encoding="utf-8")
            (files / "launch.txt").write_text(launch_text(config), encoding="utf-8")
        _write_pieces(files / "search.html", search_page(result))


def configuration_of(result: SearchResult, evaluated: Evaluated) -> SimulationConfig:
    """Of a run that repeats a point: at the rate that was found where its capacity was looked for, with the prices."""
    space, tree = result.space, result.space.tree(evaluated.candidate.point)
    if space.file.objective.finds_capacity and evaluated.last().rate_per_s:
        tree["workload"].pop("time_scale", None)
        tree["workload"]["rate"] = f"{evaluated.last().rate_per_s:.9g}/s"
    if space.file.prices is not None:
        tree["prices"] = {"gpu_hour": dict(space.file.prices)}
    return parse_config(tree, Path(), space.where)


def _write_pieces(path: Path, pieces: Any) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(pieces)


def search_tree(result: SearchResult) -> dict[str, Any]:
    """``search.json``: the answer, what it rests on, the best points and the Pareto front."""
    file = result.space.file
    return {
        "answer": answer(result),
        "objective": str(file.objective),
        "sampler": file.sampler,
        "seed": file.seed,
        "space": result.space.digest,
        "is_exhausted": result.is_exhausted,
        "points": asdict(counts_of(result)),
        "left_out": [
            {"kind": each.status, "reason": each.reason, "points": each.requests, "example": each.example}
            for each in result.screening.left_out
        ],
        "simulations": {str(fidelity): number for fidelity, number in result.simulations.items()},
        "cpu_s": result.cpu_s,
        "importance": importance(result),
        "ranking": [point_tree(result, each) for each in result.ranking[:MOST_RANKED]],
        "pareto_front": [point_tree(result, each) for each in pareto_front(result.ranking)],
        "failures": [
            {"choices": choices_of(result, each), "failure": each.last().failure}
            for each in result.evaluated
            if each.last().failure
        ],
    }


def point_tree(result: SearchResult, evaluated: Evaluated) -> dict[str, Any]:
    """A point: what was chosen, what its promise was, and what was found."""
    promise = evaluated.candidate.promise
    return {
        "choices": choices_of(result, evaluated),
        "value": result.space.file.objective.value_of(evaluated.last()),
        "promised_ceiling_per_s": promise.ceiling_per_s,
        "fidelities": len(evaluated.outcomes),
        **{key: value for key, value in asdict(evaluated.last()).items() if value not in ("", None)},
    }


def choices_of(result: SearchResult, evaluated: Evaluated) -> dict[str, Any]:
    """What was chosen, by field."""
    dimensions = result.space.dimensions.items()
    return {
        field: choices[place] for (field, choices), place in zip(dimensions, evaluated.candidate.point, strict=True)
    }


FIGURES: Final = tuple(each.name for each in fields(Outcome) if each.name != "targets")


def points_csv(result: SearchResult) -> str:
    """A row for every point at every fidelity, in the order in which they were proposed."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    targets = next((each.last().targets for each in result.evaluated if each.last().targets), ())
    heads = [f"{target.name} {what}" for target in targets for what in ("found", "margin")]
    table.writerow(["number", "fidelity", *result.space.dimensions, *FIGURES, *heads])
    for number, evaluated in enumerate(result.evaluated):
        chosen = [choice_text(choice) for choice in choices_of(result, evaluated).values()]
        for fidelity, outcome in enumerate(evaluated.outcomes):
            table.writerow([number, fidelity, *chosen, *_figures(outcome)])
    return text.getvalue()


def _figures(outcome: Outcome) -> Iterator[object]:
    for name in FIGURES:
        value = getattr(outcome, name)
        yield "" if value is None else int(value) if isinstance(value, bool) else value
    for target in outcome.targets:
        yield "" if target.found is None else target.found
        yield "" if target.margin is None else target.margin
