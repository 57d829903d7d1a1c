"""Iterations of several passes: two half batches that take turns, and steps that verify and draft tokens.

Assumes, in addition to what `aicb` assumes of overlap and of drafts: each rank halves its own batch, while vLLM cuts
the batches of all ranks after as many tokens. In a step with prefills each decode verifies its drafts as so many
requests of one token (its KV is read once each), and draft passes run over the decodes alone. Passes of the draft layer
over prompts are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Drafting, IterationCost, IterationModel, halve

__all__ = ["Drafting", "Halves", "in_turn", "price_with_drafts"]


@dataclass(frozen=True, slots=True)
class Halves:
    """Two-batch overlap."""

    communication_sm_share: float = 0.0
    """SMs that communication keeps from the half that computes meanwhile."""
    decode_tokens_min: int = 0
    """Tokens from which the batch of a rank is halved if it has decodes only."""
    prefill_tokens_min: int = 0
    """Tokens from which it is halved if it has prefills."""

    def of(
        self, batches: Sequence[Batch], padded_tokens: Callable[[int], int]
    ) -> tuple[list[Batch], list[Batch]] | None:
        """Both halves of every rank's batch; ``None`` where the iteration runs as a whole.

        By vLLM's rule (0.24, ``vllm/v1/worker/dp_utils.py``): every rank has the tokens to be halved, and half of the
        most padded tokens of a rank leaves a token for the second half of each. An idle rank runs a decode of one
        token.
        """
        tokens = [max(batch.tokens, 1) for batch in batches]
        has_enough = (count >= self._least(batch) for count, batch in zip(tokens, batches, strict=True))
        if not all(has_enough) or max(map(padded_tokens, tokens)) // 2 >= min(tokens):
            return None
        first, second = zip(*(halve(batch) for batch in batches), strict=True)
        return (list(first), list(second)) if any(len(half.new_tokens) for half in second) else None

    def _least(self, batch: Batch) -> int:
        return self.decode_tokens_min if batch.is_decode.all() else self.prefill_tokens_min


def in_turn(costs: Sequence[IterationCost], host_ps: int) -> IterationCost:
    """Passes one after another that expose ``host_ps`` of host time together."""
    busy_ps = sum(cost.compute_ps - cost.host_ps for cost in costs)
    return IterationCost(
        compute_ps=busy_ps + host_ps,
        host_ps=host_ps,
        phase_ps=tuple(sum(parts) for parts in zip(*(cost.phase_ps for cost in costs), strict=True)),
        communications=tuple(what for cost in costs for what in cost.communications),
        estimated_ps=sum(cost.estimated_ps for cost in costs),
        estimated_operators=tuple(sorted({name for cost in costs for name in cost.estimated_operators})),
    )


def price_with_drafts(model: IterationModel, drafting: Drafting, batches: Sequence[Batch], stage: int) -> IterationCost:
    """One step in which decodes verify drafts (KV lengths include them) and the draft layer makes new ones."""
    decodes = [_requests(batch, batch.is_decode) for batch in batches]
    step = model.speculative(decodes, drafting, stage=stage)
    verification = step.verification
    if any(not batch.is_decode.all() for batch in batches):
        verification = model.price([_verified_one_by_one(batch, drafting.drafts) for batch in batches], stage=stage)
    passes = (verification, *step.draft_passes)
    return in_turn(passes, host_ps=sum(cost.host_ps for cost in passes))


def _requests(batch: Batch, chosen: NDArray[np.bool_]) -> Batch:
    return Batch(batch.new_tokens[chosen], batch.kv_tokens[chosen], int(np.count_nonzero(chosen)))


def _verified_one_by_one(batch: Batch, drafts: int) -> Batch:
    """Each decode as ``drafts`` + 1 decodes whose KV lengths end one after another; prefills as they are."""
    is_decode = batch.is_decode
    copies = np.where(is_decode, drafts + 1, 1)
    position = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
    least = np.repeat(np.where(is_decode, 2, batch.new_tokens), copies)
    kv_tokens = np.maximum(np.repeat(batch.kv_tokens, copies) - position, least)
    rows = batch.logit_rows + drafts * int(np.count_nonzero(is_decode))
    return Batch(np.repeat(batch.new_tokens, copies), kv_tokens, rows)
