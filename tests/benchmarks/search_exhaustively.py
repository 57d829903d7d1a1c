#!/usr/bin/env python3
"""Every valid point of a space, run once and kept: what searches are compared with.

    python -m tests.benchmarks.search_exhaustively [--workers N]     # an hour on one core; goes on after a kill
    python -m tests.benchmarks.search_exhaustively --compare

The first form writes tests/data/search/deepseek-v3-64-h200.csv.gz. The second searches the space with each sampler
and 5 % of the evaluations, with the kept outcomes instead of simulations, and prints how far the best found is from
the optimum; and how far promises (`vidur_pd/search/promise.py`) are from what was simulated. Prints; does not gate:
tests/vidur_pd/search does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.vidur_pd.search.kept_outcomes import KEPT, SPACE, KeptOutcomes, read_kept, write_kept
from vidur_pd.search.evaluation import Task
from vidur_pd.search.screening import GPUS, INVALID, screen
from vidur_pd.search.search import Search
from vidur_pd.search.space import read_space
from vidur_pd.search.study import Study
from vidur_pd.search.workers import Processes

SAMPLERS = ("bound", "tpe", "random", "nsga2")


def run_all(workers: int, study_path: Path) -> None:
    """Runs what the study does not have yet, and writes the table."""
    space = read_space(SPACE)
    screening = screen(space)
    with Study(study_path, space.digest) as study:
        tasks = [Task(each.point, 0, None) for each in screening.candidates if study.get(each.point, 0) is None]
        print(f"{len(screening.candidates)} points, {len(tasks)} to run", flush=True)
        pool, begin_s = Processes(space, workers), time.monotonic()
        for number, (task, outcome) in enumerate(pool.outcomes(tasks), 1):
            study.add(task.point, 0, outcome)
            if number % 100 == 0:
                print(f"{number} after {time.monotonic() - begin_s:.0f} s", flush=True)
        pool.close()
        write_kept(KEPT, {point: outcome for point, _, outcome in study.all()})


def compare() -> None:
    space, kept = read_space(SPACE), read_kept()
    screening = screen(space)
    valid = space.size - screening.count_left_out(INVALID) - screening.count_left_out(GPUS)
    objective = space.file.objective
    values = {point: objective.value_of(outcome) for point, outcome in kept.items()}
    optimum = min(value for value in values.values() if value is not None)
    budget = valid // 20
    print(f"{valid} valid points, {len(kept)} run; best {optimum:.4f} {objective.unit}; budget {budget}")
    for sampler in SAMPLERS:
        for seed in (0, 1, 2):
            own = read_space(SPACE, [f"sampler={sampler}", f"seed={seed}", f"evaluations={budget}"])
            with tempfile.TemporaryDirectory() as folder, Study(Path(folder) / "study.sqlite", own.digest) as study:
                found = Search(own, screening, study, KeptOutcomes(kept)).run()
            best = found.best
            value = None if best is None else objective.value_of(best.last())
            text = "nothing" if value is None else f"{100 * (value / optimum - 1):+.2f} %"
            print(f"{sampler:8} seed {seed}: {text} after {len(found.evaluated)} points")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--study", type=Path, default=Path(tempfile.gettempdir()) / "exhaustive.sqlite")
    options = parser.parse_args()
    if options.compare:
        compare()
    else:
        run_all(options.workers, options.study)


if __name__ == "__main__":
    sys.exit(main())
