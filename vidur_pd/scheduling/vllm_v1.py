"""The scheduler of one data-parallel rank: vLLM V1's rules, in the core, with the drafts of its decodes drawn here."""

from __future__ import annotations

from typing import Literal

from vidur_pd import _core
from vidur_pd.kv import BlockPool
from vidur_pd.scheduling.drafts import Drafts

Role = Literal["mixed", "prefill", "decode"]
"""Part of a request's life that an instance serves: all of it, up to the first token, or after a KV transfer."""


class VllmV1Scheduler(_core.Scheduler):
    """Owns its requests from ``add`` or ``add_remote`` to their end here; the rules are in ``core/scheduler.hpp``.

    ``long_prefill_token_threshold`` caps the chunk of each prompt; 0 is off. Raises ``InputError`` for a limit below 1.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_batched_tokens: int,
        max_seqs: int,
        max_model_len: int,
        long_prefill_token_threshold: int = 0,
        role: Role = "mixed",
        drafts: Drafts | None = None,
    ) -> None:
        super().__init__(
            pool,
            role,
            max_batched_tokens,
            max_seqs,
            max_model_len,
            long_prefill_token_threshold,
            0 if drafts is None else drafts.per_step,
        )
        self._drafts = drafts

    @property
    def has_drafts(self) -> bool:
        """Decodes verify drafts."""
        return self._drafts is not None

    def finish(self, batch: _core.ScheduledBatch) -> _core.Outcome:
        """Credit the tokens that ``batch`` has sampled; requests that end here leave, and their blocks return."""
        return self.credit(batch, self.accept(batch))

    def accept(self, batch: _core.ScheduledBatch) -> list[int]:
        """Drafts kept by each request of ``batch`` that samples; nothing without drafts."""
        if self._drafts is None:
            return []
        accepted: list[int] = self._drafts.accepted(batch.drafts[batch.samples]).tolist()
        return accepted
