"""Iterations of several passes: two half batches that take turns, and steps that verify and draft tokens.

Assumes, in addition to what `aicb` assumes of overlap and of drafts: each rank halves its own batch, also where vLLM
would cut the batches of all ranks after as many tokens. A step with prefills, or in which not all decodes have drafts,
runs as a whole; in the latter each decode verifies its drafts as so many requests of one token, whose KV is read once
for each. Passes that draft are never halved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Drafting, GraphSizes, IterationCost, IterationModel, LayerSchedule, halve, in_turn, one_by_one

__all__ = ["Drafting", "Halves", "price_with_drafts", "verify_equally_many"]


@dataclass(frozen=True, slots=True)
class Halves:
    """Two-batch overlap."""

    communication_sm_share: float = 0.0
    """SMs that communication keeps from the half that computes meanwhile."""
    decode_tokens_min: int = 0
    """Tokens from which the batch of a rank is halved if it has decodes only."""
    prefill_tokens_min: int = 0
    """Tokens from which it is halved if it has prefills."""
    cut: Literal["common", "own"] = "common"
    """Whether all ranks are cut after as many tokens, or each in its middle."""
    decode_schedule: LayerSchedule = "whole"
    """What hides the collectives of decodes (`aicb.iteration.layer_schedule`); prefills run as ``whole``."""
    communication_busy_share: float = 0.0
    """Part of a collective of decodes that nothing hides."""

    def of(
        self, batches: Sequence[Batch], sizes: GraphSizes, queries: int = 1
    ) -> tuple[list[Batch], list[Batch]] | None:
        """Both halves of every rank's batch; ``None`` where the iteration runs as a whole. A decode has ``queries``
        tokens, more than one where all verify drafts.

        Every rank has to have the tokens to be halved. With a common cut (vLLM 0.24, ``vllm/v1/worker/dp_utils.py``),
        half of the most padded tokens of a rank has to leave a token for the second half of each, and an idle rank has
        a token; with their own (SGLang 0.5.23, ``batch_overlap/two_batch_overlap.py``), idle ranks do not count, and
        the others have to agree whether they prefill.
        """
        counted = batches if self.cut == "common" else [batch for batch in batches if batch.tokens]
        tokens = [max(batch.tokens * queries, 1) for batch in counted]
        if not all(count >= self._least(batch) for count, batch in zip(tokens, counted, strict=True)):
            return None
        has_prompts = not all(batch.is_decode.all() for batch in batches)
        padded = max(sizes.padded(count, has_prompts=has_prompts) for count in tokens)
        if self.cut == "common" and padded // 2 >= min(tokens):
            return None
        if self.cut == "own" and len({bool(batch.is_decode.all()) for batch in counted}) > 1:
            return None
        first, second = zip(*(halve(batch) for batch in batches), strict=True)
        return (list(first), list(second)) if any(len(half.new_tokens) for half in second) else None

    def _least(self, batch: Batch) -> int:
        return self.decode_tokens_min if batch.is_decode.all() else self.prefill_tokens_min


def verify_equally_many(drafting: Drafting, batches: Sequence[Batch], drafts: NDArray[np.int64]) -> bool:
    """Whether all requests of a step are decodes, with as many ``drafts`` [requests of all ranks] to verify."""
    if not all(batch.is_decode.all() for batch in batches):
        return False
    return drafting.method != "ngram" or bool(np.all(drafts == drafting.drafts))


def price_with_drafts(
    model: IterationModel,
    drafting: Drafting,
    batches: Sequence[Batch],
    drafts: NDArray[np.int64] | None,
    stage: int,
) -> IterationCost:
    """One step in which decodes verify ``drafts`` [requests of all ranks] (KV lengths include them), and new ones are
    made; ``None``: a step of an instance that only prefills.

    Layers and models draft as many for every request: its last steps, which can use fewer, are priced as others.
    """
    if drafts is None:
        verification = model.price_device(batches, stage=stage)
    elif drafting.method != "ngram" or verify_equally_many(drafting, batches, drafts):
        verification = model.price_device(batches, stage=stage, queries=drafting.queries)
    else:
        ranks = np.split(drafts + 1, np.cumsum([len(batch.new_tokens) for batch in batches])[:-1])
        verified = [one_by_one(batch, queries) for batch, queries in zip(batches, ranks, strict=True)]
        verification = model.price_device(verified, stage=stage)
    if drafts is not None:
        verification = model.prepared_with_drafts(verification, batches)
    passes = (verification, *model.draft_passes(batches, drafting, stage=stage))
    return in_turn(passes, host_ps=sum(cost.host_ps for cost in passes))
