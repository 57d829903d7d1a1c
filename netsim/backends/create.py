"""Backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netsim.backends.contract import BACKENDS, NetworkBackend, capabilities_of
from netsim.errors import BackendError, BackendUnavailable
from netsim.topology import Topology

if TYPE_CHECKING:
    from netsim.backends.calibration import MessageTimes
    from netsim.roce.config import RoceConfig
    from netsim.roce.wire import WireFormat


def create_backend(
    name: str,
    topology: Topology,
    roce: RoceConfig | None = None,
    wire: WireFormat | None = None,
    calibration: MessageTimes | None = None,
) -> NetworkBackend:
    """A new backend of the given name over the topology.

    ``roce`` is for those that simulate packets. ``wire`` is for `fluid` and `analytical`: what packets add to flows,
    nothing where missing; ``calibration`` too: what messages were measured to take between real hosts.

    Raises:
        BackendUnavailable: this build does not contain the backend.
        BackendError: no backend has that name, or ``wire`` or ``calibration`` is given to one that has no use for it.
        InputError: the topology is too large for the switches that ``roce`` describes.
    """
    if wire is not None and name not in ("analytical", "fluid"):
        raise BackendError(f"wire: found one for backend {name}, expected none (packets are described by roce)")
    if calibration is not None and not capabilities_of(name).is_calibrated:
        raise BackendError(f"calibration: found one for backend {name}, expected none (analytical and fluid use it)")
    match name:
        case "analytical":
            from netsim.backends.analytical import AnalyticalBackend

            return AnalyticalBackend(topology, wire, calibration)
        case "fluid":
            from netsim.backends.fluid import FluidBackend

            return FluidBackend(topology, wire, calibration=calibration)
        case "packet":
            from netsim.backends.packet import PacketBackend
            from netsim.backends.packet.memo import remembering

            return remembering(PacketBackend(topology, roce), roce)
        case "ns3":
            from netsim.backends.ns3 import Ns3Backend
            from netsim.backends.packet.memo import remembering

            return remembering(Ns3Backend(topology, roce), roce)
        case "rdma":
            raise BackendUnavailable(
                f"backend {name}: needs hosts to send from, as `netsim run --backend rdma --hosts FILE` or "
                "netsim.backends.rdma.Session have them"
            )
        case _:
            raise BackendError(f"backend: found {name!r}, expected one of {', '.join(BACKENDS)}")
