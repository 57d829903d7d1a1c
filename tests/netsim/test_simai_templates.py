"""The fabrics of SimAI's generator, line by line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import networkx
import numpy as np
import pytest

from netsim import (
    InputError,
    LinkKind,
    NodeKind,
    Topology,
    Uplinks,
    alibaba_hpn,
    dcn_plus,
    from_simai,
    spectrum_x,
    to_simai,
)
from netsim.topologies.defaults import LinkRates

GBPS = 10**9
SIMAI = LinkRates(nvlink_bps=2880 * GBPS)
"""The templates' NVLink; the other defaults are ours as well."""

TEMPLATES: dict[str, Callable[[int], Topology]] = {
    "Spectrum-X": spectrum_x,
    "HPN": alibaba_hpn,
    "HPN dual plane": partial(alibaba_hpn, planes=2),
    "HPN single ToR": partial(alibaba_hpn, tors=1),
    "DCN+": dcn_plus,
    "DCN+ dual ToR": partial(dcn_plus, tors=2),
}


@pytest.mark.parametrize(
    ("template", "gpus", "header"),
    [
        ("Spectrum-X", 64, "144 8 8 72 640 H100"),
        ("Spectrum-X", 1024, "1232 8 128 80 3072 H100"),
        ("Spectrum-X", 4096, "4736 8 512 128 12288 H100"),
        ("HPN", 64, "208 8 8 136 2112 H100"),
        ("HPN dual plane", 64, "208 8 8 136 1152 H100"),
        ("HPN", 15360, "17640 8 1920 360 74880 H100"),
        ("HPN dual plane", 15360, "17640 8 1920 360 60480 H100"),
        ("DCN+", 64, "81 8 8 9 136 H100"),
        ("DCN+ dual ToR", 64, "82 8 8 10 208 H100"),
        ("DCN+", 512, "592 8 64 16 1088 H100"),
        ("DCN+ dual ToR", 512, "592 8 64 16 1600 H100"),
    ],
)
def test_first_lines_are_those_of_simais_generator(template: str, gpus: int, header: str) -> None:
    """Outputs of SimAI 1.7's generator."""
    assert to_simai(TEMPLATES[template](gpus // 8)).partition("\n")[0] == header


@dataclass(frozen=True)
class Rule:
    """How the generator wires servers of 8 GPUs: one line per cable, from its rules, GPU by GPU."""

    nics_per_leaf: int
    spines: int
    nic: str
    has_rails: bool
    tors: int
    planes: int

    def lines(self, gpus: int) -> list[str]:
        per_list = -(-gpus // (8 * self.nics_per_leaf)) * 8 if self.has_rails else -(-gpus // self.nics_per_leaf)
        first_leaf = gpus + gpus // 8
        first_spine = first_leaf + per_list * self.tors
        lines = []
        for gpu in range(gpus):
            lines.append(f"{gpu} {gpus + gpu // 8} 2880Gbps 0.000025ms 0")
            leaf = gpu // self.nics_per_leaf
            if self.has_rails:
                leaf = gpu // (8 * self.nics_per_leaf) * 8 + gpu % 8
            for tor in range(self.tors):
                lines.append(f"{gpu} {first_leaf + tor * per_list + leaf} {self.nic} 0.0005ms 0")
        for leaf in range(per_list * self.tors):
            above = range(self.spines)
            if self.planes == 2:
                half = self.spines // 2
                above = range(half) if leaf < per_list else range(half, self.spines)
            lines += [f"{first_leaf + leaf} {first_spine + spine} 400Gbps 0.0005ms 0" for spine in above]
        return lines


RULES = {
    "Spectrum-X": Rule(64, 64, "400Gbps", has_rails=True, tors=1, planes=1),
    "HPN": Rule(128, 120, "200Gbps", has_rails=True, tors=2, planes=1),
    "HPN dual plane": Rule(128, 120, "200Gbps", has_rails=True, tors=2, planes=2),
    "HPN single ToR": Rule(128, 120, "400Gbps", has_rails=True, tors=1, planes=1),
    "DCN+": Rule(64, 8, "400Gbps", has_rails=False, tors=1, planes=1),
    "DCN+ dual ToR": Rule(128, 8, "200Gbps", has_rails=False, tors=2, planes=1),
}


@pytest.mark.parametrize("gpus", [8, 64, 200, 512, 2048])
@pytest.mark.parametrize("template", TEMPLATES)
def test_every_line_follows_the_rules_of_the_generator(template: str, gpus: int) -> None:
    """Ids run GPUs, NVSwitches, access switches (first list, then second), aggregation switches."""
    most = 512 if template.startswith("DCN+") else 15360
    topology = TEMPLATES[template](min(gpus, most) // 8, rates=SIMAI)  # type: ignore[call-arg]
    lines = to_simai(topology).splitlines()
    assert lines[1].split() == [str(node) for node in range(topology.gpus, topology.nodes)]
    assert lines[2:] == RULES[template].lines(topology.gpus)


@pytest.mark.parametrize("planes", [1, 2])
def test_fifteen_thousand_gpus_survive_simai_text(planes: int) -> None:
    topology = alibaba_hpn(1920, planes=planes)
    found = from_simai(to_simai(topology))
    for name in ("node_kind", "link_src", "link_dst", "capacity_bps", "latency_ps", "link_kind"):
        assert np.array_equal(getattr(found, name), getattr(topology, name)), name


def leaf_ratio(topology: Topology) -> Fraction:
    """Oversubscription of the first leaf if all its NIC ports were in use; here they are."""
    leaf = int(np.flatnonzero(topology.node_kind == NodeKind.LEAF)[0])
    out = topology.link_src == leaf
    up = out & (topology.link_kind == LinkKind.FABRIC)
    return Fraction(int(topology.capacity_bps[out & ~up].sum()), int(topology.capacity_bps[up].sum()))


@pytest.mark.parametrize(
    ("topology", "ratio"),
    [
        (alibaba_hpn(128, planes=2), Fraction(16, 15)),
        (alibaba_hpn(128), Fraction(8, 15)),
        (spectrum_x(64), Fraction(1)),
        (dcn_plus(64), Fraction(8)),
        (dcn_plus(16, tors=2), Fraction(8)),
        (alibaba_hpn(128, planes=2, uplinks=Uplinks(spines=64, oversubscription=2)), Fraction(2)),
        (spectrum_x(64, uplinks=Uplinks(spines=16, rate_bps=800 * GBPS)), Fraction(2)),
        (dcn_plus(64, uplinks=Uplinks(oversubscription=1)), Fraction(1)),
    ],
)
def test_uplinks_have_the_templates_rate_or_follow_from_the_oversubscription(
    topology: Topology, ratio: Fraction
) -> None:
    """HPN: 128 ports of 200G to 60 or 120 uplinks of 400G; Spectrum-X: 64 of 400G to 64; DCN+: 64 of 400G (or 128 of
    200G) to 8."""
    assert leaf_ratio(topology) == ratio


def test_two_planes_meet_only_at_the_gpus() -> None:
    graph = alibaba_hpn(256, planes=2).to_networkx().to_undirected()
    graph.remove_nodes_from(range(256 * 8))
    sizes = sorted(len(part) for part in networkx.connected_components(graph) if len(part) > 1)
    assert sizes == [16 + 60, 16 + 60]  # two segments of eight rails, half of the spines


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: spectrum_x(513), "spectrum_x nodes: found 513, with 72 leaves on a spine, expected at most 64"),
        (lambda: alibaba_hpn(1921), "alibaba_hpn nodes: found 1921, with 256 leaves on a spine, expected at most 240"),
        (lambda: alibaba_hpn(1921, planes=2), "with 128 leaves on a spine, expected at most 120"),
        (lambda: dcn_plus(65), "dcn_plus nodes: found 65, with 9 leaves on a spine, expected at most 8"),
        (lambda: alibaba_hpn(8, tors=1, planes=2), "planes: found 2 with tors 1, expected 1, or tors 2"),
        (lambda: alibaba_hpn(8, planes=2, uplinks=Uplinks(spines=3)), "spines: found 3, expected an even number"),
        (lambda: alibaba_hpn(8, tors=3), "alibaba_hpn tors: found 3, expected 1 or 2"),
        (lambda: dcn_plus(8, tors=0), "dcn_plus tors: found 0, expected at least 1"),
        (lambda: spectrum_x(8, uplinks=Uplinks(spines=0)), "spectrum_x spines: found 0, expected at least 1"),
        (lambda: spectrum_x(0), "spectrum_x nodes: found 0, expected at least 1"),
        (lambda: spectrum_x(8, uplinks=Uplinks(8, GBPS, 2)), "uplink: found a rate and an oversubscription"),
        (
            lambda: dcn_plus(8, uplinks=Uplinks(oversubscription=0)),
            "oversubscription: found 0, expected a number above",
        ),
    ],
)
def test_what_no_such_fabric_can_be_is_refused(build: Callable[[], Topology], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_a_larger_pod_needs_spines_with_more_ports() -> None:
    assert spectrum_x(513, spine_ports=72).gpus == 4104
