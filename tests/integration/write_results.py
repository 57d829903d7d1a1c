"""Results of random configurations as files: ``python -m tests.integration.write_results FOLDER SEED…``.

What simulating took is left out, so that equal simulations give equal bytes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from tests.integration.random_configurations import random_scenario, with_faults
from tests.integration.run_checks import run_scenario
from vidur_pd.simulation.output import write_result


def write_results(folder: Path, seeds: list[int]) -> None:
    """Every file that a run can have; seeds that are odd have faults."""
    for seed in seeds:
        scenario = random_scenario(seed)
        if seed % 2:
            scenario = with_faults(scenario, folder / f"{seed}-bare")
        output = scenario.tree["output"] | {"trace": True, "flows": True, "iterations": True}
        result = run_scenario(scenario.with_fields(output=output), folder / f"{seed}-configuration")
        effort = replace(result.summary.simulator, began_at="", wall_s=0.0, cpu_s=0.0, peak_rss_bytes=0)
        result = replace(result, summary=replace(result.summary, simulator=effort))
        write_result(result, folder / str(seed))


if __name__ == "__main__":
    write_results(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]])
