"""Counters of the system that show resent data: of its RDMA devices, and of TCP in its namespace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DEVICES: Final = Path("/sys/class/infiniband")
_RDMA: Final = (
    *("duplicate_request", "out_of_seq_request", "rcvd_seq_err", "rcvd_rnr_err", "completer_retry_err"),
    *("out_of_sequence", "packet_seq_err", "rnr_nak_retry_err", "local_ack_timeout_err", "implied_nak_seq_err"),
)
"""Of ``DEVICE/ports/PORT/hw_counters`` those that resent requests raise: of rxe, and what mlx5 adds."""


def read_counters(device: str = "") -> dict[str, int]:
    """Totals up to now, by name.

    Args:
        device: an RDMA device, ``NAME:PORT``, through which all flows go; where empty, all RDMA devices and TCP count.
    """
    found = {}
    name, _, port = device.partition(":")
    for path in sorted(_DEVICES.glob(f"{name or '*'}/ports/{port or '*'}/hw_counters/*")):
        if path.name in _RDMA:
            found[f"{path.parts[-5]}:{path.parts[-3]} {path.name}"] = int(path.read_text())
    if not device:
        found.update(_tcp_counters())
    return found


def _tcp_counters() -> dict[str, int]:
    snmp = Path("/proc/self/net/snmp")
    rows = [line.split() for line in snmp.read_text().splitlines() if line.startswith("Tcp:")] if snmp.exists() else []
    return {"tcp RetransSegs": int(dict(zip(*rows, strict=True))["RetransSegs"])} if len(rows) == 2 else {}


def retransmits(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """How much the counters have grown together."""
    return sum(after[name] - before.get(name, 0) for name in after)
