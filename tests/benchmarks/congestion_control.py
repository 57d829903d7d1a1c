#!/usr/bin/env python3
"""Cost of one acknowledgement in each congestion controller, one core: nanoseconds, and bytes of state per queue pair.

    python tests/benchmarks/congestion_control.py

A flow of 400 Gbit/s with an ACK per 4,096-byte packet, every 84 ns, through the variant that queue pairs hold; best of
five runs over 500,000 ACKs. `quiet` has no marks, `marked` one ACK in twenty; telemetry is of three hops. Prints; does
not gate.
"""

from __future__ import annotations

import platform
import time

import numpy as np

from netsim import _core

ACKS = 500_000
HOPS = 3
ACK_GAP_PS = 84_000
MTU_BYTES = 4096
LINE_BPS = 400 * 10**9
WINDOW_BYTES = 500_000
RTT_PS = 10_000_000
RUNS = 5


def acks(marked_share: float) -> dict[str, np.ndarray]:
    """Columns of a sequence of ACKs whose hops are 90 % busy."""
    rng = np.random.default_rng(0)
    number = np.arange(1, ACKS + 1)
    hops = np.empty((ACKS, HOPS, 4), np.int64)
    hops[..., 0] = LINE_BPS
    hops[..., 1] = number[:, None] * ACK_GAP_PS
    hops[..., 2] = number[:, None] * 3780
    hops[..., 3] = rng.integers(0, 20_000, (ACKS, HOPS))
    return {
        "now_ps": number * ACK_GAP_PS,
        "rtt_ps": RTT_PS + rng.integers(0, 10**6, ACKS),
        "acked_bytes": np.full(ACKS, MTU_BYTES),
        "acked_seq": number * MTU_BYTES,
        "next_seq": number * MTU_BYTES + WINDOW_BYTES,
        "is_marked": rng.random(ACKS) < marked_share,
        "hops": hops,
    }


def nanoseconds_per_ack(scheme: str, columns: dict[str, np.ndarray]) -> float:
    """Best of some runs, each of a new controller."""
    best_s = float("inf")
    for _ in range(RUNS):
        controller = _core.CongestionControl(
            _core.congestion_preset(scheme),
            line_bps=LINE_BPS,
            base_rtt_ps=RTT_PS,
            mtu_bytes=MTU_BYTES,
            window_bytes=WINDOW_BYTES,
        )
        start_s = time.perf_counter()
        controller.on_acks(**columns)
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s / ACKS * 1e9


def main() -> None:
    """Prints one line per scheme."""
    print(f"{platform.processor() or platform.machine()}, variant {_core.CongestionControl.state_bytes} B")
    quiet, marked = acks(0.0), acks(0.05)
    for scheme in ("none", "dcqcn", "hpcc", "timely", "dctcp"):
        quiet_ns, marked_ns = nanoseconds_per_ack(scheme, quiet), nanoseconds_per_ack(scheme, marked)
        print(f"{scheme:8} quiet {quiet_ns:5.1f} ns  marked {marked_ns:5.1f} ns")


if __name__ == "__main__":
    main()
