"""Predictors of the next value of a series."""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

LEVEL_WEIGHT: Final = 0.5
TREND_WEIGHT: Final = 0.3
"""Of the newest value, and of the newest change, against those before. Our choice."""


class Predictor(Protocol):
    """A series, value by value, and what comes next."""

    def add(self, value: float) -> None: ...

    def next(self) -> float: ...


class MovingAverage:
    """The mean of the last values; of a single one with a window of 1."""

    def __init__(self, window: int) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        self._values.append(value)

    def next(self) -> float:
        return sum(self._values) / len(self._values)


class Trend:
    """Exponential smoothing of the level and of its trend (Holt 1957), never below zero."""

    def __init__(self) -> None:
        self._level: float | None = None
        self._trend = 0.0

    def add(self, value: float) -> None:
        if self._level is None:
            self._level = value
            return
        before = self._level
        self._level = LEVEL_WEIGHT * value + (1.0 - LEVEL_WEIGHT) * (before + self._trend)
        self._trend = TREND_WEIGHT * (self._level - before) + (1.0 - TREND_WEIGHT) * self._trend

    def next(self) -> float:
        assert self._level is not None, "a value comes before a prediction"
        return max(self._level + self._trend, 0.0)


def predictor_named(name: str, window: int) -> Predictor:
    """``constant``, ``moving_average`` or ``trend``."""
    match name:
        case "trend":
            return Trend()
        case "moving_average":
            return MovingAverage(window)
        case _:
            return MovingAverage(1)
