"""Speculative decoding with a multi-token-prediction layer: what a step costs and how many tokens it yields.

A step of k drafts verifies k + 1 tokens per request with the model (the newest token and k drafts), then drafts k
tokens for the next step: the first pass runs over all k + 1 verified tokens, so that the draft layer's KV follows, the
others over one token per request. Each draft is accepted with the same probability a, given that those before it were:

    E[tokens per step] = 1 + a + … + a^k = (1 − a^(k+1)) / (1 − a)

Assumes that verification attends to all KV with every query (the causal mask among k + 1 tokens is ignored), that the
host hides behind the passes as in plain decoding, once per step, and greedy drafts without a tree. Tokens beyond the
end of a request and the KV of rejected drafts are the scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aicb.iteration.pricing import IterationCost
from aicb.operators.batch import Batch
from boundary.errors import InputError

MOST_DRAFTS = 16
"""Engines draft one to eight."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """k drafts per step and how often the target model agrees.

    Raises:
        InputError: no drafts, or an acceptance that is no probability.
    """

    drafts: int = 1
    acceptance: float = 0.85
    """Probability that a draft is accepted, given those before it (DeepSeek-V3 report, section 5.4.3: 0.85–0.90)."""

    def __post_init__(self) -> None:
        if not 1 <= self.drafts <= MOST_DRAFTS:
            raise InputError(f"Drafting.drafts: found {self.drafts}, expected 1 to {MOST_DRAFTS}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise InputError(f"Drafting.acceptance: found {self.acceptance}, expected 0 to 1")

    @property
    def queries(self) -> int:
        """Tokens per request that a step verifies."""
        return self.drafts + 1

    @property
    def expected_tokens(self) -> float:
        """Tokens per request and step, the one that verification itself yields included."""
        return sum(self.acceptance**accepted for accepted in range(self.drafts + 1))


@dataclass(frozen=True, slots=True)
class SpeculativeCost:
    """One step: verification by the model, then the passes of the draft layer."""

    verification: IterationCost
    draft_passes: tuple[IterationCost, ...]
    """Empty on pipeline stages before the last."""
    expected_tokens: float
    """Per request."""

    @property
    def compute_ps(self) -> int:
        """All passes, communication apart."""
        return self.verification.compute_ps + sum(cost.compute_ps for cost in self.draft_passes)

    @property
    def compute_ps_per_token(self) -> float:
        """Per request and token it keeps: what plain decoding's ``compute_ps`` compares with."""
        return self.compute_ps / self.expected_tokens


def later(batches: Sequence[Batch], tokens: int) -> list[Batch]:
    """Decodes after ``tokens`` more tokens each."""
    return [replace(batch, kv_tokens=batch.kv_tokens + tokens) for batch in batches]
