"""The RoCE model on ns-3, behind the contract of all backends, and what ns-3 offers to look at it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from boundary.errors import InputError
from netsim.backends.ns3.extension import load_extension
from netsim.backends.packet.backend import PacketBackend
from netsim.errors import BackendError
from netsim.roce.config import RoceConfig, core_parameters
from netsim.routing import core_network
from netsim.topology import Topology

if TYPE_CHECKING:
    from netsim import _ns3

WHOLE_FRAME_BYTES: Final = 65535
"""The longest that IPv4 can describe."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A trace source of an ns-3 object has fired."""

    at_ps: int
    path: str
    values: tuple[int, ...]
    """Bytes of a frame, or a priority, or the handle of a graph and a flow in it."""


class Ns3Backend(PacketBackend):
    """See `netsim.backends.packet.backend`; results are those of backend `packet` to the bit. One may live per process.

    Nodes are ``ns3::RoceNode``, ports ``ns3::RoceNetDevice``, cables ``ns3::RoceChannel``; attributes and trace sources
    are found under paths of ns-3's ``Config``, such as ``/NodeList/*/DeviceList/*/$ns3::RoceNetDevice/DataRate``. They
    show the model and do not set it: that is what `RoceConfig` is for.

    Raises:
        BackendUnavailable: this build does not contain ns-3.
        BackendError: another ns-3 network is open in the process.
        InputError: ``skip_tolerance`` is not 0. The clock of ns-3 would stand still while time is skipped, and what is
            traced or captured would have wrong times.
    """

    def __init__(self, topology: Topology, config: RoceConfig | None = None) -> None:
        config = config or RoceConfig()
        if config.skip_tolerance > 0:
            raise InputError(
                f"skip_tolerance: found {config.skip_tolerance:g} with backend ns3, expected 0, as ns-3 shows every "
                "packet; backend packet can skip"
            )
        parameters = core_parameters(config, topology)
        self._ns3: _ns3.Ns3Simulation | None = load_extension().Ns3Simulation(
            core_network(topology), config.ecmp_seed, parameters, topology.node_name
        )
        super().__init__(self._ns3)

    def pcap(
        self, folder: Path | str, links: Iterable[int] | None = None, *, snap_bytes: int = WHOLE_FRAME_BYTES
    ) -> None:
        """Captures from now on what ports send and receive, in files ``<node>-<port>.pcap`` with nanoseconds.

        Frames are those of real RoCEv2 and PFC, whatever the model charges for headers; payloads are zeros. Node and
        port are numbers: that of the node in the topology, and that of the port among the node's links. Files are
        complete when the backend is closed; those that exist are replaced.

        Args:
            folder: made where it does not exist.
            links: the ports that send by them; all but NVLink, which has no such frames.
            snap_bytes: kept of each frame. Headers take 86 at most, but Wireshark calls RoCEv2 that is cut malformed.

        Raises:
            BackendError: an unknown link or one of NVLink, a port that is captured already, or a file that cannot be
                written.
        """
        simulation = self._opened
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BackendError(f"pcap: cannot make folder {folder} ({error.strerror})") from error
        simulation.capture(str(folder), None if links is None else [int(link) for link in links], snap_bytes)

    def attributes(self, path: str) -> dict[str, str]:
        """The attribute at the end of a path of every object that it matches, by full path, as ns-3 writes it.

        Raises:
            BackendError: no object matches, or the attribute does not exist.
        """
        return dict(self._opened.attributes(path))

    def trace(self, path: str) -> None:
        """Keeps from now on what a trace source says, of every object that the path matches.

        Raises:
            BackendError: no object matches, or it has no such trace source.
        """
        self._opened.trace(path)

    def traced(self) -> list[TraceRow]:
        """What has been traced, in order."""
        return [TraceRow(*row) for row in self._opened.traced()]

    @property
    def simulator_now_ps(self) -> int:
        """The clock of ns-3 (``Simulator::Now``), which is that of the backend."""
        return self._opened.simulator_now_ps

    def close(self) -> None:
        """Frees the simulation, so that another may be opened in the process; closing twice does nothing."""
        self._ns3 = None
        super().close()

    @property
    def _opened(self) -> _ns3.Ns3Simulation:
        self.check_open()
        assert self._ns3 is not None
        return self._ns3
