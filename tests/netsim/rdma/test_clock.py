"""Offsets of clocks from exchanges that were made up, and from real ones."""

from __future__ import annotations

import numpy as np
import pytest

from netsim.backends.rdma.clock import ClockLine, ClockOffset, PingResponder, estimated_offset, exchange_pings
from netsim.backends.rdma.errors import TransferFailure

KEY = 12345


def test_queues_in_one_direction_do_not_move_the_offset() -> None:
    """The true offset is 1 ms, both ways take 10 µs. Most pings wait up to 2 ms on the way out, which would be wrong by
    1 ms; one in ten does not, and those decide, within half of the shortest round trip."""
    rng = np.random.default_rng(7)
    sent = np.arange(1000, dtype=np.int64) * 10_000_000
    queued = rng.integers(0, 2_000_000, 1000) * (rng.random(1000) > 0.1)
    answered = sent + 10_000 + queued + 1_000_000
    back = sent + 20_000 + queued
    found = estimated_offset(sent, answered, back)
    assert found.offset_ns == pytest.approx(1_000_000, abs=found.error_ns)
    assert found.error_ns == 10_000


def test_a_drift_between_two_estimates_is_linear() -> None:
    """1000 ns at time 0, 3000 ns at 2 s: 2000 ns in the middle."""
    line = ClockLine(ClockOffset(0, 1000.0, 5.0), ClockOffset(2_000_000_000, 3000.0, 7.0))
    assert line.on_rank_0(np.array([1_000_000_000])).tolist() == [1_000_002_000]
    assert line.of_rank_0(5000) == 4000
    assert line.error_ns == 7.0


def test_the_clock_of_this_host_is_its_own_within_the_stated_error() -> None:
    responder = PingResponder("127.0.0.1", KEY)
    try:
        found = exchange_pings("127.0.0.1", ("127.0.0.1", responder.port), KEY, 500)
        assert abs(found.offset_ns) <= found.error_ns
        with pytest.raises(TransferFailure, match="no answer"):
            exchange_pings("127.0.0.1", ("127.0.0.1", responder.port), KEY + 1, 1)
    finally:
        responder.close()
