"""What prompts take to compute, each alone, by the prices of an instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from aicb import Batch

LEAST_TOKENS: Final = 64
"""Shortest prompt that is priced; shorter ones take a share of it."""


class PromptTimes:
    """Time of the first tokens of a prompt, interpolated between powers of two and, beyond, multiples of the budget.

    A prompt is computed in chunks of the budget on one data-parallel rank while the others have nothing to do. The time
    of tokens in the middle is the difference of two such times: it has their attention to those before.
    """

    def __init__(self, price_ps: Callable[[Batch], int], budget_tokens: int) -> None:
        """``price_ps``: of one rank's batch, on idle hardware."""
        self._price_ps, self._budget = price_ps, budget_tokens
        self._grid = np.zeros(1, dtype=np.int64)
        self._times_ps = np.zeros(1)

    def between_ps(self, start: int, end: int) -> int:
        """Of the tokens from ``start`` on, up to before ``end``."""
        if self._grid[-1] < end:
            self._extend(end)
        start_ps, end_ps = np.interp([start, end], self._grid, self._times_ps)
        return round(end_ps - start_ps)

    def saved_ps(self, tokens: int) -> int:
        """What so many tokens add to an iteration of one."""
        return self.between_ps(0, tokens) - self._price_ps(Batch.prefill([1], [0]))

    def _extend(self, end: int) -> None:
        while self._grid[-1] < end:
            last = int(self._grid[-1])
            following = max(LEAST_TOKENS, 2 * last) if 2 * last <= self._budget else self._budget
            if last >= self._budget:
                following = last + self._budget
            past = last if last >= self._budget else 0
            cost_ps = self._price_ps(Batch.prefill([following - past], [past]))
            self._times_ps = np.append(self._times_ps, cost_ps + (self._times_ps[-1] if past else 0.0))
            self._grid = np.append(self._grid, following)
