"""Outcomes of every point of a space, which stand in for simulations."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from vidur_pd.search.evaluation import Task
from vidur_pd.search.outcome import Outcome
from vidur_pd.search.space import Point

FOLDER: Final = Path(__file__).parents[2] / "data" / "search"
SPACE: Final = FOLDER / "deepseek-v3-64-h200.yaml"
KEPT: Final = FOLDER / "deepseek-v3-64-h200.csv.gz"
FIGURES: Final = ("margin", "rate_per_s", "output_tokens_per_s", "e2e_mean_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s")


class KeptOutcomes:
    """Workers that look outcomes up."""

    def __init__(self, kept: Mapping[Point, Outcome]) -> None:
        self._kept = kept
        self.asked: list[Point] = []

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            self.asked.append(task.point)
            yield task, self._kept[task.point]

    def close(self) -> None:
        pass


def write_kept(path: Path, outcomes: Mapping[Point, Outcome]) -> None:
    """One row per point; times to a microsecond."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("point", "met", "gpus", "early", *FIGURES))
    for point, found in sorted(outcomes.items()):
        figures = ("" if (value := getattr(found, name)) is None else f"{value:.6g}" for name in FIGURES)
        row = (" ".join(map(str, point)), int(found.is_met), found.gpus, int(found.stopped_early), *figures)
        table.writerow(row)
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file:
        file.write(text.getvalue().encode())


def read_kept(path: Path = KEPT) -> dict[Point, Outcome]:
    with gzip.open(path, "rt", newline="") as file:
        return {
            tuple(map(int, row["point"].split())): Outcome(
                is_met=row["met"] == "1",
                gpus=int(row["gpus"]),
                stopped_early=row["early"] == "1",
                **{name: float(row[name]) for name in FIGURES if row[name]},  # type: ignore[arg-type]
            )
            for row in csv.DictReader(file)
        }
