"""The fabrics of SimAI's generator: Spectrum-X, Alibaba HPN and DCN+, with its numbers as defaults.

Nodes, cables and their order are those of SimAI 1.7's topology templates (one pod, two tiers, one cable per pair of
switches), so that `netsim.to_simai` gives the generator's text, provided that NVLink has the template's 2880 Gbit/s
rather than our default. Numbers of switches do not follow from the size: a template has all its spines for any number
of servers, and a larger pod than its spines have ports for is refused.

`Uplinks` says how fast the uplinks of a leaf are: each at a rate, or, by ``oversubscription``, as the rate of a leaf's
NIC ports over that of its uplinks, in use or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from boundary.errors import InputError
from netsim.topologies.checks import check_counts, uplink_rate_bps
from netsim.topologies.defaults import NICS_PER_LEAF, LinkRates
from netsim.topologies.servers import Servers
from netsim.topologies.two_tier import TwoTierFabric
from netsim.topology import Topology

UPLINK_BPS: Final = 400_000_000_000
"""Leaf to spine; SimAI 1.7 templates (ap_bandwidth)."""

SPECTRUM_X_SPINES: Final = 64
SPECTRUM_X_SPINE_PORTS: Final = 64
HPN_SPINES: Final = 120
HPN_SPINE_PORTS: Final = 240
"""Of one plane; with two, 120."""
HPN_NICS_PER_LEAF: Final = 128
DCN_PLUS_SPINES: Final = 8
DCN_PLUS_SPINE_PORTS: Final = 8
DCN_PLUS_NICS_PER_LEAF: Final = {1: NICS_PER_LEAF, 2: 128}
"""By the ports of a NIC: twice as many ports of half the rate."""


@dataclass(frozen=True, slots=True)
class Uplinks:
    """Leaf to spine: how many spines there are (of all planes together), and how fast a cable to one is."""

    spines: int | None = None
    """``None``: the template's."""
    rate_bps: int | None = None
    """``None``: as the oversubscription says, or 400 Gbit/s."""
    oversubscription: float | None = None

    def resolved_bps(self, builder: str, leaf_ports_bps: int, uplinks_of_leaf: int) -> int:
        """Bit/s of an uplink.

        Raises:
            InputError: where both a rate and an oversubscription are given, or the latter is no number above 0.
        """
        if self.oversubscription is None:
            return UPLINK_BPS if self.rate_bps is None else self.rate_bps
        if self.rate_bps is not None:
            raise InputError(f"{builder} uplink: found a rate and an oversubscription, expected one of them")
        return uplink_rate_bps(builder, leaf_ports_bps, uplinks_of_leaf, self.oversubscription)


def spectrum_x(
    nodes: int,
    gpus_per_node: int = 8,
    *,
    uplinks: Uplinks | None = None,
    spine_ports: int = SPECTRUM_X_SPINE_PORTS,
    rates: LinkRates | None = None,
) -> Topology:
    """Rail-optimised, single ToR: a leaf has 64 NICs of one rail, and an uplink to each of 64 spines."""
    return _template(
        "spectrum_x",
        Servers(nodes, gpus_per_node, 1),
        rails=gpus_per_node,
        nics_per_leaf=NICS_PER_LEAF,
        uplinks=_with_spines(uplinks, SPECTRUM_X_SPINES),
        spine_ports=spine_ports,
        rates=rates,
    )


def alibaba_hpn(
    nodes: int,
    gpus_per_node: int = 8,
    *,
    tors: int = 2,
    planes: int = 1,
    uplinks: Uplinks | None = None,
    spine_ports: int | None = None,
    rates: LinkRates | None = None,
) -> Topology:
    """Alibaba HPN: rails, with the two ports of every NIC on leaves of their own (dual ToR), in one plane or two.

    A leaf has 128 NIC ports and there are 120 spines; in two planes each half of them serves one port of the NICs. The
    rate of a NIC is that of its ports together, so with 400 Gbit/s each of two has 200. ``tors`` 1 is the same fabric
    with NICs of one port. With two planes the default uplinks are oversubscribed 16:15, as published (Qian et al.,
    "Alibaba HPN", SIGCOMM 2024: 1.067:1).
    """
    return _template(
        "alibaba_hpn",
        Servers(nodes, gpus_per_node, 1),
        rails=gpus_per_node,
        ports_per_nic=tors,
        planes=planes,
        nics_per_leaf=HPN_NICS_PER_LEAF,
        uplinks=_with_spines(uplinks, HPN_SPINES),
        spine_ports=HPN_SPINE_PORTS // max(1, planes) if spine_ports is None else spine_ports,
        rates=rates,
    )


def dcn_plus(
    nodes: int,
    gpus_per_node: int = 8,
    *,
    tors: int = 1,
    uplinks: Uplinks | None = None,
    spine_ports: int = DCN_PLUS_SPINE_PORTS,
    rates: LinkRates | None = None,
) -> Topology:
    """DCN+: leaf and spine without rails; consecutive NICs, whatever their server, fill a leaf.

    A leaf has 64 NICs, or 128 with half the rate per port where NICs have two ports on leaves of their own (``tors``
    2). The default of 8 spines is the template's and oversubscribes a leaf 8:1.
    """
    return _template(
        "dcn_plus",
        Servers(nodes, gpus_per_node, 1),
        rails=1,
        ports_per_nic=tors,
        nics_per_leaf=DCN_PLUS_NICS_PER_LEAF.get(tors, NICS_PER_LEAF),
        uplinks=_with_spines(uplinks, DCN_PLUS_SPINES),
        spine_ports=spine_ports,
        rates=rates,
    )


def _with_spines(uplinks: Uplinks | None, spines: int) -> Uplinks:
    given = uplinks or Uplinks()
    return Uplinks(spines if given.spines is None else given.spines, given.rate_bps, given.oversubscription)


def _template(
    builder: str,
    servers: Servers,
    *,
    rails: int,
    ports_per_nic: int = 1,
    planes: int = 1,
    nics_per_leaf: int,
    uplinks: Uplinks,
    spine_ports: int,
    rates: LinkRates | None,
) -> Topology:
    rates, spines = rates or LinkRates(), uplinks.spines or 0
    check_counts(builder, spines=spines, tors=ports_per_nic, planes=planes, spine_ports=spine_ports)
    leaf_ports_bps = nics_per_leaf * (rates.nic_bps // ports_per_nic)
    return TwoTierFabric(
        builder=builder,
        servers=servers,
        rails=rails,
        ports_per_nic=ports_per_nic,
        planes=planes,
        nics_per_leaf=nics_per_leaf,
        spines=spines,
        spine_ports=spine_ports,
        uplink_bps=uplinks.resolved_bps(builder, leaf_ports_bps, spines // planes),
        rates=rates,
    ).build()
