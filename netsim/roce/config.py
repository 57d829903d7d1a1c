"""Settings of the RoCE model behind `packet` and `ns3`, and the numbers that follow from them for each link.

Sources: the NIC and switch models of HPCC's ns-3 simulator (github.com/alibaba-edu/High-Precision-Congestion-Control)
and of SimAI 1.7 (github.com/aliyun/SimAI, SimAI.conf), and the congestion-control papers named in
``core/roce/congestion``. Times and rates need a unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

import netsim._core as _core
from boundary.errors import InputError
from boundary.fields import NotBool
from netsim.roce.congestion import congestion_parameters
from netsim.roce.wire import WireFormat
from netsim.topology import LinkKind, Topology, is_fabric_switch
from netsim.units import PS_PER_S, format_rate_bps
from netsim.units.fields import Rate, Time

Bytes = Annotated[int, NotBool, Field(ge=0, le=2**40)]
"""Of memory or of a threshold: up to 1 TiB."""
_PRIORITIES: Final = 8
_UNITS_PER_CREDIT_LOOP: Final = 8
"""Packets (or cells) that an NVSwitch input holds above what the credit loop needs. Our choice, for want of a source:
the least power of two from which even loads gain nothing more. Among 8 GPUs of an H100 server, 8 MB each to another
take 8.8 % longer than by fluid sharing with 2, 0.05 % with 4 or more; 4 MB from all to all 16 % with 2, 0.17 % with 4,
0.11 % with 8 or more. Uneven loads gain from more: flows of 0 to 8 MB take 13 % longer with 8, 8 % with 32."""

_ECN_ROWS: Final = {
    25: (100_000, 400_000, 0.2),
    50: (200_000, 800_000, 0.2),
    100: (400_000, 1_600_000, 0.2),
    200: (300_000, 1_200_000, 0.8),
    400: (800_000, 3_200_000, 0.2),
    1600: (600_000, 2_400_000, 0.2),
}
"""Gbit/s: (kmin, kmax in bytes, pmax), KMIN_MAP, KMAX_MAP and PMAX_MAP of SimAI.conf. Other rates take the row of the
nearest rate, as a ratio."""
_DCTCP_STEP_BYTES_PER_GBPS: Final = 3_000
"""DCTCP marks all packets above one threshold (Alizadeh et al., SIGCOMM 2010, section 3.1): 30 KB for every 10 Gbit/s
in the HPCC simulator's run.py."""

_LEAST_TOLERANCE: Final = 1e-6
_WINDOWS: Final = {
    "unbounded": _core.SendWindow.UNBOUNDED,
    "fixed": _core.SendWindow.FIXED,
    "variable": _core.SendWindow.VARIABLE,
}
_BALANCING: Final = {
    "ecmp": _core.LoadBalancing.ECMP,
    "flowlet": _core.LoadBalancing.FLOWLET,
    "adaptive": _core.LoadBalancing.ADAPTIVE,
}


