"""The RoCE model on ns-3, behind the contract of all backends."""

from __future__ import annotations

from netsim.ns3 import load_extension
from netsim.packet.backend import PacketBackend
from netsim.roce import RoceConfig, core_parameters
from netsim.routing import core_network
from netsim.topology import Topology


class Ns3Backend(PacketBackend):
    """See `netsim.packet.backend`; completion times are those of backend `packet` to the bit. One may live per process.

    Raises:
        BackendUnavailable: this build does not contain ns-3.
        BackendError: another ns-3 network is open in the process.
    """

    def __init__(self, topology: Topology, config: RoceConfig | None = None) -> None:
        config = config or RoceConfig()
        extension = load_extension()
        super().__init__(
            extension.make_ns3_simulation(core_network(topology), config.ecmp_seed, core_parameters(config, topology))
        )
