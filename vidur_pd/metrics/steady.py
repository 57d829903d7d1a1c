"""Requests of a finite workload that meet what those of a longer one would.

A cluster begins empty and ends so. How long it takes to fill is the time for which a request that is met in it stays:
Σ E2E² / Σ E2E, as those that stay long are met more often. Requests that arrive sooner after the first arrival, or
later before the last, meet fewer others than in a longer workload. In one that lasts hardly longer than its requests
all do, and a load looks possible that is not: 240 requests of some 10 s on decode instances that TPOT limits were
served at 16.7 requests/s, 7,680 of the same kind at 12.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.quantities import PS_PER_S

Times = NDArray[np.int64]

STAYS_PER_BATCH: Final = 2.0
"""Of requests whose lateness is looked at together: those that are in the cluster at once are late together."""
LEAST_BATCHES: Final = 5
"""Batches from which the variance of a share is estimated. Our choice: Student's t of four degrees of freedom is 1.4
times that of twenty."""
LEAST_STAYS: Final = 2.0 + LEAST_BATCHES * STAYS_PER_BATCH
"""Stays that arrivals have to last: one to fill, one to empty."""


@dataclass(frozen=True, slots=True)
class SteadyPart:
    """Which requests of a run met a cluster as full as a longer workload makes it."""

    stays: float
    """Time from the first to the last arrival, in stays of a request that is met; 0 where none completed."""
    is_within: NDArray[np.bool_]
    """[requests] whether at least one stay after the first arrival and before the last."""

    @property
    def batches(self) -> int:
        """Batches that they make."""
        return int(max(self.stays - 2.0, 0.0) / STAYS_PER_BATCH)

    @property
    def is_long(self) -> bool:
        """Whether they say what a longer workload would."""
        return self.stays >= LEAST_STAYS


def steady_part(arrived_ps: Times, e2e_ps: Times) -> SteadyPart:
    """That of a run with [requests] arrivals, of which [completed requests] took so long."""
    arrived_s, stayed_s = arrived_ps / PS_PER_S, e2e_ps / PS_PER_S
    total_s = float(stayed_s.sum())
    stay_s = float(stayed_s @ stayed_s) / total_s if total_s else 0.0
    first_s, last_s = float(arrived_s.min()), float(arrived_s.max())
    is_within = (arrived_s >= first_s + stay_s) & (arrived_s <= last_s - stay_s)
    return SteadyPart((last_s - first_s) / stay_s if stay_s else 0.0, is_within)