class EcnThresholds(BaseModel):
    """RED of every queue: no mark up to ``kmin``, with a probability up to ``pmax`` at ``kmax``, all marked above.

    Equal thresholds make the step that DCTCP asks for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kmin_bytes: int = Field(ge=0, le=2**62)
    kmax_bytes: int = Field(ge=1, le=2**62)
    pmax: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if self.kmin_bytes > self.kmax_bytes:
            raise ValueError(f"kmin_bytes: found {self.kmin_bytes}, expected at most kmax_bytes, {self.kmax_bytes}")
        return self


class RoceConfig(BaseModel):
    """One RoCE fabric: packets, transport, congestion control, switches and load balancing."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    mtu_bytes: int = Field(4096, ge=256, le=65536, description="payload of a full packet")
    header_bytes: int = Field(
        52, ge=0, le=65536, description="of a data packet: PPP 14, IPv4 20, UDP 8, sequence 8, class 2"
    )
    ack_bytes: int = Field(60, ge=1, le=65536, description="an acknowledgement on the wire")
    packets_per_ack: int = Field(
        1, ge=1, le=16383, description="packets that one acknowledgement covers; always less than 2^31 bytes"
    )
    cell_packets: int = Field(1, ge=1, le=64, description="packets that move as one unit; above 1: `cell` mode")

    congestion_control: Literal["dcqcn", "hpcc", "timely", "dctcp", "none"] = "dcqcn"
    congestion_preset: str | None = Field(None, description="published set of constants; the scheme's default")
    congestion: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="constants that differ, see `netsim.roce.congestion`"
    )
    window: Literal["unbounded", "fixed", "variable"] | None = Field(
        None, description="bytes in flight: no bound, bandwidth-delay product, or that times rate/line; as the scheme"
    )
    acks_first: bool | None = Field(None, description="ACKs in the strict-priority queue; as the scheme")
    recovery: Literal["go_back_n", "selective_repeat"] | None = Field(
        None, description="go_back_n, but selective_repeat where packets of a flow take several paths"
    )
    retransmission_timeout: Time = Field(
        67_108_864_000, gt=0, description="without progress (InfiniBand's timeout 14, 4.096 us · 2^14 = 67.1 ms)"
    )
    nack_interval: Time = Field(500_000_000, gt=0, description="between NACKs for the same packet (HPCC: 500 us)")
    max_retries: int = Field(
        7, ge=0, le=1_000_000, description="timeouts in a row until a flow fails (InfiniBand's retry count)"
    )

    pfc: bool = Field(True, description="switches pause senders instead of dropping")
    pfc_frame_bytes: int = Field(64, ge=1, le=65536)
    ecn: bool = Field(True, description="switches mark packets")
    ecn_thresholds: EcnThresholds | None = Field(None, description="of all links; by rate and scheme")
    ecn_by_rate: dict[Rate, EcnThresholds] | None = Field(
        None, description="instead, rows for the rates of all links that leave switches"
    )
    switch_buffer_bytes: Bytes = Field(32 * 2**20, ge=1, description="shared by all ports (SimAI.conf: 32 MiB)")
    reserve_bytes: Bytes = Field(4096, description="per input, its own whatever the others take")
    headroom_bytes: Bytes | None = Field(
        None, description="per input, for what arrives after a pause was asked for; as much as that can be"
    )
    threshold_shift: int = Field(3, ge=0, le=16, description="an input may take free memory / 2^shift at NIC rate")
    resume_offset_bytes: Bytes = Field(3072, description="a pause ends so far below the threshold")
    nvswitch_input_bytes: Bytes | None = Field(
        None, ge=1, description="credits of an NVSwitch input; enough for its rate"
    )

    load_balancing: Literal["ecmp", "flowlet", "adaptive"] = Field(
        "ecmp", description="a path per flow by hash, per burst, or per packet by queue length"
    )
    flowlet_gap: Time = Field(5_000_000, gt=0, description="pause after which a burst may change its path; our choice")
    reroute_delay: Time = Field(
        100_000_000, ge=0, description="from a link failure or repair to the new routes; our choice, 100 us"
    )
    skip_tolerance: float = Field(
        0, ge=0, le=0.1, description="relative error of a flow's time for which steady states are skipped; 0: never"
    )
    memoise: bool = Field(False, description="flow graphs that run alone are simulated once per canonical form")
    ecmp_seed: int = Field(0, ge=0, lt=2**32, description="0: hashes as HPCC's and SimAI's ns-3 models")
    seed: int = Field(0, ge=0, lt=2**63, description="of ECN marks")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if 0 < self.skip_tolerance < _LEAST_TOLERANCE:
            raise ValueError(f"skip_tolerance 0, or at least {_LEAST_TOLERANCE:g}: spans of time grow with its inverse")
        if self.load_balancing == "adaptive" and self.recovery == "go_back_n":
            raise ValueError("recovery selective_repeat with load_balancing adaptive, which delivers out of order")
        if self.ecn_thresholds is not None and self.ecn_by_rate is not None:
            raise ValueError("ecn_thresholds or ecn_by_rate, not both")
        return self

    @property
    def wire(self) -> WireFormat:
        """What packets add to flows, as `fluid` and `analytical` take it."""
        return WireFormat(
            mtu_bytes=self.mtu_bytes,
            header_bytes=self.header_bytes,
            ack_bytes=self.ack_bytes,
            packets_per_ack=self.packets_per_ack,
        )

    @property
    def unit_bytes(self) -> int:
        """Payload that moves as one unit: a packet, or a cell of several."""
        return self.mtu_bytes * self.cell_packets

    @property
    def unit_wire_bytes(self) -> int:
        """The same with headers."""
        return self.cell_packets * (self.mtu_bytes + self.header_bytes)


def core_parameters(config: RoceConfig, topology: Topology) -> _core.RoceParameters:
    """The model's numbers, those of each link included.

    Raises:
        InputError: where headroom and reserves of a switch's inputs exceed its memory, or a constant of the congestion
            control does not exist or makes no sense.
    """
    parameters = _core.RoceParameters()
    parameters.wire = config.wire.to_core()
    for name in (
        "cell_packets", "pfc_frame_bytes", "max_retries", "switch_buffer_bytes", "reserve_bytes",
        "resume_offset_bytes", "seed", "skip_tolerance",
    ):  # fmt: skip
        setattr(parameters, name, getattr(config, name))
    for name in ("retransmission_timeout", "nack_interval", "flowlet_gap", "reroute_delay"):
        setattr(parameters, f"{name}_ps", getattr(config, name))
    parameters.has_pfc = config.pfc
    parameters.load_balancing = _BALANCING[config.load_balancing]
    recovery = config.recovery or ("go_back_n" if config.load_balancing == "ecmp" else "selective_repeat")
    parameters.recovery = getattr(_core.Recovery, recovery.upper())
    parameters.congestion = congestion_parameters(
        config.congestion_control, config.congestion_preset, config.congestion
    )
    transport = parameters.congestion.transport
    parameters.transport = _core.TransportSettings(
        transport.window if config.window is None else _WINDOWS[config.window],
        transport.acks_go_first if config.acks_first is None else config.acks_first,
    )
    headroom = headroom_bytes(config, topology)
    _check_memory(config, topology, headroom)
    parameters.set_headroom(headroom)
    parameters.set_threshold_shift(_threshold_shift(config, topology))
    parameters.set_credit(_credit_bytes(config, topology))
    if config.ecn:
        parameters.set_red(*ecn_thresholds(config, topology))
    return parameters


