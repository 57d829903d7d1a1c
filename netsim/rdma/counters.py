"""Counters of the system that show resent data: of its RDMA devices, and of TCP in its namespace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_RDMA: Final = ("duplicate_request", "completer_retry_err", "out_of_seq_request", "rcvd_rnr_err", "packet_seq_err")
"""Names of rxe and mlx5 (``/sys/class/infiniband/*/ports/*/hw_counters``) that count resent requests."""


def read_counters() -> dict[str, int]:
    """Totals up to now, by name; those of all RDMA devices, and TCP's."""
    found = {}
    for path in sorted(Path("/sys/class/infiniband").glob("*/ports/*/hw_counters/*")):
        if path.name in _RDMA:
            found[f"{path.parts[4]} {path.name}"] = int(path.read_text())
    snmp = Path("/proc/self/net/snmp")
    rows = [line.split() for line in snmp.read_text().splitlines() if line.startswith("Tcp:")] if snmp.exists() else []
    if len(rows) == 2:
        found["tcp RetransSegs"] = int(dict(zip(*rows, strict=True))["RetransSegs"])
    return found


def retransmits(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How much the counters have grown together."""
    return sum(after[name] - before.get(name, 0) for name in after)
