"""Backend `fluid`: max-min fair sharing over the real paths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import netsim._core as _core
from netsim.backends.calibration import MessageTimes
from netsim.backends.core import FlowBackend
from netsim.roce.wire import WireFormat
from netsim.topology import Topology

__all__ = ["FluidBackend"]


class FluidBackend(FlowBackend):
    """Flows share links max-min fairly; fulfils `NetworkBackend` and `SharesCapacity`.

    At every instant at which flows start or end, rates are those of progressive filling on the ECMP paths, rounded
    down to 1/5040 bit/s. Assumes that congestion control is fair, immediate and wastes nothing: queues, PFC, ECN
    transients and losses are ignored, so a flow among many competitors is served too evenly.

    ``wire`` adds headers, ACKs and store-and-forward (see `WireFormat`). Flows are then fair in payload, `link_stats`
    and `link_rates_bps` count what is on the wire, ACKs included, and the ACKs of a flow load the links of their own
    ECMP path back, evenly while it drains. Without it, flows are their bytes.

    ``rate_tolerance`` trades accuracy for speed where very many flows share links: a link keeps the fair share of its
    flows while the right one differs by no more than this fraction. No link then carries more than 1 + tolerance of its
    capacity, and the share of every link is within the tolerance of the one that follows from all others. 0 is exact.

    With a ``calibration`` flows alone take what was measured between their hosts, and share the topology's links.

    Raises:
        BackendError: a ``rate_tolerance`` outside 0 ≤ … < 1, or ``wire`` with a ``calibration``.
    """

    def __init__(
        self,
        topology: Topology,
        wire: WireFormat | None = None,
        *,
        rate_tolerance: float = 0,
        calibration: MessageTimes | None = None,
    ) -> None:
        super().__init__(topology, _core.Sharing.MAX_MIN, wire, rate_tolerance, calibration)

    def set_background_bps(self, links: NDArray[np.int64], rates_bps: NDArray[np.float64]) -> None:
        """See `SharesCapacity.set_background_bps`; other links keep what they had.

        Raises:
            BackendError: an unknown link, or a rate below 0 or above the link's capacity; nothing is changed then.
        """
        self._simulation.set_background_bps(links, rates_bps)

    def link_rates_bps(self, links: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """See `SharesCapacity.link_rates_bps`; flows submitted for this instant count once it has been advanced to.

        Raises:
            BackendError: an unknown link.
        """
        return self._simulation.link_rates_bps(links)

    def load_periodically(self, sources: int) -> _core.PeriodicLoads:
        """See `SharesCapacity.load_periodically`."""
        return self._simulation.load_periodically(sources)
