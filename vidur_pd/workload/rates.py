"""Rates that vary with time, and the instants at which they have added up to a number of requests.

An inhomogeneous renewal process by change of time (Çınlar, Introduction to Stochastic Processes, 1975, section 4.7):
where N(x) is a process of rate 1, N(Λ(t)) has the rate Λ'(t). Its points are Λ⁻¹ of those of N; nothing is thinned or
clipped. With exponential gaps it is the inhomogeneous Poisson process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from boundary.csv_text import check_width, column_places, csv_rows
from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.text_files import read_text
from vidur_pd.config.rates import FileRate, RampRate, RateCurve, StepsRate

Reals = NDArray[np.float64]
MOST_RATE = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Pieces of a rate, one after another. Arrays are [pieces]; a piece is linear, or exponential in time."""

    seconds: Reals
    from_qps: Reals
    to_qps: Reals
    is_exponential: bool
    repeats: bool
    """After the last piece comes the first again; else its last rate stays."""

    @classmethod
    def of(cls, rate: RateCurve, base_dir: Path) -> Self:
        """Raises: InputError, for a file that does not hold rates."""
        match rate:
            case RampRate():
                seconds, begin, end = (np.array([each]) for each in (rate.duration_s, rate.from_qps, rate.to_qps))
                return cls(seconds, begin, end, rate.kind == "exponential" and rate.from_qps != rate.to_qps, False)
            case StepsRate():
                seconds, rates = (np.array(column) for column in zip(*rate.steps, strict=True))
                return cls(seconds, rates, rates, False, rate.repeats)
            case FileRate():
                rates = _column(base_dir / rate.path, rate)
                return cls(np.full(len(rates), rate.interval_s), rates, rates, False, rate.repeats)

    @property
    def integral(self) -> Reals:
        """[pieces + 1] requests from the beginning to the begin of each piece, and to the end of the last."""
        return np.concatenate(([0.0], np.cumsum(self._mean_qps() * self.seconds)))

    def _mean_qps(self) -> Reals:
        if self.is_exponential:
            return np.asarray((self.to_qps - self.from_qps) / np.log(self.to_qps / self.from_qps))
        return (self.from_qps + self.to_qps) / 2

    def times_s(self, requests: Reals) -> Reals:
        """When the rate has added up to these numbers of requests (rising)."""
        integral = self.integral
        total, length_s = integral[-1], float(self.seconds.sum())
        rounds = np.floor(requests / total) if self.repeats else np.zeros(len(requests))
        rest = requests - rounds * total
        piece = np.minimum(np.searchsorted(integral, rest, side="right") - 1, len(self.seconds) - 1)
        begins_s = np.concatenate(([0.0], np.cumsum(self.seconds)))
        within = self._inverse(np.minimum(rest, total) - integral[piece], piece)
        beyond = np.maximum(rest - total, 0.0) / (self.to_qps[-1] or 1.0)
        times_s = rounds * length_s + begins_s[piece] + within + beyond
        return np.maximum.accumulate(times_s)  # rounding may turn two that are picoseconds apart

    def _inverse(self, requests: Reals, piece: NDArray[np.intp]) -> Reals:
        """Seconds after the begin of their pieces at which so many more have come."""
        begin, slope = self.from_qps[piece], ((self.to_qps - self.from_qps) / self.seconds)[piece]
        if self.is_exponential:
            growth = (np.log(self.to_qps / self.from_qps) / self.seconds)[piece]
            return np.asarray(np.log1p(growth * requests / begin) / growth)
        speed = begin + np.sqrt(np.maximum(begin**2 + 2 * slope * requests, 0.0))
        return np.divide(2 * requests, speed, out=np.zeros(len(requests)), where=speed > 0)


def _column(path: Path, rate: FileRate) -> Reals:
    """Raises: InputError, naming file, line, column, found and expected."""
    rows = csv_rows(read_text(path, "a CSV file with rates").splitlines(keepends=True), f"{path}:")
    _, header = next(rows, (1, []))
    place = column_places(header, f"{path}: line 1", [rate.column])[rate.column]
    found = []
    for line, cells in rows:
        check_width(cells, header, f"{path}: line {line}")
        try:
            value = float(cells[place])
        except ValueError:
            value = -1.0
        if not 0 <= value <= MOST_RATE:
            expected = f"requests/s from 0 to {MOST_RATE:g}"
            raise InputError(f"{path}: line {line}: {rate.column}: found {quoted(cells[place])}, expected {expected}")
        found.append(value)
    if not any(found) or (not rate.repeats and not found[-1]):
        raise InputError(f"{path}: {rate.column}: found no rate at which the last request comes, expected one above 0")
    return np.array(found)
