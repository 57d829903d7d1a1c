"""The same configuration with more load or less bandwidth, and what that does to means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from netsim.units import parse_rate_bps
from tests.integration.random_configurations import Scenario
from tests.integration.run_checks import simulate
from vidur_pd.simulation import Result
from vidur_pd.workload.transform import time_scaled

METRICS: Final = ("e2e_s", "ttft_s", "tpot_s")
CHANGES: Final = ("load", "nic", "nvlink")


def changed_runs(scenario: Scenario, base: Result, folder: Path) -> Iterator[tuple[str, Result]]:
    """(change, result): every arrival at 0.8 of its time; NICs at half their rate; NVLink at half its rate."""
    yield "load", simulate(base.config, time_scaled(base.workload, 0.8))
    written, resolved = scenario.tree["cluster"]["topology"], base.config.cluster.topology
    if "nic" in written:
        half = f"{parse_rate_bps(written['nic']) // 2}bps"
        yield "nic", simulate(*scenario.with_topology(nic=half).load(folder / "nic"))
    nvlink_bps = getattr(resolved, "nvlink", None)
    if nvlink_bps is not None:
        yield "nvlink", simulate(*scenario.with_topology(nvlink=f"{nvlink_bps // 2}bps").load(folder / "nvlink"))


def gains(base: Result, changed: Result) -> dict[str, float]:
    """By metric, the share by which the changed run's mean is better; negative where it is worse."""
    found = {}
    for metric in METRICS:
        before, after = (result.summary[metric]["mean"] for result in (base, changed))
        if before:
            found[metric] = 1 - after / before
    return found
