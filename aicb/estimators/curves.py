"""Measured curves at scattered sites: utilisation along one axis, borrowed between sites.

A site is a fixed part of a shape, such as (n, k) of a GEMM; its curve runs along the remaining axis, such as m.
A curve stores the *utilisation* ``reference time / measured time``, which varies far less than the time itself. The
method follows the public aiconfigurator engine (NVIDIA, ai-dynamo/aiconfigurator, 2026): exact points verbatim, the
bracket of the axis inside a curve, utilisation of the nearest sites elsewhere, and a flag where the reach ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from aicb.estimators.estimate import Estimate

SITE_REACH_OCTAVES = 2.0
"""Farther sites (Euclidean distance of log2 coordinates) do not count as measured; as in aiconfigurator."""
AXIS_REACH = 4.0
"""Beyond the measured range of the axis by more than this factor a time is an estimate."""
NEIGHBOURS = 4
"""Sites that share a borrowed utilisation."""


class Point(NamedTuple):
    """One measurement."""

    site: tuple[float, ...]
    x: float
    time_us: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Utilisation along the axis at one site."""

    site: tuple[float, ...]
    x: tuple[float, ...]
    utilisation: tuple[float, ...]

    def overshoot(self, x: float) -> float:
        """How many times ``x`` lies outside the measured range (1 inside)."""
        return max(self.x[0] / x, x / self.x[-1], 1.0)

    def at(self, x: float) -> float:
        """Linear in log x between the bracketing points; the boundary value is held outside."""
        if x <= self.x[0]:
            return self.utilisation[0]
        if x >= self.x[-1]:
            return self.utilisation[-1]
        right = next(i for i, value in enumerate(self.x) if value >= x)
        x0, x1 = self.x[right - 1], self.x[right]
        weight = math.log(x / x0) / math.log(x1 / x0)
        return (1.0 - weight) * self.utilisation[right - 1] + weight * self.utilisation[right]


class CurveSet:
    """All curves of one kernel and number format.

    ``reference_us(site, x)`` is any smooth model of the time; only its shape matters, since measured points are met
    exactly. ``label`` names the kernel in sources.
    """

    def __init__(self, label: str, points: Iterable[Point], reference_us: Callable[[tuple[float, ...], float], float]):
        self.label = label
        self.reference_us = reference_us
        collected: dict[tuple[float, ...], dict[float, list[float]]] = {}
        self._exact: dict[tuple[tuple[float, ...], float], float] = {}
        for site, x, time_us in points:
            collected.setdefault(site, {}).setdefault(x, []).append(time_us)
        self.curves: dict[tuple[float, ...], Curve] = {}
        for site, samples in collected.items():
            axis = sorted(samples)
            times = [sum(samples[x]) / len(samples[x]) for x in axis]
            self._exact |= {(site, x): time for x, time in zip(axis, times, strict=True)}
            shares = tuple(reference_us(site, x) / time for x, time in zip(axis, times, strict=True))
            self.curves[site] = Curve(site, tuple(axis), shares)

    def price(self, site: tuple[float, ...], x: float) -> Estimate:
        """Measured, interpolated along the axis, borrowed from other sites, or flagged beyond their reach."""
        exact = self._exact.get((site, x))
        if exact is not None:
            return Estimate(exact, False, f"measured {self.label}")
        reference = self.reference_us(site, x)
        own = self.curves.get(site)
        if own is not None and own.overshoot(x) <= AXIS_REACH:
            kind = "interpolated" if own.overshoot(x) == 1.0 else "interpolated (boundary utilisation held)"
            return Estimate(reference / own.at(x), False, f"{kind} {self.label}")
        ranked = sorted((_distance(curve, site, x), curve.site) for curve in self.curves.values())
        within = [(gap, other) for gap, other in ranked if self._reaches(other, site, x)][:NEIGHBOURS]
        chosen = within or ranked[:1]
        weights = [1.0 / max(distance, 1e-9) ** 2 for distance, _ in chosen]
        shares = [self.curves[other].at(x) for _, other in chosen]
        utilisation = sum(w * u for w, u in zip(weights, shares, strict=True)) / sum(weights)
        names = ", ".join(str(tuple(round(value) for value in other)) for _, other in chosen[:2])
        if within:
            return Estimate(reference / utilisation, False, f"borrowed {self.label} utilisation of {names}")
        gap = f"nearest measured {names}, {chosen[0][0]:.1f} octaves away"
        return Estimate(reference / utilisation, True, f"estimate: {self.label} roofline, {gap}")

    def _reaches(self, other: tuple[float, ...], site: tuple[float, ...], x: float) -> bool:
        is_near = _octaves(other, site) <= SITE_REACH_OCTAVES
        return is_near and self.curves[other].overshoot(x) <= AXIS_REACH

    def leave_one_out(self) -> list[float]:
        """Relative errors of the interior points of every curve, each predicted from the others of its curve."""
        errors = []
        for curve in self.curves.values():
            for i in range(1, len(curve.x) - 1):
                rest = Curve(
                    curve.site,
                    curve.x[:i] + curve.x[i + 1 :],
                    curve.utilisation[:i] + curve.utilisation[i + 1 :],
                )
                errors.append(abs(curve.utilisation[i] / rest.at(curve.x[i]) - 1.0))
        return errors

    def leave_site_out(self) -> list[float]:
        """Relative errors of all points of every curve, predicted without any point of its site."""
        errors = []
        for curve in self.curves.values():
            rest = CurveSet(self.label, [], self.reference_us)
            rest.curves = {site: other for site, other in self.curves.items() if site != curve.site}
            for x, share in zip(curve.x, curve.utilisation, strict=True):
                found = rest.price(curve.site, x)
                if not found.is_estimate:
                    errors.append(abs(found.time_us / (self.reference_us(curve.site, x) / share) - 1.0))
        return errors


def _octaves(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    return math.sqrt(sum(math.log2(p / q) ** 2 for p, q in zip(a, b, strict=True)))


def _distance(curve: Curve, site: tuple[float, ...], x: float) -> float:
    """Octaves between sites; a lack of range along the axis counts like a distance."""
    return math.hypot(_octaves(curve.site, site), math.log2(curve.overshoot(x)))
