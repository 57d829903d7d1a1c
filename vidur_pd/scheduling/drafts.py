"""Speculative decoding as a scheduler sees it: tokens drafted per step, and how many of them the model accepts.

Drafts are accepted one after another, each with the same probability, until one is rejected: of k drafts E tokens are
kept with ``E = a + a² + … + a^k``, plus the one that every step yields. Assumes that acceptance does not depend on
the request, the position or the load. The first token after a prefill or a KV transfer comes without drafts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Drafts:
    """Draws the accepted drafts of one data-parallel rank; the same generator gives the same sequence."""

    def __init__(self, per_step: int, acceptance: float, rng: np.random.Generator) -> None:
        self.per_step = per_step
        self._acceptance = acceptance
        self._rng = rng

    def accepted(self, drafts: NDArray[np.int64]) -> NDArray[np.int64]:
        """[requests] accepted ones of ``drafts`` [requests]; every request consumes the same random numbers."""
        agrees = self._rng.random((len(drafts), self.per_step)) < self._acceptance
        kept: NDArray[np.int64] = np.minimum(np.cumprod(agrees, axis=1, dtype=np.int64).sum(axis=1), drafts)
        return kept
