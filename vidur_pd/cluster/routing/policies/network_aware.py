"""Network-aware choice of a decode instance: the shortest expected KV transfer, and room for it.

    cost = transfer + load_s · share of the KV blocks in use once the request is there

The transfer is what its flows would take if each shared every link of its path evenly with the KV flows that are on
it now (`vidur_pd.kv.transfer.link_loads`). A request that does not fit waits for others, which costs ``full_s``.
The rule is ours; what it needs to know, a router learns from counters of NICs and switches.
"""

from __future__ import annotations

from collections.abc import Sequence

from boundary.fields import Seconds, Section
from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.scheduling import RequestView


class NetworkAware(Routing):
    class Options(Section):
        load_s: Seconds = 0.05
        """Seconds of transfer that a full instance is worth, against an empty one. Our choice: about a decode step's
        growth from an empty to a full batch, times a few tokens."""
        full_s: Seconds = 1.0
        """Seconds of transfer for an instance without room. Our choice."""

    options: Options

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        return min(candidates, key=lambda each: self._cost_s(request, each))

    def _cost_s(self, request: RequestView, candidate: Candidate) -> float:
        needed = -(-request.prompt_tokens // candidate.block_tokens)
        waits = self.options.full_s if needed > candidate.free_blocks else 0.0
        share = (candidate.used_blocks + needed) / candidate.usable_blocks
        return candidate.transfer_s(request) + self.options.load_s * share + waits
