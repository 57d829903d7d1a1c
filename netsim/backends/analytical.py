"""Backend `analytical`: alpha-beta per flow, without contention."""

from __future__ import annotations

import netsim._core as _core
from netsim.backends.calibration import MessageTimes
from netsim.backends.core import FlowBackend
from netsim.roce.wire import WireFormat
from netsim.topology import Topology

__all__ = ["AnalyticalBackend"]


class AnalyticalBackend(FlowBackend):
    """Every flow takes its path's latency plus its bytes over the smallest capacity of its path, or over its cap.

    Assumes an otherwise empty network for every flow: flows on one link do not slow each other, so a link may carry
    more than its capacity. A lower bound of what `fluid` gives, for first estimates. ``wire`` adds headers and
    store-and-forward (see `WireFormat`); with a ``calibration`` flows take what was measured instead.
    """

    def __init__(
        self, topology: Topology, wire: WireFormat | None = None, calibration: MessageTimes | None = None
    ) -> None:
        super().__init__(topology, _core.Sharing.UNCONTENDED, wire, calibration=calibration)
