"""Load of the slowest rank of an EP group as a function of the group's tokens.

Values are means over draws, evaluated on a geometric grid of token counts and interpolated linearly between, so that a
caller may ask for every iteration. Rows grow with √tokens above their mean: a chord on a quarter octave lies at most
0.2 % of the excess below.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from aicb.experts.load import BalancedLoad, ExpertDraw, ExpertLoad, UniformLoad, draw_experts
from aicb.experts.placement import Placement, place_balanced, place_in_order
from aicb.experts.popularity import MOST_PROBABLE, RankPopularity, rank_popularity
from aicb.model.partition import Partition

UNIFORM_DRAWS, SKEWED_DRAWS = 16, 64
"""Independent layers averaged. The mean over draws then has a deviation of 0.4 % (uniform) and 1 to 3 % (skewed); the
58 layers of one DeepSeek-V3 iteration vary as much."""
STEPS_PER_OCTAVE = 4
"""Grid points per doubling of the tokens."""
EXACT_TOKENS = 8
"""Every token count up to this is a grid point."""


class RankLoad(NamedTuple):
    """Routed experts of one rank in one layer (means over layers, hence fractions)."""

    rows: float
    """Over all local experts; at least 1 where there are tokens."""
    active_experts: float
    """Local slots with at least one row."""
    largest_expert_rows: float
    """Rows of the fullest local slot: what the masked layout must hold."""


class LoadProfile:
    """Load of the slowest rank for one kind of expert load on one placement.

    Args:
        load: how tokens choose experts.
        experts, experts_per_token: of the model's MoE layers.
        partition: ranks and redundant slots; redundant slots are filled and placed by EPLB's rule.
        seed: the same seed gives the same profile.
        draws: layers averaged; by default ``UNIFORM_DRAWS`` or ``SKEWED_DRAWS``.

    Raises:
        InputError: slots do not divide among the ranks; recorded loads of another number of experts.
    """

    def __init__(
        self,
        load: ExpertLoad,
        moe: tuple[int, int],
        partition: Partition,
        *,
        seed: int = 0,
        draws: int | None = None,
    ):
        """``moe``: experts and experts per token."""
        self._experts, self._chosen = moe
        self._ranks = partition.ep
        self._slots_per_rank = partition.expert_slots_per_rank(self._experts)
        self._has_copies = partition.redundant_experts > 0
        shape = (self._experts, self._chosen, self._ranks)
        self._draws: list[ExpertDraw] = []
        if not isinstance(load, BalancedLoad):
            draws = draws or (UNIFORM_DRAWS if isinstance(load, UniformLoad) else SKEWED_DRAWS)
            self._draws = [draw_experts(load, shape, draw, seed) for draw in range(draws)]
        self._placed_for = self._draws
        self._placements: Sequence[Placement] | None = None
        self._excess = min(1.0 / load.balancedness, float(self._ranks)) if isinstance(load, BalancedLoad) else 1.0
        """Rows of the slowest rank where there are no draws, as a multiple of the mean."""
        self._is_even = isinstance(load, BalancedLoad | UniformLoad) and self._excess == 1.0
        self._grid: dict[int, RankLoad] = {}
        self._memo: dict[int, RankLoad] = {}
        self._popularity: dict[int, tuple[RankPopularity, ...]] = {}

    def changed(self, draws: Sequence[ExpertDraw], placements: Sequence[Placement] | None) -> LoadProfile:
        """The profile of layers that choose otherwise, on the given placements, or on that of this profile."""
        other = copy(self)
        other._draws, other._placements = list(draws), placements
        other._grid, other._memo, other._popularity = {}, {}, {}
        return other

    def __call__(self, tokens: int) -> RankLoad:
        """Load of the slowest rank when the group processes ``tokens`` ≥ 1 distinct tokens."""
        found = self._memo.get(tokens)
        if found is None:
            found = self._memo[tokens] = self._interpolated(tokens)
        return found

    def _interpolated(self, tokens: int) -> RankLoad:
        if not self._draws:
            return self._balanced(tokens)
        low, high = _bracket(tokens)
        below = self._at(low)
        if low == tokens:
            return below
        weight = (tokens - low) / (high - low)
        return RankLoad(*(a + weight * (b - a) for a, b in zip(below, self._at(high), strict=True)))

    def _balanced(self, tokens: int) -> RankLoad:
        most = tokens * min(self._chosen, self._slots_per_rank)
        rows = max(min(self._excess * tokens * self._chosen / self._ranks, most), 1.0)
        active = min(float(self._slots_per_rank), rows)
        return RankLoad(rows, active, rows / active)

    def _at(self, tokens: int) -> RankLoad:
        if tokens not in self._grid:
            slowest = [self._slowest(layer, tokens) for layer in range(len(self._draws))]
            self._grid[tokens] = RankLoad(*(float(value) for value in np.mean(slowest, axis=0)))
        return self._grid[tokens]

    def _slowest(self, layer: int, tokens: int) -> RankLoad:
        """The rank with the most rows; among equals the one with the most active experts."""
        slots = self.placement(layer, tokens).slot_rows(self._draws[layer].rows(tokens))
        rows, active = slots.sum(axis=1), np.count_nonzero(slots, axis=1)
        rank = int(np.argmax(rows * (self._slots_per_rank + 1) + active))
        return RankLoad(float(rows[rank]), float(active[rank]), float(slots[rank].max()))

    def popularity(self, tokens: int) -> tuple[RankPopularity, ...] | None:
        """[ranks] of a typical layer when the group processes about ``tokens``; ``None`` where experts are even.

        Typical is the layer whose most popular rank is nearest to the mean of these over layers. Tokens count in powers
        of two.
        """
        if self._is_even:
            return None
        if not self._draws:
            return self._one_ahead()
        step = tokens.bit_length()
        if step not in self._popularity:
            known = 1 << (step - 1)
            layers = [
                rank_popularity(draw.expected_load(known) / known, self.placement(layer, known))
                for layer, draw in enumerate(self._draws)
            ]
            most = np.array([max(rank)[0] for rank in layers])
            self._popularity[step] = layers[int(np.argmin(np.abs(most - most.mean())))]
        return self._popularity[step]

    def _one_ahead(self) -> tuple[RankPopularity, ...]:
        """[ranks] the first has the rows of the slowest rank, the others share the rest."""
        others = (self._ranks - self._excess) / max(self._ranks - 1, 1)
        even = self._chosen / self._experts
        pulls = [
            np.log1p(-min(load * even, MOST_PROBABLE)) / np.log1p(-min(even, MOST_PROBABLE))
            for load in (self._excess, others)
        ]
        first, other = (
            (round(load, 4), round(float(pull), 4)) for load, pull in zip((self._excess, others), pulls, strict=True)
        )
        return (first, *[other] * (self._ranks - 1))

    def placement(self, layer: int, tokens: int) -> Placement:
        """Of a layer's experts, where the group is expected to process so many tokens."""
        if self._placements is not None:
            return self._placements[layer]
        if not self._has_copies:
            return place_in_order(self._experts, self._ranks)
        expected = self._placed_for[layer].expected_load(tokens)
        return place_balanced(expected, self._slots_per_rank * self._ranks, self._ranks)


@lru_cache(maxsize=64)
def load_profile(load: ExpertLoad, moe: tuple[int, int], partition: Partition, seed: int = 0) -> LoadProfile:
    """The profile of these arguments, shared by all who ask: sampling takes a tenth of a second."""
    return LoadProfile(load, moe, partition, seed=seed)


def _bracket(tokens: int) -> tuple[int, int]:
    """Grid points around ``tokens``; equal to it where it is one."""
    if tokens <= EXACT_TOKENS:
        return tokens, tokens
    step = int(np.log2(tokens) * STEPS_PER_OCTAVE) - 1
    points = [_point(step + offset) for offset in range(4)]
    low = max(point for point in points if point <= tokens)
    return low, min(point for point in points if point > tokens)


def _point(step: int) -> int:
    return int(round(2.0 ** (step / STEPS_PER_OCTAVE), 0))
