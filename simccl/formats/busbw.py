"""Times from measured bus bandwidths, as SimAI's analytical mode reads them (``busbw.yaml``).

The first line is a name. Then come sections ``TP:``, ``DP:``, ``EP:`` with lines ``allreduce,: x``, ``allgather,: x``,
``reducescatter,: x``, ``alltoall,: x`` in GB/s or ``null`` (the comma belongs to the key), and ``PP:`` with
``busbw: x``. A collective takes size / busbw · 2(n−1)/n for all_reduce and (n−1)/n for the others, send_recv size /
busbw: no latency, so small sizes come out too fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from boundary.numbers import real_number
from boundary.quoting import quoted
from boundary.text_files import read_text
from simccl.collective import Choice, Collective


class Group(Choice):
    """Group of ranks by what they have in common."""

    TP = "tp"
    DP = "dp"
    EP = "ep"
    DP_EP = "dp_ep"
    """Replicas of the same experts."""
    PP = "pp"


_KEYS = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "busbw": Collective.SEND_RECV,
}


@dataclass(frozen=True, slots=True)
class BusBandwidths:
    """Bus bandwidth in GB/s by group and collective."""

    name: str
    gbytes_per_s: Mapping[tuple[Group, Collective], float]

    def times_us(
        self, group: Group, op: Collective, size_bytes: NDArray[np.int64], ranks: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """[collectives] time of each.

        Raises:
            InputError: a collective for which the file has no bandwidth in this group.
        """
        section = Group.DP if group is Group.DP_EP else group
        if (section, op) not in self.gbytes_per_s:
            raise InputError(f"busbw: found none for {op} in {section.upper()} of {self.name!r}")
        share = np.ones(len(ranks)) if op is Collective.SEND_RECV else (ranks - 1) / ranks
        rounds = 2 if op is Collective.ALL_REDUCE else 1
        times: NDArray[np.float64] = rounds * share * size_bytes / (1e3 * self.gbytes_per_s[section, op])
        return times


def read_busbw(source: Path) -> BusBandwidths:
    """Reads a busbw.yaml.

    Raises:
        InputError: naming the file and the line.
    """
    lines = read_text(source, "a busbw.yaml").splitlines()
    found: dict[tuple[Group, Collective], float] = {}
    section: Group | None = None
    for number, line in enumerate(lines[1:], 2):
        key, colon, value = (part.strip() for part in line.partition(":"))
        if not key or key.startswith("#"):
            continue
        if colon and not value:
            section = _section(source, number, key)
            continue
        op = _KEYS.get(key.rstrip(","))
        if op is None or section is None:
            raise InputError(
                f"{source} line {number}: found {quoted(line.strip())}, expected a section such as TP:, or a rate"
            )
        if value != "null":
            found[section, op] = _rate(source, number, value)
    if not found:
        raise InputError(f"{source}: found no bandwidth, expected sections TP:, DP:, EP:, PP:")
    return BusBandwidths(lines[0].strip(), found)


def _section(source: Path, number: int, key: str) -> Group:
    try:
        return Group(key.lower())
    except ValueError:
        raise InputError(f"{source} line {number}: found section {quoted(key)}, expected TP, DP, EP or PP") from None


def _rate(source: Path, number: int, text: str) -> float:
    return real_number(text, f"{source} line {number}", "GB/s, or null:", 1e-6, 1e9)
