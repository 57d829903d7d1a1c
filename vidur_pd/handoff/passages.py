"""The passages that are open, found by request and by the ranks and instances that they concern."""

from __future__ import annotations

from collections import defaultdict

from vidur_pd.handoff.passage import Passage
from vidur_pd.instance import Instance, Rank
from vidur_pd.request import Request


class Passages:
    """Passages in the order in which they began; what concerns one rank or instance is found without a search."""

    def __init__(self) -> None:
        self._of_request: dict[int, Passage] = {}
        self._begun = 0
        self._from: defaultdict[int, dict[int, Passage]] = defaultdict(dict)
        """By index of the prefill instance, then by number of the passage."""
        self._to: defaultdict[Rank, dict[int, Passage]] = defaultdict(dict)
        """By decode rank, then by number of the passage."""
        self._stuck: defaultdict[Rank, dict[int, Passage]] = defaultdict(dict)
        """The same of prefilled requests that their decode rank has no blocks for yet, in the order of their trying."""

    def __len__(self) -> int:
        return len(self._of_request)

    def __getitem__(self, request: Request) -> Passage:
        return self._of_request[request.index]

    def get(self, request: Request) -> Passage | None:
        """The passage of a request, if it is between two instances."""
        return self._of_request.get(request.index)

    def all(self) -> list[Passage]:
        return list(self._of_request.values())

    def begin(self, request: Request, source: Rank) -> Passage:
        """A new passage, without a destination."""
        self._begun += 1
        passage = Passage(self._begun, request, source)
        self._of_request[request.index] = passage
        self._from[source.instance.index][passage.number] = passage
        return passage

    def end(self, passage: Passage) -> None:
        """The passage is over."""
        self.unstick(passage)
        del self._of_request[passage.request.index]
        del self._from[passage.source.instance.index][passage.number]
        if passage.destination is not None:
            del self._to[passage.destination][passage.number]

    def assign(self, passage: Passage, destination: Rank) -> None:
        """The passage, which has no destination, gets one."""
        passage.destination = destination
        self._to[destination][passage.number] = passage

    def lose_destination(self, passage: Passage) -> None:
        """What the destination had of the request is gone, or of no use."""
        self.unstick(passage)
        if passage.destination is not None:
            del self._to[passage.destination][passage.number]
        passage.destination = None
        passage.is_reserved = passage.is_state_sent = False
        passage.sent_tokens = 0

    def stick(self, passage: Passage) -> None:
        """The destination has no blocks for the request, which is prefilled."""
        assert passage.destination is not None
        self._stuck[passage.destination][passage.number] = passage

    def unstick(self, passage: Passage) -> None:
        """The destination has blocks, or is no destination any more."""
        if passage.destination is not None:
            self._stuck[passage.destination].pop(passage.number, None)

    def concerning(self, instance: Instance) -> list[Passage]:
        """Those from and to an instance."""
        found = dict(self._from[instance.index])
        for rank in instance.ranks:
            found |= self._to[rank]
        return [found[number] for number in sorted(found)]

    def to(self, rank: Rank) -> list[Passage]:
        """Those to a decode rank."""
        found = self._to[rank]
        return [found[number] for number in sorted(found)]

    def stuck_at(self, rank: Rank) -> list[Passage]:
        """Those that a decode rank has no blocks for."""
        return list(self._stuck[rank].values())
