"""KV-aware routing by the cost of Dynamo's router: blocks to compute, less those cached, and blocks in use.

Source: ai-dynamo/dynamo, ``lib/kv-router/src/scheduling`` (1.6.1). Of an instance, in KV blocks:

    cost = prefill_weight · max(0, (tokens to compute there + prompt) / block − overlap_weight · overlap − of tiers)
         + blocks of prompts that decode there, this one included + requests_weight · requests

The lowest cost wins, ties are drawn; with a temperature the choice is drawn by a softmax of costs between 0 and 1.
Among decode instances prompts to compute, which are elsewhere, do not count, nor does what is cached; among prefill
instances prompts that decode do not. What tiers hold behind the prefix cache counts by weights of its own, by default
not at all. Left out: requests that the router holds back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from boundary.fields import NonNegativeFloat, Section
from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.scheduling import RequestView


class KvAware(Routing):
    class Options(Section):
        """Defaults of Dynamo's router."""

        overlap_weight: NonNegativeFloat = 1.0
        """What a cached block of the prompt is worth; 0: caches do not matter."""
        host_weight: NonNegativeFloat = 0.0
        """The same of one that CPU memory there has behind these (Dynamo: 0.75)."""
        disk_weight: NonNegativeFloat = 0.0
        """Of one that disks have behind these (Dynamo: 0.25)."""
        shared_weight: NonNegativeFloat = 0.0
        """Of one that a store of all instances has, ``remote`` or ``pooled``."""
        prefill_weight: NonNegativeFloat = 1.0
        requests_weight: NonNegativeFloat = 0.0
        temperature: NonNegativeFloat = 0.0
        """0: always the lowest cost."""

    options: Options

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        costs = [self._cost(request, each) for each in candidates]
        least, most, temperature = min(costs), max(costs), self.options.temperature
        if temperature and most > least:
            weights = np.exp((least - np.array(costs)) / ((most - least) * temperature))
            return candidates[int(self.context.random.choice(len(candidates), p=weights / weights.sum()))]
        lowest = [place for place, cost in enumerate(costs) if cost == least]
        return candidates[lowest[0] if len(lowest) == 1 else int(self.context.random.choice(lowest))]

    def _cost(self, request: RequestView, candidate: Candidate) -> float:
        options, role, tokens = self.options, candidate.role, 0.0
        if role != "decode":
            cached = options.overlap_weight * candidate.cached_tokens(request) if options.overlap_weight else 0.0
            cached += self._in_tiers(request, candidate)
            to_compute = candidate.prefill_tokens + request.prompt_tokens - cached
            tokens += options.prefill_weight * max(0.0, to_compute)
        if role != "prefill":
            tokens += candidate.context_tokens + request.prompt_tokens
        cost = tokens / candidate.block_tokens
        if options.requests_weight:
            cost += options.requests_weight * (candidate.waiting_requests + candidate.running_requests)
        return cost

    def _in_tiers(self, request: RequestView, candidate: Candidate) -> float:
        """What tokens that tiers have are worth."""
        options = self.options
        if not (options.host_weight or options.disk_weight or options.shared_weight):
            return 0.0
        weights, tokens = {"cpu": options.host_weight, "nvme": options.disk_weight}, candidate.tier_tokens(request)
        return sum(weights.get(kind, options.shared_weight) * tokens[kind] for kind in tokens)
