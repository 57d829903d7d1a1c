"""Words of this package: collectives, algorithms, protocols, and what a protocol puts on the wire."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

MAX_BYTES = 2**62 - 1
"""Sizes are signed 64-bit integers, with a factor of two to spare for the flags of LL."""
MAX_PLAN_BYTES = 2**50
"""1 PiB: the flows of larger collectives would run to the end of the network's clock."""
MAX_RANKS = 1_000_000
"""Of a collective that is priced."""
MAX_PLAN_RANKS = 8192
"""Of one that is planned; rings and trees are laid over every rank."""
MAX_PLAN_FLOWS = 2**23
"""All_reduce in one ring of 2,048 ranks, all_to_all of 2,896: some gigabytes while it is made."""
MAX_NVLINK_RANKS = 144
"""Of the kernels that read their peers' memory: the GPUs of the largest NVLink domain announced, NVL144."""


class Choice(StrEnum):
    """One of some names, which a user may write."""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Raises: InputError, with the field and all names."""
        try:
            return cls(name)
        except ValueError:
            raise InputError(f"{cls.field()}: found {name!r}, expected one of {', '.join(cls)}") from None

    @classmethod
    def field(cls) -> str:
        """The field or option that holds such a name."""
        return cls.__name__.lower()


class Collective(Choice):
    """A collective operation. Sizes follow nccl-tests 2.19: see each member."""

    ALL_REDUCE = "all_reduce"
    """Size: the buffer that every rank contributes and receives."""
    ALL_GATHER = "all_gather"
    """Size: the full gathered buffer; each rank contributes about size/ranks."""
    REDUCE_SCATTER = "reduce_scatter"
    """Size: the full buffer that every rank contributes; each rank keeps about size/ranks."""
    ALL_TO_ALL = "all_to_all"
    """Size: what one rank sends in total, its own part included."""
    BROADCAST = "broadcast"
    """Size: the buffer that the root, rank 0 unless said, sends to every rank."""
    REDUCE = "reduce"
    """Size: the buffer that every rank contributes and the root, rank 0 unless said, receives."""
    SEND_RECV = "send_recv"
    """Size: what each rank sends to the next rank (the last one to the first), as ``sendrecv_perf`` does."""

    @classmethod
    def field(cls) -> str:
        return "op"

    @property
    def has_ring(self) -> bool:
        """True where NCCL runs a ring and has a cost model for it; the others are grouped point-to-point."""
        return self not in (Collective.ALL_TO_ALL, Collective.SEND_RECV)


class Algorithm(str):
    """Name of a way to carry out a collective: NCCL's algorithms, its point-to-point rounds, and kernels of engines.

    The set is open: whatever `simccl.algorithms` registers has a name of its own, ``Algorithm("mine")``.
    """

    __slots__ = ()

    TREE: ClassVar[Algorithm]
    """Double binary trees over nodes, chains inside them."""
    RING: ClassVar[Algorithm]
    COLLNET_DIRECT: ClassVar[Algorithm]
    COLLNET_CHAIN: ClassVar[Algorithm]
    NVLS: ClassVar[Algorithm]
    """The NVSwitch reduces and multicasts."""
    NVLS_TREE: ClassVar[Algorithm]
    PAT: ClassVar[Algorithm]
    """Parallel aggregated trees, one rank per node."""
    PAIRWISE: ClassVar[Algorithm]
    """Grouped sends and receives in NCCL's rounds."""
    ONE_SHOT: ClassVar[Algorithm]
    """An inference engine's all_reduce in which every rank reads all buffers."""
    TWO_SHOT: ClassVar[Algorithm]
    """An inference engine's all_reduce by reduce-scatter and all-gather with direct reads."""
    MULTIMEM: ClassVar[Algorithm]
    """An inference engine's all_reduce on symmetric memory, reduced in the NVSwitch."""
    HIERARCHICAL: ClassVar[Algorithm]
    """Expert dispatch and combine with one copy of a token per node."""
    LOW_LATENCY: ClassVar[Algorithm]
    """Expert dispatch and combine with one message per token and expert."""
    NONE: ClassVar[Algorithm]
    """Nothing crosses a link: one rank, or zero bytes."""


for _word in get_type_hints(Algorithm):
    setattr(Algorithm, _word, Algorithm(_word.lower()))


class Protocol(Choice):
    """NCCL's transport protocols; a line carries data and flags."""

    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"


PROTOCOLS = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
"""The order in which NCCL enumerates them; cost arrays use it."""

# NCCL 2.30.7, device primitives: LL stores 8 data and 8 flag bytes per 16-byte line, LL128 120 data bytes per
# 128-byte line. The last line is padded.
_LINE_BYTES = {Protocol.LL: (8, 16), Protocol.LL128: (120, 128)}


def wire_bytes(payload_bytes: NDArray[np.int64], protocol: Protocol) -> NDArray[np.int64]:
    """[flows] bytes on the link for so many user bytes: LL doubles them, LL128 adds 1/15, Simple nothing."""
    if protocol is Protocol.SIMPLE:
        return payload_bytes.copy()
    data_bytes, line_bytes = _LINE_BYTES[protocol]
    return -(-payload_bytes // data_bytes) * line_bytes


def wire_share(protocol: Protocol) -> float:
    """Bytes on the link per user byte, padding apart: 2 for LL, 16/15 for LL128, 1 for Simple."""
    data_bytes, line_bytes = _LINE_BYTES.get(protocol, (1, 1))
    return line_bytes / data_bytes


def check_size(size_bytes: int, most: int) -> None:
    """Refuses sizes that are negative or beyond ``most``.

    Raises:
        InputError: naming both.
    """
    if not 0 <= size_bytes <= most:
        raise InputError(f"bytes: found {size_bytes}, expected 0 to {most}")


def check_plan_ranks(ranks: int) -> None:
    """Refuses more than `MAX_PLAN_RANKS`.

    Raises:
        InputError: naming both numbers.
    """
    if ranks > MAX_PLAN_RANKS:
        raise InputError(f"ranks: found {ranks}, expected at most {MAX_PLAN_RANKS} in a plan")


def check_flows(count: int, what: str) -> None:
    """Refuses a plan of more than `MAX_PLAN_FLOWS`, before anything of that size is made.

    Raises:
        InputError: naming what would be planned, and both numbers.
    """
    if count > MAX_PLAN_FLOWS:
        raise InputError(f"{what}: found {count} flows, expected at most {MAX_PLAN_FLOWS}: fewer ranks or chunks")


def shares(total: int, parts: int) -> NDArray[np.int64]:
    """[parts + 1] offsets that cut ``total`` bytes into contiguous parts that differ by at most one byte.

    No byte is lost for any size; with fewer bytes than parts the surplus parts are empty.
    """
    whole, rest = divmod(total, parts)  # the product of place and total would not fit 64 bits
    place = np.arange(parts + 1, dtype=np.int64)
    return place * whole - (-place * rest // parts)