def headroom_bytes(config: RoceConfig, topology: Topology) -> NDArray[np.int64]:
    """[links] What an input of a switch may still receive after it decided to pause its sender.

    The packet for which it decides is there already. The pause frame waits behind a packet, is sent and travels;
    meanwhile the sender has begun another packet, and a link's worth is under way: rate · (2 latency) + 3 packets + the
    pause frames of all classes. (One packet more than the usual estimate, which does not count the first.)
    """
    if config.headroom_bytes is not None:
        return np.full(topology.links, config.headroom_bytes, dtype=np.int64)
    loop = _bytes_in(2 * topology.latency_ps, topology.capacity_bps)
    return loop + 3 * config.unit_wire_bytes + _PRIORITIES * config.pfc_frame_bytes


def ecn_thresholds(
    config: RoceConfig, topology: Topology
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """[links] kmin and kmax in bytes and pmax of each link's queues: as in SimAI.conf, for DCTCP a step.

    Raises:
        InputError: ``ecn_by_rate`` has no row for the rate of a link that leaves a switch.
    """
    if (own := config.ecn_thresholds) is not None:
        rows = [(own.kmin_bytes, own.kmax_bytes, own.pmax)] * topology.links
    elif (by_rate := config.ecn_by_rate) is not None:
        _check_ecn_rates(by_rate, topology)
        unmarked = EcnThresholds(kmin_bytes=2**62 - 1, kmax_bytes=2**62, pmax=0)
        chosen = [by_rate.get(rate, unmarked) for rate in topology.capacity_bps.tolist()]
        rows = [(row.kmin_bytes, row.kmax_bytes, row.pmax) for row in chosen]
    elif config.congestion_control == "dctcp":
        steps = (topology.capacity_bps // 10**9 * _DCTCP_STEP_BYTES_PER_GBPS).tolist()
        rows = [(step, max(step, 1), 1.0) for step in steps]
    else:
        nearest = {
            rate: _ECN_ROWS[min(_ECN_ROWS, key=lambda known: abs(math.log(known * 1e9 / rate)))]
            for rate in set(topology.capacity_bps.tolist())
        }
        rows = [nearest[rate] for rate in topology.capacity_bps.tolist()]
    kmin, kmax, pmax = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(kmin, dtype=np.int64), np.array(kmax, dtype=np.int64), np.array(pmax, dtype=np.float64)


def _check_ecn_rates(by_rate: Mapping[int, EcnThresholds], topology: Topology) -> None:
    kind = topology.node_kind[topology.link_src]
    marks = is_fabric_switch(kind)
    for rate in np.unique(topology.capacity_bps[marks]).tolist():
        if rate not in by_rate:
            known = ", ".join(map(format_rate_bps, by_rate)) or "none"
            raise InputError(
                f"ecn_by_rate: found rows for {known}, expected also one for {format_rate_bps(rate)} links"
            )


def _bytes_in(time_ps: NDArray[np.int64], rate_bps: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ceil(time_ps.astype(np.float64) * rate_bps.astype(np.float64) / (8 * PS_PER_S)).astype(np.int64)


def _threshold_shift(config: RoceConfig, topology: Topology) -> NDArray[np.uint8]:
    """One less for every doubling of a link's rate above that of the NICs, so that faster inputs may hold more."""
    nics = topology.capacity_bps[topology.link_kind == LinkKind.NIC]
    if not len(nics):
        return np.full(topology.links, config.threshold_shift, dtype=np.uint8)
    doublings = np.floor(np.log2(np.maximum(topology.capacity_bps / nics.min(), 1)))
    shift: NDArray[np.uint8] = np.maximum(config.threshold_shift - doublings, 0).astype(np.uint8)
    return shift


def _credit_bytes(config: RoceConfig, topology: Topology) -> NDArray[np.int64]:
    if config.nvswitch_input_bytes is not None:
        return np.full(topology.links, max(config.nvswitch_input_bytes, config.unit_wire_bytes), dtype=np.int64)
    loop = _bytes_in(2 * topology.latency_ps, topology.capacity_bps)
    return loop + _UNITS_PER_CREDIT_LOOP * config.unit_wire_bytes


def _check_memory(config: RoceConfig, topology: Topology, headroom: NDArray[np.int64]) -> None:
    reserved = np.zeros(topology.nodes, dtype=np.int64)
    np.add.at(reserved, topology.link_dst, headroom + config.reserve_bytes)
    is_switch = is_fabric_switch(topology.node_kind)
    worst = int(np.argmax(np.where(is_switch, reserved, -1)))
    if is_switch[worst] and reserved[worst] > config.switch_buffer_bytes:
        raise InputError(
            f"switch_buffer_bytes: found {config.switch_buffer_bytes}, expected at least {reserved[worst]} for the "
            f"headroom and reserve of the inputs of {topology.node_name[worst]}"
        )
