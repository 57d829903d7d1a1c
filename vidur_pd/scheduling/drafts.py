"""Speculative decoding as a scheduler sees it: tokens drafted per step, and how many of them the model accepts.

Drafts are accepted one after another, draft i with probability a_i, until one is rejected: of k drafts E tokens are
kept with ``E = a_1 + a_1·a_2 + … + a_1·…·a_k``, plus the one that every step yields. Assumes that acceptance does not
depend on the request or the load. The first token after a prefill or a KV transfer comes without drafts. n-grams find
drafts for a request's next step with a probability of their own, all of them or none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Drafts:
    """Draws the accepted drafts of one data-parallel rank; the same generator gives the same sequence."""

    def __init__(self, acceptances: Sequence[float], rng: np.random.Generator, *, match: float = 1.0) -> None:
        """``acceptances`` [drafts], each given those before it; ``match``: probability that there are any."""
        self.per_step = len(acceptances)
        self._acceptances = np.array(acceptances)
        self._match = match
        self._rng = rng

    def accepted(self, drafts: NDArray[np.int64]) -> NDArray[np.int64]:
        """[requests] accepted ones of ``drafts`` [requests]; every request consumes the same random numbers."""
        agrees = self._rng.random((len(drafts), self.per_step)) < self._acceptances
        kept: NDArray[np.int64] = np.minimum(np.cumprod(agrees, axis=1, dtype=np.int64).sum(axis=1), drafts)
        return kept

    def made(self, requests: int) -> NDArray[np.int64] | None:
        """[requests] drafts for the next step of each; ``None`` where there always are all."""
        if self._match == 1.0:
            return None
        return np.where(self._rng.random(requests) < self._match, self.per_step, 0)
