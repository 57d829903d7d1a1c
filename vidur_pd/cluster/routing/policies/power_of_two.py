"""Power of two choices (Mitzenmacher, 2001): of two instances drawn at random the one with fewer requests."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.scheduling import RequestView


class PowerOfTwo(Routing):
    """The load is what SGLang's ``power_of_two`` compares: requests that wait or run. Of equal ones the first drawn."""

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        del request
        drawn = self.context.random.permutation(len(candidates))[:2].tolist()
        two: list[Candidate] = [candidates[place] for place in drawn]
        return min(two, key=lambda each: each.waiting_requests + each.running_requests)
