"""Iterations of several passes: two half batches that take turns, and steps that verify and draft tokens.

Assumes, beside what ``aicb.overlap`` and ``aicb.speculative`` assume: batches are halved whenever both halves have
work. In a step with prefills each decode verifies its drafts as so many requests of one token (its KV is read once
each), and draft passes run over the decodes alone. Passes of the draft layer over prompts are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aicb import Batch, Drafting, IterationCost, IterationModel, halve, two_batch_ps

__all__ = ["Drafting", "Halves", "TwoBatches", "halve_all", "in_turn", "price_with_drafts", "slowed"]


@dataclass(frozen=True, slots=True)
class Halves:
    """Two-batch overlap."""

    communication_sm_share: float = 0.0
    """SMs that communication keeps from the half that computes beside it."""


@dataclass(frozen=True, slots=True, eq=False)
class TwoBatches:
    """Both halves of an iteration of one stage, with their communication on an idle fabric."""

    costs: tuple[IterationCost, IterationCost]
    communication_ps: tuple[int, int]
    communication_sm_share: float

    def lasting_ps(self, stretch: float) -> int:
        """Time of the iteration when communication takes ``stretch`` times as long."""
        first_ps, second_ps = (round(alone_ps * stretch) for alone_ps in self.communication_ps)
        share = self.communication_sm_share
        return two_batch_ps(self.costs, (first_ps, second_ps), communication_sm_share=share)


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


def slowed(cost: IterationCost, factor: float) -> IterationCost:
    """The same pass with GPUs, or beside one, that take ``factor`` times as long for everything, host included.

    The whole is rounded as such, as in a run of iterations; the largest phase takes what its parts differ by.
    """
    if factor == 1.0:
        return cost
    rest_ps = cost.compute_ps - cost.host_ps - sum(cost.phase_ps)
    compute_ps, host_ps = round(cost.compute_ps * factor), round(cost.host_ps * factor)
    phase_ps = [round(part * factor) for part in cost.phase_ps]
    phase_ps[phase_ps.index(max(phase_ps))] += compute_ps - host_ps - sum(phase_ps) - round(rest_ps * factor)
    return replace(
        cost,
        compute_ps=compute_ps,
        host_ps=host_ps,
        phase_ps=tuple(phase_ps),
        estimated_ps=round(cost.estimated_ps * factor),
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
