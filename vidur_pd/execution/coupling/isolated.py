"""Coupling ``isolated``: an iteration takes what it takes on an idle fabric, which the core's loop knows."""

from __future__ import annotations

from netsim import Completion
from vidur_pd._core import Flight


class IsolatedLauncher:
    """Has nothing to decide."""

    has_runs = True
    launches_itself = True
    follows_network = False

    def launch(self, flight: Flight) -> None:
        raise AssertionError(f"flight {flight.number} is launched by the loop")

    def drop(self, flight: Flight) -> None:
        """Nothing to do: the loop forgets it."""

    def rests(self, instance: int) -> None:
        """Nothing to do: no load is left behind."""

    def traffic_changes(self, at_ps: int) -> None:
        """Nothing to do: iterations do not see other traffic."""

    def network_moved(self) -> None:
        """Nothing to do either."""

    def completed(self, completion: Completion) -> None:
        raise AssertionError(f"{completion}, but iterations submit no graphs")
