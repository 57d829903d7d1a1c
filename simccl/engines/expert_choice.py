"""Choice of experts on average: how likely a token has one on a rank or node, and how many it has there.

A token chooses ``top_k`` experts without repetition among those of ``most_groups`` of ``groups`` equal groups, all sets
of groups equally likely (node-limited routing: DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Of m even experts in a
pool of P none is chosen with probability Π (1 − m / (P − i)), i = 0 … top_k − 1. Experts that are not even count for
more or fewer of them: the logarithm of that probability grows in proportion to the ranks' ``pull``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

MOST_GROUPS = 16
"""Of experts; published models have 8. All their sets are gone through."""


@dataclass(frozen=True, slots=True)
class RankPopularity:
    """How much more or less than the mean the experts of one rank are chosen."""

    load: float = 1.0
    """(Token, expert) pairs, as a multiple of the mean over ranks."""
    pull: float = 1.0
    """−Σ log(1 − probability that a token chooses the expert), as a multiple of that of even experts."""


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """How tokens choose experts, which are divided evenly over the ranks in order.

    Raises:
        InputError: groups that do not divide the experts or are too many, or more experts per token than there are.
    """

    experts: int
    top_k: int
    groups: int = 1
    most_groups: int = 1
    ranks: tuple[RankPopularity, ...] | None = None
    """``None``: all are even."""

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= MOST_GROUPS or self.experts % self.groups:
            raise InputError(
                f"groups: found {self.groups}, expected a divisor of {self.experts} experts, at most {MOST_GROUPS}"
            )
        if not 1 <= self.most_groups <= self.groups:
            raise InputError(f"most_groups: found {self.most_groups}, expected 1 to {self.groups} groups")
        if not 1 <= self.top_k <= self.pool:
            raise InputError(
                f"top_k: found {self.top_k}, expected 1 to the {self.pool} experts of {self.most_groups} groups"
            )

    @property
    def pool(self) -> int:
        """Experts among which a token chooses."""
        return self.experts // self.groups * self.most_groups

    def reached(self, places: NDArray[np.bool_]) -> NDArray[np.float64]:
        """[places] probability that a token has an expert there; ``places`` [places, ranks] are sets of ranks."""
        ranks = places.shape[1]
        missed = _missed(self, ranks, places.shape, places.tobytes())
        if self.ranks is None:
            return 1.0 - missed
        pull = places @ np.array([rank.pull for rank in self._popularity(ranks)]) / places.sum(axis=1)
        return np.asarray(1.0 - missed**pull)

    def pairs(self, ranks: int) -> NDArray[np.float64]:
        """[ranks] experts that a token has on each."""
        if self.ranks is None:
            return np.full(ranks, self.top_k / ranks)
        return self.top_k / ranks * np.array([rank.load for rank in self._popularity(ranks)])

    def _popularity(self, ranks: int) -> tuple[RankPopularity, ...]:
        assert self.ranks is not None
        if len(self.ranks) != ranks:
            raise InputError(f"ranks: found the popularity of {len(self.ranks)}, expected of {ranks}")
        return self.ranks


@lru_cache(maxsize=256)
def _missed(choice: ExpertChoice, ranks: int, shape: tuple[int, ...], places: bytes) -> NDArray[np.float64]:
    """[places] probability that a token has no expert there, where all are even."""
    per_rank, per_group = choice.experts / ranks, choice.experts / choice.groups
    low = np.arange(ranks)[:, None] * per_rank
    first = np.arange(choice.groups) * per_group
    on_rank = np.clip(np.minimum(low + per_rank, first + per_group) - np.maximum(low, first), 0.0, None)
    there = np.frombuffer(places, dtype=np.bool_).reshape(shape) @ on_rank
    chosen = list(combinations(range(choice.groups), choice.most_groups))
    sets = np.zeros((len(chosen), choice.groups), dtype=np.bool_)
    np.put_along_axis(sets, np.array(chosen), True, axis=1)
    found = sets.astype(np.float64) @ there.T
    left = choice.pool - np.arange(choice.top_k)
    missed: NDArray[np.float64] = np.clip(1.0 - found[..., None] / left, 0.0, 1.0).prod(axis=2).mean(axis=0)
    return missed
