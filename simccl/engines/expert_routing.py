"""Expert parallelism: which tokens go to which experts, and what a dispatch or combine of them must deliver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.plan.postcondition import Contributions, PlanError, block_owner


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRouting:
    """The experts that each token of each rank is sent to; experts are divided evenly over the ranks in order.

    Raises:
        InputError: experts that the ranks do not divide, ids out of range, or an expert twice for one token.
    """

    chosen: tuple[NDArray[np.int64], ...]
    """Per rank [tokens, top k] expert of each token."""
    experts: int

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
        return cls(tuple(chosen), experts)

    @property
    def ranks(self) -> int:
        return len(self.chosen)

    @property
    def top_k(self) -> int:
        """Experts per token."""
        return int(self.chosen[0].shape[1])

    def rank_of_expert(self, expert: NDArray[np.int64]) -> NDArray[np.int64]:
        """[experts] rank that has each expert."""
        return expert // (self.experts // self.ranks)

    def needs(self, rank: int) -> NDArray[np.bool_]:
        """[tokens, ranks] whether an expert of each rank wants each token of this one."""
        found = np.zeros((len(self.chosen[rank]), self.ranks), dtype=np.bool_)
        np.put_along_axis(found, self.rank_of_expert(self.chosen[rank]), True, axis=1)
        return found

    def messages(self, rank: int) -> NDArray[np.int64]:
        """[experts] tokens of this rank that go to each expert."""
        return np.bincount(self.chosen[rank].ravel(), minlength=self.experts)


@dataclass(frozen=True, slots=True, eq=False)
class TokenPostcondition:
    """Every token once on each rank that wants it, or (combine) the sum of what these ranks made of it back home.

    Token t of a rank is the bytes t·b … (t+1)·b − 1 of its buffer.
    """

    needs: tuple[NDArray[np.bool_], ...]
    """Per rank [tokens, ranks] who wants each token."""
    token_bytes: int
    is_combine: bool

    def contributions(self, origin: int, begin: int, end: int) -> Contributions:
        """Contributions to bytes of one token."""
        token = begin // self.token_bytes
        if end > (token + 1) * self.token_bytes or token >= len(self.needs[origin]):
            raise PlanError(f"bytes {begin}…{end - 1} of rank {origin}: found across tokens, expected inside one")
        wanted = np.flatnonzero(self.needs[origin][token]).tolist()
        if self.is_combine:
            return Contributions({r: 1 << r for r in wanted}, {origin: sum(1 << r for r in wanted)})
        return Contributions({origin: 1 << origin}, dict.fromkeys(wanted, 1 << origin))

    def moved_bytes(self, origin: int) -> int:
        """Tokens that somebody else wants."""
        others = self.needs[origin].copy()
        others[:, origin] = False
        return int(others.any(axis=1).sum()) * self.token_bytes

    def origins(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """Owners of the tokens."""
        return found


@dataclass(frozen=True, slots=True, eq=False)
class SlotPostcondition:
    """One message per token and expert, in the order of experts; a combine sends them back."""

    bounds: NDArray[np.int64]
    """[ranks, experts + 1] first byte of the messages of each rank for each expert."""
    rank_of_expert: NDArray[np.int64]
    """[experts]"""
    is_combine: bool

    def contributions(self, origin: int, begin: int, end: int) -> Contributions:
        """Contributions to messages with one expert, on another rank."""
        other = int(self.rank_of_expert[block_owner(self.bounds[origin], begin, end)])
        if other == origin:
            raise PlanError(f"bytes {begin}…{end - 1} of rank {origin}: found messages to itself being sent")
        sender, receiver = (other, origin) if self.is_combine else (origin, other)
        return Contributions({sender: 1 << sender}, {receiver: 1 << sender})

    def moved_bytes(self, origin: int) -> int:
        """Messages to experts of other ranks."""
        return int(np.diff(self.bounds[origin])[self.rank_of_expert != origin].sum())

    def origins(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ranks that have the tokens, in both directions."""
        return found
