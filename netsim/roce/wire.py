"""What packets add to the bytes of a flow: headers, acknowledgements, the packet as the unit of forwarding."""

from __future__ import annotations

from dataclasses import dataclass

import netsim._core as _core
from boundary.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFormat:
    """Packets of RoCE v2 as the ns-3 models of HPCC and SimAI put them on the wire.

    In `fluid` and `analytical`, flows that cross a NIC or fabric link then load it with their packets' headers, load
    the way of their ACKs back in proportion to their rate, and arrive after the first packet has been stored and
    forwarded at every hop. Flows that stay on NVLink are their bytes.

    Raises:
        InputError: a size below 0, no payload, no packet per ACK, or more than 2³¹ − 1 bytes per ACK.
    """

    mtu_bytes: int = 4096
    """Payload of a full packet; 4096 is the largest of InfiniBand and RoCE."""
    header_bytes: int = 52
    """Of a data packet: PPP 14, IPv4 20, UDP 8, sequence 8, priority group 2 (qbb-header.h of both models)."""
    ack_bytes: int = 60
    """An ACK, padded to the smallest Ethernet payload and header; 0 leaves ACKs out."""
    packets_per_ack: int = 1

    def __post_init__(self) -> None:
        least = {"mtu_bytes": 1, "header_bytes": 0, "ack_bytes": 0, "packets_per_ack": 1}
        for name, smallest in least.items():
            found = getattr(self, name)
            if not smallest <= found < 2**31:
                raise InputError(f"WireFormat.{name}: found {found}, expected {smallest} to 2³¹ − 1")
        per_ack = self.packets_per_ack * (self.mtu_bytes + self.header_bytes)
        if per_ack >= 2**31:
            raise InputError(f"WireFormat.packets_per_ack: found {per_ack} bytes per ACK, expected less than 2³¹")

    def to_core(self) -> _core.WireFormat:
        """As the C++ core takes it."""
        return _core.WireFormat(self.mtu_bytes, self.header_bytes, self.ack_bytes, self.packets_per_ack)
