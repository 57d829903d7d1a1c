#!/usr/bin/env python3
"""Every valid point of a space, run once and kept: what searches are compared with.

    python -m tests.benchmarks.search_exhaustively [--workers N]     # half an hour on two cores; goes on after a kill
    python -m tests.benchmarks.search_exhaustively --compare

The first form writes tests/data/search/deepseek-v3-64-h200.csv.gz: of the points of the space that are valid those that
could carry the load by their promise, with that and with what a simulation found. The second searches the space with
each sampler and 5 % of the evaluations, with the kept outcomes instead of simulations, and prints how far the best is
from the optimum, and how far promises are from what was simulated. Prints; does not gate
(tests/vidur_pd/search/test_kept_outcomes.py does).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.vidur_pd.search.kept_outcomes import KEPT, SPACE, KeptOutcomes, read_kept, write_kept
from vidur_pd.search.evaluation.evaluation import Task
from vidur_pd.search.screening import GPUS, INVALID, screen
from vidur_pd.search.search import Search
from vidur_pd.search.space.space import SAMPLERS, read_space
from vidur_pd.search.study import Study
from vidur_pd.search.workers import Processes


def run_all(workers: int, study_path: Path) -> None:
    """Runs what the study does not have yet, and writes the table."""
    space = read_space(SPACE)
    screening = screen(space)
    valid = space.size - screening.count_left_out(INVALID) - screening.count_left_out(GPUS)
    with Study(study_path, space.digest) as study:
        tasks = [Task(each.point, 0, None) for each in screening.candidates if study.get(each.point, 0) is None]
        print(f"{valid} valid points, {len(screening.candidates)} to look at, {len(tasks)} to run", flush=True)
        pool, begin_s = Processes(space, workers), time.monotonic()
        for number, (task, outcome) in enumerate(pool.outcomes(tasks), 1):
            study.add(task.point, 0, outcome)
            if number % 100 == 0:
                print(f"{number} after {time.monotonic() - begin_s:.0f} s", flush=True)
        pool.close()
        write_kept(KEPT, valid, screening.candidates, {point: outcome for point, _, outcome in study.all()})


def compare() -> None:
    space, kept = read_space(SPACE), read_kept()
    objective, budget = space.file.objective, kept.valid // 20
    values = {point: objective.value_of(outcome) for point, outcome in kept.outcomes.items()}
    met = {point: value for point, value in values.items() if value is not None}
    optimum = min(met.values())
    run = sum(outcome.runs for outcome in kept.outcomes.values())
    print(f"{kept.valid} valid points, {run} run, {len(met)} within the SLO; best {optimum:.4f} {objective.unit}")
    for sampler in SAMPLERS:
        for seed in (0, 1, 2):
            own = read_space(SPACE, [f"sampler={sampler}", f"seed={seed}", f"evaluations={budget}"])
            with tempfile.TemporaryDirectory() as folder, Study(Path(folder) / "study.sqlite", own.digest) as study:
                found = Search(own, kept.screening(own), study, KeptOutcomes(kept.outcomes)).run()
            value = None if found.best is None else objective.value_of(found.best.last())
            text = "nothing" if value is None else f"{100 * (value / optimum - 1):+.2f} %"
            print(f"{sampler:8} seed {seed}: {text} after {len(found.evaluated)} of at most {budget} points")
    ratios = np.array([value / kept.candidates[point].promise.e2e_s for point, value in met.items()])
    print(f"latency over promise: least {ratios.min():.3f}, median {np.median(ratios):.3f}, most {ratios.max():.3f}")


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
    main()
