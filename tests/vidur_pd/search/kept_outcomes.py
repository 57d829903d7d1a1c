"""Every valid point of a space with its promise and its outcome, which stand in for checks and simulations."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vidur_pd.execution.promise.promise import Promise
from vidur_pd.search.evaluation.evaluation import Task
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.screening import Candidate, Screening
from vidur_pd.search.space.space import Point, Space

FOLDER: Final = Path(__file__).parents[2] / "data" / "search"
SPACE: Final = FOLDER / "deepseek-v3-64-h200.yaml"
KEPT: Final = FOLDER / "deepseek-v3-64-h200.csv.gz"
PROMISED: Final = ("ceiling_per_s", "ttft_s", "tpot_s", "e2e_s")
FIGURES: Final = ("margin", "rate_per_s", "output_tokens_per_s", "e2e_mean_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s")


NOT_RUN: Final = Outcome(is_met=False, margin=-1.0, gpus=0, runs=0)
"""Stands for points that nobody has run, as by their promise they cannot come near the best: no help to a sampler."""


@dataclass(frozen=True)
class Kept:
    """What was kept."""

    valid: int
    """Points that are configurations, fit into memory, and have a number of GPUs that was asked for."""
    candidates: Mapping[Point, Candidate]
    """Those of them that could carry the load, by their promise."""
    outcomes: Mapping[Point, Outcome]

    def screening(self, space: Space) -> Screening:
        ranked = sorted(self.candidates.values(), key=lambda each: (each.rank(space.file.objective), each.point))
        return Screening(tuple(ranked), ())


class KeptOutcomes:
    """Workers that look outcomes up."""

    def __init__(self, kept: Mapping[Point, Outcome]) -> None:
        self._kept = kept

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            yield task, self._kept[task.point]

    def close(self) -> None:
        pass


def write_kept(path: Path, valid: int, candidates: Sequence[Candidate], outcomes: Mapping[Point, Outcome]) -> None:
    """One row per candidate, after a line with the number of valid points; six digits, and none of a point that was not
    run."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("point", "gpus", *(f"promised_{name}" for name in PROMISED), "met", "early", *FIGURES))
    table.writerow(("valid", valid))
    for each in sorted(candidates, key=lambda candidate: candidate.point):
        found = outcomes.get(each.point)
        promised = (f"{getattr(each.promise, name):.6g}" for name in PROMISED)
        figures = ("" if (value := getattr(found, name, None)) is None else f"{value:.6g}" for name in FIGURES)
        ends = ("", "") if found is None else (int(found.is_met), int(found.stopped_early))
        table.writerow((" ".join(map(str, each.point)), each.gpus, *promised, *ends, *figures))
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file:
        file.write(text.getvalue().encode())


def read_kept(path: Path = KEPT) -> Kept:
    candidates: dict[Point, Candidate] = {}
    outcomes: dict[Point, Outcome] = {}
    with gzip.open(path, "rt", newline="") as file:
        table = csv.DictReader(file)
        valid = int(next(table)["gpus"])
        for row in table:
            point, gpus = tuple(map(int, row["point"].split())), int(row["gpus"])
            promise = Promise(*(float(row[f"promised_{name}"]) for name in PROMISED))
            candidates[point] = Candidate(point, gpus, None, promise)
            if not row["met"]:
                outcomes[point] = NOT_RUN
                continue
            figures: dict[str, Any] = {name: float(row[name]) for name in FIGURES if row[name]}
            is_met, stopped_early = row["met"] == "1", row["early"] == "1"
            outcomes[point] = Outcome(is_met=is_met, gpus=gpus, stopped_early=stopped_early, **figures)
    return Kept(valid, candidates, outcomes)
