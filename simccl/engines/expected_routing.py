"""Expected routing: as many tokens of every rank for each rank and node as their choice of experts gives on average."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simccl.communicator.communicator import Communicator
from simccl.engines.expert_choice import ExpertChoice
from simccl.engines.expert_routing import Slots, Wanted

Reached = tuple[tuple[int, ...], float, NDArray[np.float64]]
"""Ranks of a node, the share of tokens that go there, and to each of them."""


def parts_wanted(size_bytes: int, reached: Iterable[Reached], ranks: int) -> Wanted:
    """Parts of so many bytes of tokens: a node wants the first ones, and its ranks arcs of these in turn."""
    arcs = []
    for members, of_node, of_ranks in reached:
        begin = 0.0
        for member, share in zip(members, of_ranks.tolist(), strict=True):
            end = begin + min(share, of_node)
            pieces = ((begin, min(end, of_node)), (0.0, end - of_node))
            arcs += [(member, *piece) for piece in pieces if piece[0] < piece[1]]
            begin = end % of_node if of_node else 0.0
    ends = np.rint(np.array([arc[1:] for arc in arcs]).reshape(-1, 2) * size_bytes).astype(np.int64)
    bounds = np.unique(np.append(ends, (0, size_bytes)))
    by_rank = np.zeros((len(bounds) - 1, ranks), dtype=np.bool_)
    for (member, *_), (first, last) in zip(arcs, np.searchsorted(bounds, ends).tolist(), strict=True):
        by_rank[first:last, member] = True
    return Wanted(by_rank, bounds)


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedRouting:
    """Equally many tokens on all ranks of a communicator, split by expectation rather than one by one.

    What a node wants of a rank is the first part of its tokens; the ranks of the node want arcs of it, one after
    another around it, which leave nothing out. Which tokens they are makes no difference to links.
    """

    tokens: float
    """Of one rank; a fraction for sizes between two."""
    choice: ExpertChoice
    communicator: Communicator

    @property
    def ranks(self) -> int:
        return self.communicator.size

    @property
    def most_tokens(self) -> float:
        return self.tokens

    def wanted(self, rank: int, token_bytes: int) -> Wanted:  # noqa: ARG002
        """The same parts of every rank's tokens."""
        return parts_wanted(round(self.tokens * token_bytes), self._reached(), self.ranks)

    def slots(self, message_bytes: int) -> Slots:
        """A place per expert of a rank: DeepEP has a queue pair for each, which takes a way of its own."""
        per_rank = max(1, self.choice.experts // self.ranks)
        pairs = np.repeat(self.choice.pairs(self.ranks) / per_rank, per_rank)
        bounds = np.pad(np.cumsum(np.rint(self.tokens * message_bytes * pairs).astype(np.int64)), (1, 0))
        return Slots(np.tile(bounds, (self.ranks, 1)), np.repeat(np.arange(self.ranks), per_rank))

    def _reached(self) -> list[Reached]:
        nodes = self.communicator.ranks_of_node
        on_node = np.zeros((len(nodes), self.ranks), dtype=np.bool_)
        for node, members in enumerate(nodes):
            on_node[node, list(members)] = True
        of_nodes, of_ranks = self.choice.reached(on_node), self.choice.reached(np.eye(self.ranks, dtype=np.bool_))
        return [(ranks, float(share), of_ranks[list(ranks)]) for ranks, share in zip(nodes, of_nodes, strict=True)]
