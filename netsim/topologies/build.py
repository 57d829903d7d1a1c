"""Configuration of a topology: which builder, with which numbers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from pydantic import TypeAdapter, ValidationError

from boundary.errors import InputError
from boundary.quoting import quoted
from netsim.topologies.checks import check_size
from netsim.topologies.dragonfly import DragonflyShape, dragonfly
from netsim.topologies.fat_tree import fat_tree, smallest_fat_tree
from netsim.topologies.file import read_topology
from netsim.topologies.hosts import with_hosts
from netsim.topologies.nvswitch import nvl72, nvswitch
from netsim.topologies.rail_optimized import rail_optimized
from netsim.topologies.simai_templates import alibaba_hpn, dcn_plus, spectrum_x
from netsim.topologies.single_switch import single_switch
from netsim.topologies.specs import (
    SPECS,
    AlibabaHpnSpec,
    DcnPlusSpec,
    DragonflySpec,
    FatTreeSpec,
    FileSpec,
    Nvl72Spec,
    NvswitchSpec,
    PcieSpec,
    RailOptimizedSpec,
    SingleSwitchSpec,
    SpectrumXSpec,
    TopologySpec,
    kind_of,
)
from netsim.topology import Topology

__all__ = [
    "KINDS",
    "AlibabaHpnSpec",
    "DcnPlusSpec",
    "DragonflySpec",
    "FatTreeSpec",
    "FileSpec",
    "Nvl72Spec",
    "NvswitchSpec",
    "PcieSpec",
    "RailOptimizedSpec",
    "SingleSwitchSpec",
    "SpectrumXSpec",
    "TopologySpec",
    "build",
    "parse_spec",
]

KINDS: Final = tuple(kind for kind in SPECS if kind != "file")
"""What has a builder."""

_ServerSpec = (
    SingleSwitchSpec | FatTreeSpec | RailOptimizedSpec | SpectrumXSpec | AlibabaHpnSpec | DcnPlusSpec | DragonflySpec
)


def parse_spec(document: Mapping[str, object], source: str = "topology") -> TopologySpec:
    """Validates a spec.

    Raises:
        InputError: naming ``source``, the first wrong field, what was found and what was expected; for an unknown
            field also the nearest known one.
    """
    try:
        spec: TopologySpec = TypeAdapter(TopologySpec).validate_python(dict(document))
    except ValidationError as error:
        raise InputError(_first_line(error, document, source)) from error
    return spec


def build(spec: TopologySpec, gpus_needed: int | None = None) -> Topology:
    """The topology of a spec, with at least ``gpus_needed`` GPUs.

    Without ``nodes``, as many servers as ``gpus_needed`` fill; a fat tree or a dragonfly of given numbers is then full.

    Raises:
        InputError: naming both numbers where the topology has fewer GPUs than are needed, or where neither ``nodes``
            nor ``gpus_needed`` is known.
    """
    topology = _with_pcie(spec, _built(spec, gpus_needed))
    if topology.gpus < (gpus_needed or 0):
        where = str(spec.file) if isinstance(spec, FileSpec) else f"topology {spec.kind}"
        raise InputError(f"{where} gpus: found {topology.gpus}, expected at least {gpus_needed}")
    return topology


def _with_pcie(spec: TopologySpec, topology: Topology) -> Topology:
    pcie = None if isinstance(spec, FileSpec) else spec.pcie
    if pcie is None:
        return topology
    return with_hosts(topology, pcie.rate, pcie_latency_ps=pcie.latency, gpus_per_pcie_switch=pcie.gpus_per_switch)


def _built(spec: TopologySpec, gpus_needed: int | None) -> Topology:
    match spec:
        case FileSpec():
            return read_topology(spec.file)
        case NvswitchSpec():
            return nvswitch(spec.gpus_per_node, nvswitches=spec.nvswitches, rates=spec.rates)
        case Nvl72Spec():
            return nvl72(nvswitches=spec.nvswitches, rates=spec.rates)
        case FatTreeSpec():
            return _fat_tree(spec, gpus_needed)
        case DragonflySpec():
            return _dragonfly(spec, gpus_needed)
        case _:
            return _flat(spec, _nodes(spec, gpus_needed))


def _flat(
    spec: SingleSwitchSpec | RailOptimizedSpec | SpectrumXSpec | AlibabaHpnSpec | DcnPlusSpec, nodes: int
) -> Topology:
    width = spec.gpus_per_node
    match spec:
        case SingleSwitchSpec():
            return single_switch(nodes, width, rates=spec.rates)
        case RailOptimizedSpec():
            return rail_optimized(
                nodes,
                width,
                rails=spec.rails,
                nvswitches_per_node=spec.nvswitches_per_node,
                nodes_per_segment=spec.nodes_per_segment,
                spines=spec.spines,
                oversubscription=spec.oversubscription,
                rates=spec.rates,
            )
        case SpectrumXSpec():
            return spectrum_x(nodes, width, uplinks=spec.uplinks, spine_ports=spec.spine_ports, rates=spec.rates)
        case AlibabaHpnSpec():
            return alibaba_hpn(
                nodes,
                width,
                tors=spec.tors,
                planes=spec.planes,
                uplinks=spec.uplinks,
                spine_ports=spec.spine_ports,
                rates=spec.rates,
            )
        case DcnPlusSpec():
            return dcn_plus(
                nodes, width, tors=spec.tors, uplinks=spec.uplinks, spine_ports=spec.spine_ports, rates=spec.rates
            )


def _fat_tree(spec: FatTreeSpec, gpus_needed: int | None) -> Topology:
    if spec.k is None:
        nodes: int | None = _nodes(spec, gpus_needed)
        k = smallest_fat_tree(_nodes(spec, gpus_needed) * spec.gpus_per_node, spec.hosts_per_edge)
    else:
        nodes, k = spec.nodes, spec.k
    return fat_tree(
        k,
        nodes=nodes,
        gpus_per_node=spec.gpus_per_node,
        hosts_per_edge=spec.hosts_per_edge,
        oversubscription=spec.oversubscription,
        rates=spec.rates,
    )


def _dragonfly(spec: DragonflySpec, gpus_needed: int | None) -> Topology:
    given = {
        "routers_per_group": spec.routers_per_group,
        "global_ports": spec.global_ports,
        "groups": spec.groups,
    }
    if spec.hosts_per_router is None:
        nodes: int | None = _nodes(spec, gpus_needed)
        shape = DragonflyShape.smallest_for(_nodes(spec, gpus_needed) * spec.gpus_per_node, **given)
    else:
        nodes, shape = spec.nodes, DragonflyShape.balanced(spec.hosts_per_router, **given)
    return dragonfly(
        shape,
        nodes=nodes,
        gpus_per_node=spec.gpus_per_node,
        oversubscription=spec.oversubscription,
        global_latency_ps=spec.global_latency,
        rates=spec.rates,
    )


def _nodes(spec: _ServerSpec, gpus_needed: int | None) -> int:
    if spec.nodes is None:
        if gpus_needed is None:
            raise InputError("topology nodes: found none, expected a number of servers")
        return max(1, -(-gpus_needed // spec.gpus_per_node))
    gpus = spec.nodes * spec.gpus_per_node
    check_size("topology", gpus, 0)
    if gpus < (gpus_needed or 0):
        raise InputError(f"topology nodes: found {spec.nodes} with {gpus} GPUs, expected at least {gpus_needed} GPUs")
    return spec.nodes


def _first_line(error: ValidationError, document: Mapping[str, object], source: str) -> str:
    first = error.errors(include_url=False)[0]
    place = first["loc"]
    path = [str(part) for part in (place[1:] if place and place[0] in SPECS else place)]  # after the variant's tag
    where = " ".join([source, ".".join(path)]).strip()
    match first["type"]:
        case "union_tag_not_found" | "union_tag_invalid":
            found = quoted(document["kind"]) if "kind" in document else "none"
            return f"{where} kind: found {found}, expected {', '.join(KINDS)}, or file: PATH"
        case "extra_forbidden":
            fields = list(SPECS[str(kind_of(document))].model_fields)
            nearest = difflib.get_close_matches(path[-1], fields, n=1, cutoff=0)
            return f"{where}: unknown field, expected one of {', '.join(fields)}; nearest: {nearest[0]}"
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return f"{where}: {str(cause).partition(': ')[2]}"
    return f"{where}: found {quoted(first['input'])}, expected: {first['msg'].lower()}"
