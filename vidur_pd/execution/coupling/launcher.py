"""What a coupling does for the flights of a simulation."""

from __future__ import annotations

from typing import Protocol

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
        """Whether ``launch`` is for flights beside other traffic alone; others take their time on an idle fabric."""
        ...

    @property
    def follows_network(self) -> bool:
        """Whether it is told of everything that happens on the network, by ``network_moved``."""
        ...

    def launch(self, flight: Flight) -> None:
        """Sets the times of a flight that starts now, and the event that ends it."""
        ...

    def drop(self, flight: Flight, /) -> None:
        """The flight comes to nothing: what it has on the network is taken off."""
        ...

    def rests(self, instance: int, /) -> None:
        """An instance that other traffic concerns has landed its last flight."""
        ...

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on."""
        ...

    def network_moved(self) -> None:
        """The network has come to its next event, with which no graph ends."""
        ...

    def completed(self, completion: Completion) -> None:
        """A flow graph that is no transfer's has completed, or failed."""
        ...
