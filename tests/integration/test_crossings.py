"""The loop and the network meet in C++: Python hears of what it decides, not of every event."""

from __future__ import annotations

import pytest

from tests.benchmarks.crossings import MODES, configuration, crossings

MOST_PER_REQUEST = 60


@pytest.mark.parametrize("coupling", ["isolated", "fluid"])
@pytest.mark.parametrize("mode", MODES)
def test_a_request_takes_few_calls_from_python_into_the_cores(coupling: str, mode: str) -> None:
    """36 layers that leave one by one are some thousand events of the network, none of which concerns Python."""
    calls = crossings(configuration(coupling, mode), 20)
    assert calls.total() / 20 < MOST_PER_REQUEST, calls.most_common(8)


def test_a_network_that_the_loop_cannot_advance_serves_the_same_requests() -> None:
    """Packets that are remembered are replayed in Python: the loop is handed what arrives."""
    simulated, replayed = (
        crossings(configuration("isolated", "push", backend="packet", roce={"memoise": memoise}), 2, 4)
        for memoise in (False, True)
    )
    assert simulated["arrive"] == 0 < replayed["arrive"]
