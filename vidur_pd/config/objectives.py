"""What a configuration may say about service-level objectives: limits of each request, and of percentiles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from boundary.fields import NotBool, PositiveSeconds, Section
from boundary.quoting import quoted
from vidur_pd.config.request_classes import ClassName

LATENCIES: Final = ("ttft", "tpot", "e2e")
_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)")


def share_below(statistic: str) -> float | None:
    """The share of requests that a percentile leaves below it, 0.9 of ``p90``; ``None`` for what is none."""
    found = _PERCENTILE.fullmatch(statistic)
    return float(found[1]) / 100 if found and float(found[1]) > 0 else None


def _known_statistic(name: str) -> str:
    if name != "mean" and share_below(name) is None:
        raise ValueError(f"found {quoted(name)}, expected mean or a percentile, as p50, p90 or p99.9")
    return name


def _by_statistic(limits: Any) -> Any:
    """``{p90: 2.0}`` of the text ``p90:2.0``, as options of the command line have it."""
    if not isinstance(limits, str):
        return limits
    parts = [part.partition(":") for part in limits.split(",")]
    if not all(separator for _, separator, _ in parts):
        raise ValueError(f"found {quoted(limits)}, expected seconds by percentile, as {{p90: 2.0}}")
    return {name.strip(): _number(limit.strip()) for name, _, limit in parts}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


Statistic = Annotated[str, AfterValidator(_known_statistic)]
Limits = Annotated[dict[Statistic, PositiveSeconds], Field(min_length=1, max_length=20), BeforeValidator(_by_statistic)]
"""Seconds by percentile, or ``mean``."""


@dataclass(frozen=True, slots=True)
class Target:
    """A limit of a percentile, or of the mean, of a latency of all requests or of a class."""

    latency: str
    """One of `LATENCIES`."""
    statistic: str
    limit_s: float
    class_name: str | None = None
    """``None``: of all requests whose class has no targets of its own for this latency."""


class _Objectives(Section):
    """Limits of latencies. Where percentiles have limits and requests have none, requests have that of the highest."""

    ttft: Limits | None = None
    """Of arrival to first token, by percentile: ``{p90: 2.0}``, or ``p90:2.0``."""
    tpot: Limits | None = None
    """Of requests of more than one token."""
    e2e: Limits | None = None

    @model_validator(mode="before")
    @classmethod
    def _requests_as_highest_percentile(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        tree = dict(tree)
        for latency in LATENCIES:
            try:
                limits = _by_statistic(tree.get(latency))
            except ValueError:
                continue
            shares = (
                {share_below(str(name)): limit for name, limit in limits.items()} if isinstance(limits, Mapping) else {}
            )
            if known := [share for share in shares if share is not None]:
                tree.setdefault(f"{latency}_s", shares[max(known)])
        return tree

    def _targets(self, class_name: str | None) -> Iterator[Target]:
        for latency in LATENCIES:
            for statistic, limit_s in (getattr(self, latency) or {}).items():
                yield Target(latency, statistic, limit_s, class_name)


class ClassObjectives(_Objectives):
    """Service-level objectives of a class of requests; what is left out is as for all others."""

    ttft_s: PositiveSeconds | None = None
    tpot_s: PositiveSeconds | None = None
    e2e_s: PositiveSeconds | None = None


class SloConfig(_Objectives):
    """Service-level objectives: of each request, for goodput, and of percentiles."""

    ttft_s: PositiveSeconds = 2.0
    """Of each request, as the next two: one that meets all counts for goodput."""
    tpot_s: PositiveSeconds = 0.05
    e2e_s: PositiveSeconds | None = None
    attainment: Annotated[float, NotBool, Field(ge=1e-6, le=1)] = 0.99
    """Share of the requests of a window that have to meet them for the window to count as good (`slo_loss_minutes`);
    without ``ttft``, ``tpot`` and ``e2e``, share of all requests that have to."""
    window_s: PositiveSeconds = 60.0
    """Length of the windows in which attainment is measured."""
    classes: Annotated[dict[ClassName, ClassObjectives], Field(min_length=1, max_length=1000)] | None = None
    """Objectives of classes of requests, where they are not those of all."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """What percentiles have to meet; empty where a share of requests has to meet the limits of each request."""
        own = (target for name, each in (self.classes or {}).items() for target in each._targets(name))
        return (*self._targets(None), *own)

    def has_own_targets(self, class_name: str, latency: str) -> bool:
        """Whether the class answers for this latency by targets of its own."""
        own = (self.classes or {}).get(class_name)
        return own is not None and getattr(own, latency) is not None
