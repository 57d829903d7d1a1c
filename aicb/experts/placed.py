"""Experts of one serving instance in time: popularity that drifts, and a placement that stays or follows the load."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aicb.experts.drift import ExpertDrift, drifting_layers
from aicb.experts.load import ExpertDraw, ExpertLoad, UniformLoad
from aicb.experts.placement import Placement, place_balanced
from aicb.experts.popularity import RankPopularity
from aicb.experts.profile import SKEWED_DRAWS, UNIFORM_DRAWS, LoadProfile, RankLoad
from aicb.model.partition import Partition

Move = tuple[int, int]
"""Ranks that send and receive the weights of one expert."""


class PlacedExperts:
    """Load of the slowest rank as a function of the tokens, at the instant that `move_to` has set.

    Experts lie where they were placed at the beginning, until `place` puts them elsewhere. A balancer knows the load
    of the last iterations (`count`), as the expectation over the tokens that it would count.

    Args:
        load: how tokens choose experts at the beginning; not balanced.
        moe: experts and experts per token.
        partition: ranks and redundant slots.
        seed: the same seed gives the same popularities at all times.
        drift: how popularity changes; by default not at all.
        window_steps: iterations whose load a balancer knows.

    Raises:
        InputError: as `LoadProfile`.
    """

    def __init__(
        self,
        load: ExpertLoad,
        moe: tuple[int, int],
        partition: Partition,
        *,
        seed: int = 0,
        drift: ExpertDrift | None = None,
        window_steps: int = 1000,
    ) -> None:
        layers = UNIFORM_DRAWS if isinstance(load, UniformLoad) else SKEWED_DRAWS
        self._layers = drifting_layers(load, (*moe, partition.ep), layers, drift, seed)
        self._ranks, self._slots = partition.ep, partition.ep * partition.expert_slots_per_rank(moe[0])
        self._first = self._profile = LoadProfile(load, moe, partition, seed=seed)
        self._placements: list[Placement] | None = None
        self._step = 0
        self._draws: dict[int, list[ExpertDraw]] = {0: self._layers.at(0)}
        self._window: deque[tuple[int, int]] = deque(maxlen=window_steps)

    def __call__(self, tokens: int) -> RankLoad:
        """Load of the slowest rank when the group processes ``tokens`` ≥ 1 distinct tokens."""
        return self._profile(tokens)

    def popularity(self, tokens: int) -> tuple[RankPopularity, ...] | None:
        """`LoadProfile.popularity`, at the instant and where experts lie."""
        return self._profile.popularity(tokens)

    @property
    def layers(self) -> int:
        """Layers that differ; a model with more has them in turn."""
        return len(self._draws[self._step])

    def move_to(self, step: int) -> bool:
        """Sets the step of the drift that it is; returns whether loads are others than before."""
        if step == self._step:
            return False
        needed = {known for known, _ in self._window}
        self._draws = {known: draws for known, draws in self._draws.items() if known in needed}
        self._step, self._draws[step] = step, self._layers.at(step)
        self._reload()
        return True

    def count(self, tokens: int) -> None:
        """An iteration has processed so many tokens."""
        self._window.append((self._step, tokens))

    def balanced(self) -> list[Placement]:
        """[layers] placements by EPLB's rule for the load in the window."""
        loads = sum((self._expected(step) for step in sorted({step for step, _ in self._window})), start=np.zeros(1))
        return [place_balanced(layer, self._slots, self._ranks) for layer in loads]

    def moves(self, placements: Sequence[Placement]) -> list[list[Move]]:
        """[layers] weights that have to travel for these placements to take the place of the present ones."""
        tokens = max(tokens for _, tokens in self._window)
        old = self._placements or [self._first.placement(layer, tokens) for layer in range(self.layers)]
        return [moved_experts(*each) for each in zip(old, placements, strict=True)]

    def place(self, placements: Sequence[Placement]) -> None:
        """Experts lie there from now on."""
        self._placements = list(placements)
        self._reload()

    def _reload(self) -> None:
        self._profile = self._first.changed(self._draws[self._step], self._placements)

    def _expected(self, step: int) -> NDArray[np.float64]:
        """[layers, experts] load of the iterations in a step of the drift, as if each had their mean tokens."""
        counts = [tokens for known, tokens in self._window if known == step]
        mean = max(round(sum(counts) / len(counts)), 1)
        return len(counts) * np.array([draw.expected_load(mean) for draw in self._draws[step]])


def moved_experts(old: Placement, new: Placement) -> list[Move]:
    """Weights of one layer that travel: to each rank that gets an expert which it does not hold yet.

    Ranks that hold an expert send to equally many others each, in order, and the first of them to what is left over
    (vLLM 0.24, ``vllm/distributed/eplb/rebalance_execute.py``).
    """
    holders, getters = _ranks_of(old), _ranks_of(new)
    found: list[Move] = []
    for senders, wanted in zip(holders, getters, strict=True):
        receivers = [rank for rank in wanted if rank not in senders]
        each = len(receivers) // len(senders)
        for place, receiver in enumerate(receivers):
            shared = each * len(senders)
            found.append((senders[place // each if place < shared else place - shared], receiver))
    return found


def _ranks_of(placement: Placement) -> list[list[int]]:
    """[experts] ranks that hold each, rising."""
    ranks: list[list[int]] = [[] for _ in placement.replicas]
    for rank, slots in enumerate(placement.expert_of_slot.tolist()):
        for expert in dict.fromkeys(slots):
            ranks[expert].append(rank)
    return ranks
