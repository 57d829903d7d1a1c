"""Session affinity: turns of one conversation go to the instance that had the first, while it is in service."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.scheduling import RequestView


class Session(Routing):
    """The instance of each session; a new one gets the instance with the least load, in tokens."""

    def __init__(self) -> None:
        self._place_of: dict[int, int] = {}

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        session = self.context.session_of(request)
        known = next((each for each in candidates if each.place == self._place_of.get(session)), None)
        chosen = known or min(candidates, key=lambda each: each.load_tokens)
        self._place_of[session] = chosen.place
        return chosen
