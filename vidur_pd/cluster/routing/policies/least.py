"""The loads of the core's policies as a router sees them that hears of them late (``routing.index_delay_s``)."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.scheduling import RequestView


class LeastTokens(Routing):
    """Of equal ones the fewest requests, then the first."""

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        del request
        return min(candidates, key=lambda each: (each.load_tokens, _requests(each)))


class LeastRequests(Routing):
    """4 · waiting + running; of equal ones the first."""

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        del request
        return min(candidates, key=_requests)


def _requests(candidate: Candidate) -> int:
    return 4 * candidate.waiting_requests + candidate.running_requests
