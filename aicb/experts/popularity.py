"""Popularity of ranks: how much more or less than the mean the experts of each are chosen, for what travels to them.

Unlike the load of the slowest rank it leaves out what chance does to few tokens, which measured times of dispatch and
combine have in them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aicb.experts.placement import Placement

RankPopularity = tuple[float, float]
"""Of the experts of a rank: (token, expert) pairs, and −Σ log(1 − probability that a token chooses the expert), both as
multiples of what even experts have."""
MOST_PROBABLE = 1.0 - 1e-6
"""A token misses an expert at least so seldom: keeps the logarithm finite."""


def rank_popularity(chosen: NDArray[np.float64], placement: Placement) -> tuple[RankPopularity, ...]:
    """[ranks] popularity where a token chooses each expert with probability ``chosen`` [experts]; replicas share it."""
    slots = placement.expert_of_slot
    probability = np.minimum((chosen / placement.replicas)[slots], MOST_PROBABLE)
    even = chosen.sum() / slots.size
    load = probability.sum(axis=1) / (even * slots.shape[1])
    pull = np.log1p(-probability).sum(axis=1) / (np.log1p(-min(even, MOST_PROBABLE)) * slots.shape[1])
    return tuple(zip(np.round(load, 4).tolist(), np.round(pull, 4).tolist(), strict=True))
