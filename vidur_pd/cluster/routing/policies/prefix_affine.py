"""Prefix affinity: the instance that has been sent most of the prompt, as SGLang's router chooses (``cache_aware``).

Source: sgl-project/sglang, ``sgl-model-gateway/src/policies/cache_aware.rs``. While loads (requests) are out of
balance, the least loaded; else the best match, if it is more than ``cache_threshold`` of the prompt, or else the
instance whose tree is smallest. The tree is the router's own, an approximation that knows nothing of the engines'
evictions; here it is of blocks of the workload's hashes, there of characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from boundary.fields import Count, NonNegativeFloat, Probability, Section
from vidur_pd.cluster.routing.policy import Candidate, Routing
from vidur_pd.cluster.routing.prefix_index import PrefixIndex, prompt_blocks
from vidur_pd.scheduling import RequestView


class PrefixAffine(Routing):
    """One tree for each candidate."""

    class Options(Section):
        """Defaults of ``python -m sglang_router.launch_router``."""

        cache_threshold: Probability = 0.3
        """Share of the prompt above which the best match gets the request."""
        balance_abs_threshold: NonNegativeFloat = 64
        """Out of balance: the most loaded has so many more requests than the least loaded,"""
        balance_rel_threshold: NonNegativeFloat = 1.5
        """and more than so many times as many."""
        max_tree_tokens: Count = 2**24
        """Of a candidate's tree. SGLang: 2²⁶ characters."""

    options: Options

    def __init__(self) -> None:
        self._trees: dict[int, PrefixIndex] = {}

    def choose(self, request: RequestView, candidates: Sequence[Candidate]) -> Candidate:
        blocks = prompt_blocks(request, self.context.hash_block_tokens)
        chosen = self._chosen(request, blocks, candidates)
        self._tree(chosen).add(blocks, 0)
        return chosen

    def _chosen(self, request: RequestView, blocks: list[int], candidates: Sequence[Candidate]) -> Candidate:
        loads = [each.waiting_requests + each.running_requests for each in candidates]
        options, most, least = self.options, max(loads), min(loads)
        if most - least > options.balance_abs_threshold and most > options.balance_rel_threshold * least:
            return candidates[loads.index(least)]
        matched = [self._tree(each).matched(blocks, 0) for each in candidates]
        best = max(matched)
        if best * self.context.hash_block_tokens > options.cache_threshold * request.prompt_tokens:
            return candidates[matched.index(best)]
        return min(candidates, key=lambda each: len(self._tree(each)))

    def _tree(self, candidate: Candidate) -> PrefixIndex:
        if candidate.place not in self._trees:
            most = self.options.max_tree_tokens // self.context.hash_block_tokens
            self._trees[candidate.place] = PrefixIndex(most)
        return self._trees[candidate.place]
