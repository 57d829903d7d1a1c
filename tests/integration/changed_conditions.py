"""The same configuration with more load or less bandwidth, and what that does to means."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from netsim.topologies.defaults import NVLINK_BPS
from netsim.units import parse_rate_bps
from tests.integration.random_configurations import Scenario
from tests.integration.run_checks import simulate
from vidur_pd.config import SimulationConfig
from vidur_pd.metrics.result import Result
from vidur_pd.workload import Workload
from vidur_pd.workload.transform import jittered, time_scaled

METRICS: Final = ("e2e_s", "ttft_s", "tpot_s")
JITTER_STEPS: Final = 8
"""How many steps of an instance arrivals are spread over; chosen so that how they meet steps is lost."""


@dataclass(frozen=True, slots=True)
class Change:
    """A condition that is worse than it was: less bandwidth in the configuration, or arrivals that are closer."""

    name: str
    config: SimulationConfig
    time_scale: float = 1.0

    def run(self, workload: Workload) -> Result:
        return simulate(self.config, workload if self.time_scale == 1 else time_scaled(workload, self.time_scale))


def changes_of(scenario: Scenario, base: Result, folder: Path) -> list[Change]:
    """Every arrival at 0.8 of its time; NICs at half their rate; NVLink at half its rate; where there are such."""
    written, resolved = scenario.tree["cluster"]["topology"], base.config.cluster.topology
    rates_bps = {"nvlink": getattr(resolved, "nvlink", NVLINK_BPS)}
    if "nic" in written:
        rates_bps["nic"] = parse_rate_bps(written["nic"])
    found = [Change("load", base.config, 0.8)]
    for field, rate_bps in rates_bps.items():
        slower = scenario.with_topology(**{field: f"{rate_bps // 2}bps"})
        found.append(Change(field, slower.load(folder / field)[0]))
    return found


def means(results: list[Result]) -> dict[str, float]:
    """By metric, the mean over all requests of all results; metrics that no request has are left out."""
    found = {}
    for metric in METRICS:
        found_means = [getattr(result.summary, metric).mean for result in results]
        values = [mean for mean in found_means if mean is not None]
        if values:
            found[metric] = float(np.mean(values))
    return found


def gains(before: list[Result], after: list[Result]) -> dict[str, float]:
    """By metric, the share by which means are better than before; negative where they are worse."""
    old, new = means(before), means(after)
    return {metric: 1 - new[metric] / old[metric] for metric in old if metric in new}


def shifted(base: Result, times: int) -> list[Workload]:
    """The same requests that arrive a little later, each by another time: mean differences that only come from how
    arrivals meet steps are gone from the mean over these."""
    jitter_s = JITTER_STEPS * _mean_step_s(base)
    return [jittered(base.workload, jitter_s, np.random.default_rng([base.config.seed, k])) for k in range(times)]


def _mean_step_s(base: Result) -> float:
    log = base.iterations
    return float(log.busy_ps.sum()) / 1e12 / max(1, log.iterations)
