"""Expert parallelism: which tokens go to which experts, and what a dispatch or combine of them must deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.engines.expert_choice import ExpertChoice
from simccl.plan.postcondition import Contributions, PlanError, block_owner


class Wanted(NamedTuple):
    """Parts of one rank's tokens, each of which the same ranks want as a whole."""

    by_rank: NDArray[np.bool_]
    """[parts, ranks] whether an expert of each rank wants each part."""
    bounds: NDArray[np.int64]
    """[parts + 1] first byte of each part."""


class Slots(NamedTuple):
    """Messages of every rank to places at other ranks, in the order of places."""

    bounds: NDArray[np.int64]
    """[ranks, slots + 1] first byte of the messages of each rank for each place."""
    rank_of_slot: NDArray[np.int64]
    """[slots] rank that has the place."""


class TokenRouting(Protocol):
    """Tokens of every rank, and the experts that they go to."""

    @property
    def ranks(self) -> int: ...

    @property
    def choice(self) -> ExpertChoice:
        """How they choose, on average."""
        ...

    @property
    def most_tokens(self) -> float:
        """Of one rank."""
        ...

    def wanted(self, rank: int, token_bytes: int) -> Wanted:
        """Tokens of a rank, once each."""
        ...

    def slots(self, message_bytes: int) -> Slots:
        """Messages, one per token and expert."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRouting:
    """The experts that each token of each rank is sent to; experts are divided evenly over the ranks in order.

    Raises:
        InputError: experts that the ranks do not divide, ids out of range, or an expert twice for one token.
    """

    chosen: tuple[NDArray[np.int64], ...]
    """Per rank [tokens, top k] expert of each token."""
    experts: int
    groups: int = 1
    """Of experts, equal ones, of which a token may have chosen from ``most_groups`` alone."""
    most_groups: int = 1

    def __post_init__(self) -> None:
        if not self.chosen or self.experts % len(self.chosen):
            raise InputError(f"experts: found {self.experts}, expected a multiple of the {len(self.chosen)} ranks")
        for rank, ids in enumerate(self.chosen):
            if ids.ndim != 2 or ids.shape[1] != self.chosen[0].shape[1]:
                raise InputError(
                    f"chosen[{rank}]: found shape {ids.shape}, expected [tokens, {self.chosen[0].shape[-1]}]"
                )
            if ids.size and not 0 <= ids.min() <= ids.max() < self.experts:
                raise InputError(f"chosen[{rank}]: found {ids.min()}…{ids.max()}, expected 0…{self.experts - 1}")
            if ids.size and (np.diff(np.sort(ids, axis=1), axis=1) == 0).any():
                raise InputError(f"chosen[{rank}]: found an expert twice for one token, expected each once")

    @classmethod
    def sampled(
        cls, rng: np.random.Generator, *, ranks: int, tokens: int, experts: int, top_k: int, groups: int = 1,
        most_groups: int | None = None,
    ) -> ExpertRouting:  # fmt: skip
        """Every token to ``top_k`` experts, all sets equally likely; within ``most_groups`` of ``groups`` equal groups.

        With one group per node that is node-limited routing: DeepSeek-V3 (arXiv 2412.19437, section 2.1.2) takes the
        experts of a token from at most four nodes.
        """
        per_group = experts // groups
        within = groups if most_groups is None else min(most_groups, groups)
        if experts % groups or top_k > within * per_group:
            raise InputError(f"top_k: found {top_k}, expected at most {within} groups of {per_group} experts")
        chosen = []
        for _ in range(ranks):
            allowed = np.argsort(np.argsort(rng.random((tokens, groups)), axis=1), axis=1) < within
            score = np.where(np.repeat(allowed, per_group, axis=1), rng.random((tokens, experts)), -1.0)
            chosen.append(np.argsort(-score, axis=1)[:, :top_k].astype(np.int64))
        return cls(tuple(chosen), experts, groups, within)

    @property
    def ranks(self) -> int:
        return len(self.chosen)

    @property
    def top_k(self) -> int:
        """Experts per token."""
        return int(self.chosen[0].shape[1])

    @property
    def choice(self) -> ExpertChoice:
        """Even choice of as many experts."""
        return ExpertChoice(self.experts, self.top_k, self.groups, self.most_groups)

    @property
    def most_tokens(self) -> float:
        return max(len(ids) for ids in self.chosen)

    def rank_of_expert(self, expert: NDArray[np.int64]) -> NDArray[np.int64]:
        """[experts] rank that has each expert."""
        return expert // (self.experts // self.ranks)

    def needs(self, rank: int) -> NDArray[np.bool_]:
        """[tokens, ranks] whether an expert of each rank wants each token of this one."""
        found = np.zeros((len(self.chosen[rank]), self.ranks), dtype=np.bool_)
        np.put_along_axis(found, self.rank_of_expert(self.chosen[rank]), True, axis=1)
        return found

    def wanted(self, rank: int, token_bytes: int) -> Wanted:
        """Every token is a part."""
        return Wanted(self.needs(rank), np.arange(len(self.chosen[rank]) + 1, dtype=np.int64) * token_bytes)

    def slots(self, message_bytes: int) -> Slots:
        """Every expert is a place."""
        counts = np.array([np.bincount(ids.ravel(), minlength=self.experts) for ids in self.chosen])
        bounds = np.pad(np.cumsum(counts, axis=1), ((0, 0), (1, 0))) * message_bytes
        return Slots(bounds, self.rank_of_expert(np.arange(self.experts)))


@dataclass(frozen=True, slots=True, eq=False)
class TokenPostcondition:
    """Every token once on each rank that wants it, or (combine) the sum of what these ranks made of it back home."""

    wanted: tuple[Wanted, ...]
    """Per rank."""
    is_combine: bool

    def contributions(self, origin: int, begin: int, end: int) -> Contributions:
        """Contributions to bytes of one part."""
        by_rank, bounds = self.wanted[origin]
        ranks = np.flatnonzero(by_rank[block_owner(bounds, begin, end)]).tolist()
        if self.is_combine:
            return Contributions({r: 1 << r for r in ranks}, {origin: sum(1 << r for r in ranks)})
        return Contributions({origin: 1 << origin}, dict.fromkeys(ranks, 1 << origin))

    def moved_bytes(self, origin: int) -> int:
        """Tokens that somebody else wants."""
        by_rank, bounds = self.wanted[origin]
        others = by_rank.copy()
        others[:, origin] = False
        return int(np.diff(bounds)[others.any(axis=1)].sum())

    def origins(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """Owners of the tokens."""
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SlotPostcondition:
    """Messages to places, in their order; a combine sends them back."""

    slots: Slots
    is_combine: bool

    def contributions(self, origin: int, begin: int, end: int) -> Contributions:
        """Contributions to messages with one place, on another rank."""
        other = int(self.slots.rank_of_slot[block_owner(self.slots.bounds[origin], begin, end)])
        if other == origin:
            raise PlanError(f"bytes {begin}…{end - 1} of rank {origin}: found messages to itself being sent")
        sender, receiver = (other, origin) if self.is_combine else (origin, other)
        return Contributions({sender: 1 << sender}, {receiver: 1 << sender})

    def moved_bytes(self, origin: int) -> int:
        """Messages to places on other ranks."""
        return int(np.diff(self.slots.bounds[origin])[self.slots.rank_of_slot != origin].sum())

    def origins(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ranks that have the tokens, in both directions."""
        return found
