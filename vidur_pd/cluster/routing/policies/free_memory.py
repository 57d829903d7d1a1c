"""The instance with the most free KV blocks, those that requests are on their way to counted as used."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.scheduling import RequestView


class FreeMemory(Routing):
    """Of equal ones the instance with the least load in tokens: requests without blocks yet count there."""

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        del request
        return max(candidates, key=lambda each: (each.free_blocks, -each.load_tokens))
