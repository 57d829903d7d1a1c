"""Shortest job first with ageing: of the requests that wait, the one with the fewest tokens to compute goes first.

Each second of waiting counts like so many tokens less, so that long prompts get their turn too::

    engine: {policy: "policies/shortest_job_first.py:ShortestJobFirst"}
"""

from vidur_pd.scheduling import Decision, Policy, RankView, RequestView

AGEING_TOKENS_PER_S = 2000
PS_PER_S = 10**12


class ShortestJobFirst(Policy):
    """Requests that run go on, in order of admission; the rest of the budget goes to those that wait."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        if self._continue_running(rank, decision):
            self._admit(rank, decision)

    def _continue_running(self, rank: RankView, decision: Decision) -> bool:
        """False if a request had to be preempted for the blocks of others."""
        has_room = True
        for request in rank.running:
            tokens = min(rank.most_tokens(request), rank.budget_left)
            if request.is_in_iteration or not request.is_running or tokens == 0:
                continue
            while rank.lacking_blocks(request, tokens) > rank.free_blocks:
                has_room = False
                victim = next(other for other in reversed(rank.running) if not other.is_in_iteration)
                decision.preempt(victim)
                if victim is request:
                    return False
            decision.run(request, tokens)
        return has_room

    def _admit(self, rank: RankView, decision: Decision) -> None:
        line = sorted(rank.arrived, key=lambda request: self._cost(rank, request))
        line += sorted(rank.waiting, key=lambda request: self._cost(rank, request))
        for request in line:
            if rank.running_requests == rank.max_seqs or not rank.budget_left:
                return
            rest = rank.most_tokens(request)
            if rank.lacking_blocks(request, rest) <= rank.free_blocks:
                decision.run(request, min(rest, rank.budget_left))
        if rank.arrived and not rank.running_requests and not rank.is_transferring:
            decision.preempt(rank.arrived[-1])  # those whose KV has come hold all blocks, and none can go on

    def _cost(self, rank: RankView, request: RequestView) -> float:
        waited_s = (rank.now_ps - request.arrived_ps) / PS_PER_S
        return rank.most_tokens(request) - AGEING_TOKENS_PER_S * waited_s
