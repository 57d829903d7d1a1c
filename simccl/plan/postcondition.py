"""Postconditions of plans: which rank holds which bytes at the beginning, and which must hold them at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from boundary.errors import Failure
from simccl.collective import Collective, shares


class PlanError(Failure, AssertionError):
    """A plan that is not a correct execution of its collective: data is missing, counted twice or unordered."""


class Contributions(NamedTuple):
    """Contributions to one byte range, as bit masks of the ranks that made them."""

    initial: dict[int, int]
    """Rank → mask before the collective; ranks that hold nothing are left out."""
    final: dict[int, int]
    """Rank → mask after the collective; ranks that need not hold anything are left out."""


class Postcondition(Protocol):
    """Data that a plan must deliver, range by range of the buffer of each origin."""

    def contributions(self, origin: int, begin: int, end: int) -> Contributions:
        """Contributions to a range of bytes that every flow carries in whole or not at all.

        Raises:
            PlanError: bytes outside the collective, or parts of which have different receivers.
        """
        ...

    def moved_bytes(self, origin: int) -> int:
        """Number of distinct bytes of an origin that flows must carry."""
        ...

    def origins(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """[flows] origin under which the bytes of each flow are followed, from the origins ``found`` in the plan."""
        ...


@dataclass(frozen=True, slots=True)
class BufferPostcondition:
    """A collective on one buffer that every rank has, or of which every rank has a block."""

    op: Collective
    size_bytes: int
    ranks: int
    root: int
    keeps_contributions_apart: bool = False
    """Every rank collects the contributions instead of one sum (one-shot all_reduce)."""

    def contributions(self, origin: int, begin: int, end: int) -> Contributions:
        """Contributions to a sum, or to one rank's bytes."""
        everyone = (1 << self.ranks) - 1
        if end > self.size_bytes:
            raise PlanError(f"{self.op}: found bytes {begin}…{end - 1}, expected none beyond {self.size_bytes - 1}")
        each = {r: 1 << r for r in range(self.ranks)}
        match self.op:
            case Collective.ALL_REDUCE if self.keeps_contributions_apart:
                return Contributions({origin: 1 << origin}, dict.fromkeys(each, 1 << origin))
            case Collective.ALL_REDUCE:
                return Contributions(each, dict.fromkeys(each, everyone))
            case Collective.REDUCE:
                return Contributions(each, {self.root: everyone})
            case Collective.BROADCAST:
                return Contributions({self.root: 1 << self.root}, dict.fromkeys(each, 1 << self.root))
            case _:
                owner = block_owner(shares(self.size_bytes, self.ranks), begin, end)
                if self.op is Collective.REDUCE_SCATTER:
                    return Contributions(each, {owner: everyone})
                return Contributions({owner: 1 << owner}, dict.fromkeys(each, 1 << owner))

    def moved_bytes(self, origin: int) -> int:  # noqa: ARG002
        """Bytes of the whole buffer."""
        return self.size_bytes

    def origins(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """One common origin, as blocks and sums are ranges of one buffer; the ranks where contributions stay apart."""
        return found if self.keeps_contributions_apart else np.full_like(found, -1)


@dataclass(frozen=True, slots=True, eq=False)
class MessagePostcondition:
    """Messages between ranks; the send buffer of a rank holds them in the order of receivers."""

    matrix_bytes: NDArray[np.int64]
    """[ranks, ranks] bytes from each rank to each."""

    def contributions(self, origin: int, begin: int, end: int) -> Contributions:
        """Contributions to one receiver, which is another rank."""
        receiver = block_owner(np.concatenate(([0], np.cumsum(self.matrix_bytes[origin]))), begin, end)
        if receiver == origin:
            raise PlanError(f"bytes {begin}…{end - 1} of rank {origin}: found its own part being sent")
        return Contributions({origin: 1 << origin}, {receiver: 1 << origin})

    def moved_bytes(self, origin: int) -> int:
        """Bytes of all messages to other ranks."""
        return int(self.matrix_bytes[origin].sum() - self.matrix_bytes[origin, origin])

    def origins(self, found: NDArray[np.int32]) -> NDArray[np.int32]:
        """[flows] the senders, as the plan has them."""
        return found


def block_owner(bounds: NDArray[np.int64], begin: int, end: int) -> int:
    """The block that holds the range.

    Raises:
        PlanError: the range is outside all blocks, or spans several.
    """
    block = int(np.searchsorted(bounds, begin, side="right")) - 1
    if block < 0 or block >= len(bounds) - 1 or end > bounds[block + 1]:
        raise PlanError(f"bytes {begin}…{end - 1}: found across blocks {bounds.tolist()}, expected inside one")
    return block
