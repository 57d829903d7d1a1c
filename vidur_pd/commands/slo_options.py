"""Options that say an SLO as users do: ``--slo ttft:p90:2.0``, ``--ttft p90:2.0``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from boundary.errors import InputError
from boundary.quoting import quoted

Slo = Annotated[
    list[str] | None,
    typer.Option("--slo", help="A target, as ttft:p90:2.0 (latency ttft, tpot or e2e; seconds); repeatable."),
]


def slo_settings(targets: Sequence[str]) -> list[str]:
    """Overrides ``slo.ttft={p90: 2.0}`` for targets ``ttft:p90:2.0``. Raises: InputError."""
    from vidur_pd.config.objectives import LATENCIES

    by_latency = defaultdict[str, dict[str, str]](dict)
    for target in targets:
        latency, *rest = target.split(":")
        if latency not in LATENCIES or len(rest) != 2 or not all(rest):
            raise InputError(f"--slo: found {quoted(target)}, expected latency:percentile:seconds, as ttft:p90:2.0")
        by_latency[latency][rest[0]] = rest[1]
    return [
        f"slo.{latency}={{{', '.join(f'{name}: {limit}' for name, limit in limits.items())}}}"
        for latency, limits in by_latency.items()
    ]


def latency_settings(limits: Mapping[str, str]) -> list[str]:
    """The same for ``p90:2.0`` of an option named after each latency. Raises: InputError."""
    for latency, limit in limits.items():
        percentile, _, seconds = limit.partition(":")
        if not (percentile and seconds) or ":" in seconds:
            raise InputError(f"--{latency}: found {quoted(limit)}, expected percentile:seconds, as p90:2.0")
    return slo_settings([f"{latency}:{limit}" for latency, limit in limits.items()])
