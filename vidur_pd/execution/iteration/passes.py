"""Iterations of several passes: two half batches that take turns, and steps that verify and draft tokens.

Assumes, in addition to what `aicb` assumes of overlap and of drafts: batches are halved whenever both halves have
work. In a step with prefills, or in which not all decodes have drafts, each decode verifies its drafts as so many
requests of one token (its KV is read once each).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Drafting, IterationCost, IterationModel, halve, one_by_one

__all__ = ["Drafting", "Halves", "halve_all", "in_turn", "price_with_drafts"]


@dataclass(frozen=True, slots=True)
class Halves:
    """Two-batch overlap."""

    communication_sm_share: float = 0.0
    """SMs that communication keeps from the half that computes meanwhile."""


def halve_all(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]] | None:
    """Both halves of every rank's batch; ``None`` where one of them would be empty on all ranks."""
    halves = [halve(batch) for batch in batches]
    first, second = [half[0] for half in halves], [half[1] for half in halves]
    has_work = [any(len(batch.new_tokens) for batch in half) for half in (first, second)]
    return (first, second) if all(has_work) else None


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


def price_with_drafts(
    model: IterationModel, drafting: Drafting, batches: Sequence[Batch], drafts: NDArray[np.int64], stage: int
) -> IterationCost:
    """One step in which decodes verify ``drafts`` [requests of all ranks] (KV lengths include them), and new ones are
    made.

    Layers and models draft as many for every request: its last steps, which can use fewer, are priced as others.
    """
    is_uniform = drafting.method != "ngram" or bool((drafts == drafting.drafts).all())
    if is_uniform and all(batch.is_decode.all() for batch in batches):
        verification = model.price(batches, stage=stage, queries=drafting.queries)
    else:
        made = np.full(len(drafts), drafting.drafts) if drafting.method != "ngram" else drafts
        ranks = np.split(made + 1, np.cumsum([len(batch.new_tokens) for batch in batches])[:-1])
        verified = [one_by_one(batch, queries) for batch, queries in zip(batches, ranks, strict=True)]
        verification = model.price(verified, stage=stage)
    passes = (verification, *model.draft_passes(batches, drafting, stage=stage))
    return in_turn(passes, host_ps=sum(cost.host_ps for cost in passes))
