"""The end of a run that is certain to miss its SLO, whatever is still to come."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from vidur_pd.config import SloConfig
from vidur_pd.config.objectives import Target, share_below
from vidur_pd.metrics.iterations import Columns
from vidur_pd.metrics.requests import NEVER, RequestTable, seconds

LOOKS: Final = 50
"""Times that a run is judged."""
LEAST_AT_ONCE: Final = 16


class CertainMiss(Exception):
    """More requests have ended beyond a limit than may be, of all that the workload has."""

    def __init__(self, target: str, share: float) -> None:
        super().__init__(target)
        self.target = target
        self.share = share
        """Of the requests that had ended."""


@dataclass
class EarlyJudge:
    """A stream of ended requests that counts those beyond limits; it keeps no row.

    Only targets of percentiles of all requests are judged: means, and those of classes, may still change.

    Raises: CertainMiss, from within the run.
    """

    slo: SloConfig
    requests: int
    """Of the workload."""
    excess: float = 1.0
    """Times the share that may be beyond a limit, for a miss to be certain enough."""
    requests_at_once: int = field(init=False)
    _beyond: dict[str, int] = field(default_factory=dict)
    _ended: int = 0

    def __post_init__(self) -> None:
        self.requests_at_once = max(LEAST_AT_ONCE, self.requests // LOOKS)

    def add_requests(self, table: RequestTable) -> None:
        self._ended += len(table)
        for target, share in self._judged():
            beyond = self._beyond.get(target.latency + target.statistic, 0) + _beyond(table, target)
            self._beyond[target.latency + target.statistic] = beyond
            # One more than the share leaves beyond it: a percentile lies between two requests.
            if beyond > math.ceil(self.excess * (1 - share) * self.requests) + 1:
                raise CertainMiss(f"{target.latency.upper()} {target.statistic}".rstrip(), self._ended / self.requests)

    def add_iterations(self, columns: Columns) -> None:
        pass

    def _judged(self) -> list[tuple[Target, float]]:
        if self.slo.classes is not None:
            return []
        shares = [(target, share_below(target.statistic)) for target in self.slo.targets]
        if shares:
            return [(target, share) for target, share in shares if share is not None]
        limits = (("ttft", self.slo.ttft_s), ("tpot", self.slo.tpot_s), ("e2e", self.slo.e2e_s))
        return [(Target(name, "", limit), self.slo.attainment) for name, limit in limits if limit is not None]


def _beyond(table: RequestTable, target: Target) -> int:
    found_ps = {"ttft": table.ttft_ps, "tpot": table.tpot_ps, "e2e": table.e2e_ps}[target.latency]
    late = (found_ps != NEVER) & (seconds(found_ps) > target.limit_s)
    return int(np.count_nonzero(late | ~table.is_completed))
