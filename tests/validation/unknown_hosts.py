#!/usr/bin/env python3
"""Errors of engines whose host is not known: with the default, the median of all other recorded hosts, and their own.

    python -m tests.validation.unknown_hosts

The engines of ``partitions_vs_engine``. The median leaves out what was recorded in the engine that it is used for, so
that it is what ``engine.host: virtual-machine`` would be to somebody who did not measure. A recording is what ``aicb
profile host`` makes of stamps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from aicb.data import FOLDER as DATA
from aicb.iteration.host import MEDIAN_HOST, HostModel, known_hosts
from tests.validation.engine_figures import FOLDER, Comparison
from tests.validation.partitions_vs_engine import HYBRID, OWN, SERVERS, STAMPED, compare, measurement

FIGURES: dict[str, Callable[[str], bool]] = {
    "prompts": lambda name: name.startswith("prefill"),
    "decodes": lambda name: name.startswith("decode"),
    **{metric: lambda name, metric=metric: name.endswith(f"{metric} mean") for metric in ("ttft", "tpot", "e2e")},
}
"""What is averaged, by the names of comparisons."""
Hosts = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute errors of one engine on one host."""

    server: str
    host: str
    means: dict[str, float | None]
    """By ``FIGURES``; ``None`` without a serving run."""


def recorded_hosts() -> Hosts:
    """What was recorded, by engine or file; of the default only launches, other times of its file are another's."""
    files = [FOLDER / "xeon-vm-32-h100.yaml"]
    files += [DATA / "hosts" / f"{name}.yaml" for name in known_hosts() if name != MEDIAN_HOST]
    stamped = {server: measurement(server)["host"] for server in STAMPED}
    return {**stamped, **{str(file): yaml.safe_load(file.read_text("utf-8")) for file in files}}


def median_of(recorded: Iterable[dict[str, float]]) -> dict[str, float]:
    """Medians of all times but launches are over hosts that were recorded as a whole."""
    hosts = list(recorded)
    whole = [host for host in hosts if host["eager_launch_us"] != HostModel().eager_launch_us]
    names = sorted({name for host in whole for name in host if name != "source" and host[name]})
    found = {name: float(np.median([host[name] for host in whole if host.get(name)])) for name in names}
    return found | {"eager_launch_us": float(np.median([host["eager_launch_us"] for host in hosts]))}


def compare_hosts(server: str) -> list[Errors]:
    """The default, the median of the others, and its own where there is one."""
    recorded = recorded_hosts()
    recorded.pop(server, None)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "host.yaml"
        file.write_text(yaml.safe_dump({"source": "others", **median_of(recorded.values())}), encoding="utf-8")
        hosts = {"default": None, "others": str(file)} | ({"own": OWN} if server in STAMPED else {})
        return [Errors(server, name, _means(compare(server, host))) for name, host in hosts.items()]


def _means(rows: list[Comparison]) -> dict[str, float | None]:
    errors = {figure: [abs(row.error) for row in rows if has(row.name)] for figure, has in FIGURES.items()}
    return {figure: float(np.mean(found)) if found else None for figure, found in errors.items()}


def mean_over_engines(found: Iterable[Errors], host: str, figure: str) -> float:
    means = [each.means[figure] for each in found if each.host == host]
    return float(np.mean([mean for mean in means if mean is not None]))


def main() -> None:
    found = [errors for server in (*SERVERS, HYBRID, *STAMPED) for errors in compare_hosts(server)]
    for errors in found:
        means = "  ".join(f"{name} {'–' if mean is None else f'{mean:.1%}'}" for name, mean in errors.means.items())
        print(f"{errors.server:34s} {errors.host:8s} {means}")
    stamped = [errors for errors in found if errors.server in STAMPED]
    for name, engines in (("all engines", found), ("engines with a host of their own", stamped)):
        for host in ("default", "others", *(("own",) if engines is stamped else ())):
            means = "  ".join(f"{figure} {mean_over_engines(engines, host, figure):.1%}" for figure in FIGURES)
            print(f"{name:34s} {host:8s} {means}")


if __name__ == "__main__":
    main()
