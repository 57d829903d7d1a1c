"""A network that is no object of netsim's core: Python advances it in turn with the loop."""

from __future__ import annotations

from netsim import NetworkBackend
from vidur_pd._core import Loop
from vidur_pd.execution.network_clock import FAR_PS


class OuterNetwork:
    """Stands in for a network that the loop cannot advance by itself: completions at an instant come before events."""

    def __init__(self, network: NetworkBackend, loop: Loop) -> None:
        self._network, self._loop = network, loop

    @classmethod
    def unless_of_core(cls, network: NetworkBackend, loop: Loop) -> OuterNetwork | None:
        """Nothing where the loop can advance the network, which it does from now on."""
        if network.stepped is None:
            return cls(network, loop)
        loop.advance_with(network.stepped)
        return None

    def next_event_ps(self) -> int | None:
        """See `NetworkBackend.next_event_ps`."""
        return self._network.next_event_ps()

    def advance(self) -> bool:
        """Runs the network to the next event of the loop, or to the first instant at which something completes; false
        where it has nothing to do."""
        if self._network.next_event_ps() is None:
            return False
        next_ps = self._loop.next_event_ps()
        completions = self._network.advance(FAR_PS if next_ps is None else next_ps)
        if completions:
            ended = [(each.handle, each.is_failed) for each in completions if each.flow is None]
            self._loop.arrive(completions[0].at_ps, ended)
        return True
