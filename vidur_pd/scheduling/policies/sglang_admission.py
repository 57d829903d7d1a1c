"""SGLang's admission of prompts to an extend batch: what is left of each budget.

Source: SGLang 0.5.23, python/sglang/srt/managers/schedule_policy.py (``PrefillAdder``) and
python/sglang/srt/mem_cache/prefill_budget.py.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from vidur_pd.scheduling.policy import Decision, RankView, RequestView

CLIP_MAX_NEW_TOKENS: Final = 4096
"""Most tokens of an output that are reserved."""


class Verdict(Enum):
    """What may come after a request."""

    CONTINUE = auto()
    NO_TOKEN = auto()
    """KV is used up."""
    OTHER = auto()
    """The batch is."""


def _output_tokens(rank: RankView, request: RequestView) -> int:
    return 1 if rank.role == "prefill" else request.max_output_tokens


def most_new_tokens(rank: RankView, request: RequestView) -> int:
    """Tokens that the request may still generate, clipped."""
    return min(max(_output_tokens(rank, request) - request.generated_tokens, 0), CLIP_MAX_NEW_TOKENS)


class Admission:
    """One round of admissions; requests that are admitted run in the decision at once.

    Total: free and evictable KV, less what running requests may come to and what has been promised in this round.
    Input: ``max_prefill_tokens``. Chunk: ``engine.max_batched_tokens``. Prompts count in whole pages.
    """

    def __init__(self, rank: RankView, decision: Decision, running_tokens: float, mixed: int, most_input: int) -> None:
        """``running_tokens``: what running requests are expected to generate; ``mixed``: decodes next to the extend."""
        self._rank, self._decision = rank, decision
        self._page = rank.block_tokens
        self._promised = mixed + running_tokens
        self._immediate = mixed
        self._input_left = most_input - mixed
        self._chunk_left = rank.max_batched_tokens - mixed
        self._taken_blocks = 0
        self.admitted: list[RequestView] = []
        """Requests in the extend batch."""
        self.cut: RequestView | None = None
        """The prompt that did not fit whole."""

    @property
    def verdict(self) -> Verdict:
        if self._total_left <= 0 or self._free_tokens - self._immediate <= 0:
            return Verdict.NO_TOKEN
        if self._input_left <= 0 or self._chunk_left <= 0:
            return Verdict.OTHER
        return Verdict.CONTINUE

    def go_on(self, request: RequestView) -> bool:
        """The next chunk of a prompt that was cut; whether it is the last one."""
        rest = request.sequence_tokens - request.computed_tokens
        total = int(self._total_left)
        tokens = min(rest, min(self._chunk_left, total) if total > 0 else self._chunk_left, self._room(request))
        if tokens <= 0:
            return False  # SGLang runs out of memory here
        self._run(request, tokens, self._rank.lacking_blocks(request, tokens))
        is_last = tokens == rest
        self._charge(tokens, min(_output_tokens(self._rank, request), CLIP_MAX_NEW_TOKENS) if is_last else 0)
        return is_last

    def admit(self, request: RequestView) -> Verdict:
        """Admits a waiting request, as a whole or the chunk's part of it, unless its KV may not fit."""
        rank, page = self._rank, self._page
        self._decision.touch(request, request.sequence_tokens - 1)
        prefix = rank.cached_tokens(request)
        extend = request.sequence_tokens - prefix
        locked_by_it = rank.lacking_blocks(request, 0) * page
        if extend + most_new_tokens(rank, request) + page >= self._total_left - locked_by_it:
            return Verdict.NO_TOKEN
        output = min(_output_tokens(rank, request), CLIP_MAX_NEW_TOKENS)
        if self._whole_pages(extend) > self._chunk_left:
            end = (prefix + self._chunk_left // page * page) // page * page
            extend, output = end - prefix, 0
            if extend <= 0:
                return Verdict.OTHER
            self.cut = request
        self._run(request, extend, rank.blocks(prefix + extend) - rank.blocks(prefix))
        self._charge(extend, output)
        return self.verdict

    @property
    def _free_tokens(self) -> int:
        """Free and evictable KV before the admitted prompts took theirs, which are promised."""
        return (self._rank.free_blocks + self._taken_blocks) * self._page

    @property
    def _total_left(self) -> float:
        return self._free_tokens - self._promised

    def _room(self, request: RequestView) -> int:
        """Tokens of a running request for which there is KV now."""
        computed, page = request.computed_tokens, self._page
        return self._rank.blocks(computed) * page - computed + self._rank.free_blocks * page

    def _whole_pages(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page

    def _run(self, request: RequestView, tokens: int, blocks: int) -> None:
        self._decision.run(request, tokens)
        self._taken_blocks += blocks
        self.admitted.append(request)

    def _charge(self, tokens: int, output: int) -> None:
        pages = self._whole_pages(tokens)
        self._immediate += pages + self._page
        self._promised += pages + self._page + output
        self._input_left -= pages
        self._chunk_left -= pages
