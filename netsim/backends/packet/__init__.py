"""Backend `packet`: the RoCE model, packet by packet, on our own event engine."""

from __future__ import annotations

import netsim._core as _core
from netsim.backends.packet.backend import PacketBackend as _PacketBackend
from netsim.roce.config import RoceConfig, core_parameters
from netsim.routing import core_network
from netsim.topology import Topology

__all__ = ["PacketBackend"]


class PacketBackend(_PacketBackend):
    """See `netsim.backends.packet.backend`; instances are independent, and as many may live as memory allows."""

    def __init__(self, topology: Topology, config: RoceConfig | None = None) -> None:
        config = config or RoceConfig()
        super().__init__(
            _core.make_packet_simulation(core_network(topology), config.ecmp_seed, core_parameters(config, topology))
        )
