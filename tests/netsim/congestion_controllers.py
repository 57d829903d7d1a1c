"""Congestion controllers on a line of 400 Gbit/s with a round trip of 10 us, and their acknowledgements."""

from __future__ import annotations

from typing import cast

import numpy as np

from netsim._core import (
    CongestionControl,
    Dcqcn,
    DcqcnParameters,
    Dctcp,
    DctcpParameters,
    Hpcc,
    HpccParameters,
    RateStep,
    Timely,
    TimelyParameters,
    congestion_preset,
)

NS, US, MS = 10**3, 10**6, 10**9
MBPS, GBPS = 10**6, 10**9
LINE_BPS = 400 * GBPS
RTT_PS = 10 * US
MTU_BYTES = 4096
WINDOW_BYTES = 500_000
"""400 Gbit/s for 10 us."""
NO_HOPS = np.empty((0, 4), np.int64)
ALPHA_ONE = 2**48
Controller = Dcqcn | Hpcc | Timely | Dctcp | CongestionControl


def dcqcn_parameters(preset: str = "hpcc", /, **changes: int | float | RateStep) -> DcqcnParameters:
    return cast(DcqcnParameters, congestion_preset("dcqcn", preset)).replace(**changes)


def dcqcn(parameters: DcqcnParameters, line_bps: int = LINE_BPS) -> Dcqcn:
    return Dcqcn(
        parameters, line_bps=line_bps, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def hpcc(**changes: int | float | RateStep) -> Hpcc:
    parameters = cast(HpccParameters, congestion_preset("hpcc")).replace(**changes)
    return Hpcc(
        parameters, line_bps=LINE_BPS, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def timely() -> Timely:
    parameters = cast(TimelyParameters, congestion_preset("timely"))
    return Timely(
        parameters, line_bps=LINE_BPS, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def dctcp(**changes: int | float | RateStep) -> Dctcp:
    parameters = cast(DctcpParameters, congestion_preset("dctcp")).replace(**changes)
    return Dctcp(
        parameters, line_bps=LINE_BPS, base_rtt_ps=RTT_PS, mtu_bytes=MTU_BYTES, window_bytes=WINDOW_BYTES, now_ps=0
    )


def ack(
    controller: Controller,
    *,
    now_ps: int = 0,
    seq: int = MTU_BYTES,
    next_seq: int = 0,
    marked: bool = False,
    rtt_ps: int = RTT_PS,
    hops: list[tuple[int, int, int, int]] | None = None,
) -> int:
    """Hands one acknowledgement over and returns the rate then, in bit/s."""
    table = np.array(hops, np.int64) if hops else NO_HOPS
    controller.on_ack(
        now_ps=now_ps,
        rtt_ps=rtt_ps,
        acked_bytes=MTU_BYTES,
        acked_seq=seq,
        next_seq=next_seq,
        is_marked=marked,
        hops=table,
    )
    return controller.rate_bps
