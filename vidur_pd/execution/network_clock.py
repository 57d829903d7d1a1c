"""The clock of the network, which that of the loop is ahead of while the network has nothing to do."""

from __future__ import annotations

from netsim import NetworkBackend

FAR_PS = 2**62
"""Later than any simulated instant; fits a signed 64-bit integer."""


def catch_up(network: NetworkBackend, now_ps: int) -> None:
    """Brings the network to the instant of the loop: what is changed on it next is changed then, and not before."""
    if network.now_ps < now_ps:
        completions = network.advance(now_ps)
        assert not completions, "the network had nothing to do before this instant"
