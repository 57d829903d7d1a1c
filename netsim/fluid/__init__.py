"""Backend `fluid`: max-min fair sharing over the real paths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from netsim import _core
from netsim.executor import FlowBackend
from netsim.topology import Topology

__all__ = ["FluidBackend"]


class FluidBackend(FlowBackend):
    """Flows share links max-min fairly; fulfils `NetworkBackend` and `SharesCapacity`.

    At every instant at which flows start or end, rates are those of progressive filling on the ECMP paths, rounded
    down to 1/5040 bit/s. Assumes that congestion control is fair, immediate and wastes nothing: queues, PFC, ECN
    transients, packet headers, ACKs and losses are ignored, so a flow among many competitors is served too evenly.
    """

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, _core.Sharing.MAX_MIN)

    def set_background_bps(self, links: NDArray[np.int64], rates_bps: NDArray[np.float64]) -> None:
        """See `SharesCapacity.set_background_bps`; other links keep what they had.

        Raises:
            BackendError: an unknown link, or a rate below 0 or above the link's capacity; nothing is changed then.
        """
        self._simulation.set_background_bps(links, rates_bps)

    def link_rates_bps(self) -> NDArray[np.float64]:
        """See `SharesCapacity.link_rates_bps`; flows submitted for this instant count once it has been advanced to."""
        return self._simulation.link_rates_bps()
