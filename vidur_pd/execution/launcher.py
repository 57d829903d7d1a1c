"""What a coupling does for the flights of a simulation."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from netsim import Completion
from vidur_pd._core import Flight


class Launcher(Protocol):
    """Decides when flights end, as far as the core's loop does not by itself."""

    @property
    def has_runs(self) -> bool:
        """Whether a flight may have more than one step."""
        ...

    @property
    def launches_itself(self) -> bool:
        """Whether flights take their time on an idle fabric unless the loop is coupled; ``launch`` is for others."""
        ...

    def launch(self, flight: Flight) -> None:
        """Sets the times of a flight that starts now, and the event that ends it."""
        ...

    def uses(self, instance: int, links: NDArray[np.int64]) -> None:
        """An instance will put bytes on these links."""
        ...

    def rests(self, instance: int, /) -> None:
        """An instance has landed its last flight while the loop is coupled."""
        ...

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on."""
        ...

    def completed(self, completion: Completion) -> None:
        """A flow graph that is no transfer's has completed, or failed."""
        ...
