"""A run repeated with other seeds, for the interval of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from vidur_pd.metrics.result import Result
from vidur_pd.metrics.seeds import seeds_summary
from vidur_pd.simulation.api import Configuration, prepare
from vidur_pd.simulation.driver import Progress


def with_seeds(
    first: Result, config: Configuration, settings: Sequence[str], seeds: int, progress: Progress | None = None
) -> Result:
    """The result of a run with ``summary.seeds``: figures over its own seed and the next ones, one run each.

    ``config`` and ``settings`` are those of the run. Raises: InputError as `prepare`.
    """
    numbers = [first.config.seed + place for place in range(seeds)]
    summaries = [first.summary]
    for seed in numbers[1:]:
        others = [*settings, f"seed={seed}", "output.iterations=false", "output.batches=false", "output.flows=false"]
        with closing(prepare(config, settings=others)) as simulation:
            summaries.append(simulation.run(progress).summary)
    return replace(first, summary=replace(first.summary, seeds=seeds_summary(numbers, summaries)))
