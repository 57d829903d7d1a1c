"""SimAI's topology text.

Line 1 is ``nodes gpus_per_server nvswitches switches links gpu_type``, line 2 the ids of NVSwitches and then of
switches, and every further line a cable: ``src dst rate delay error_rate``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from netsim.errors import InputError
from netsim.topology import DuplexLink, LinkKind, NodeKind, Topology
from netsim.units import PS_PER_MS, format_rate_bps, parse_rate_bps, parse_time_ps

_HEADER: Final = "node_num gpus_per_server nvswitch_num switch_num link_num gpu_type"


def from_simai(text: str, source: str = "SimAI topology") -> Topology:
    """Reads SimAI's text. A switch with GPUs is a leaf if there are switches without, which then are spines.

    Raises:
        InputError: naming ``source``, the line and the field. Links with a loss rate are refused: losses are not
            modelled here.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or len(lines[0][1]) != 6:
        raise InputError(f"{source} line 1: expected `{_HEADER}`")
    node_count, gpus_per_node, nvswitch_count, switch_count, link_count = (
        _integer(field, f"{source} line 1 {name}")
        for field, name in zip(lines[0][1], _HEADER.split()[:5], strict=False)
    )
    ids = lines[1][1] if nvswitch_count + switch_count else []
    special = [_node(field, node_count, f"{source} line 2") for field in ids]
    if len(special) != nvswitch_count + switch_count or len(set(special)) != len(special):
        raise InputError(
            f"{source} line 2: found {len(special)} ids, expected {nvswitch_count} different ids of NVSwitches and "
            f"{switch_count} of switches"
        )
    rows = lines[2 if ids else 1 :]
    if len(rows) != link_count:
        raise InputError(f"{source}: found {len(rows)} link lines, expected {link_count} (line 1, link_num)")
    nvswitches, switches = set(special[:nvswitch_count]), set(special[nvswitch_count:])
    gpus = set(range(node_count)) - nvswitches - switches
    cables = [_cable(fields, f"{source} line {number}", node_count, switches) for number, fields in rows]
    kinds = _kinds(node_count, nvswitches, gpus, cables)
    return Topology.from_cables(_named(kinds), cables, gpus_per_node=gpus_per_node)


def to_simai(topology: Topology, gpu_type: str = "H100") -> str:
    """SimAI's text of a topology made of cables.

    Raises:
        InputError: where some link has no equal opposite link, which the format cannot express.
    """
    cables = topology.cables()
    if cables is None:
        raise InputError("SimAI topology: found a link without an equal opposite one, expected cables")
    kinds = topology.node_kind.tolist()
    nvswitches = [node for node, kind in enumerate(kinds) if kind == NodeKind.NVSWITCH]
    switches = [node for node, kind in enumerate(kinds) if kind not in (NodeKind.GPU, NodeKind.NVSWITCH)]
    counts = (topology.nodes, topology.gpus_per_node, len(nvswitches), len(switches), len(cables))
    lines = [" ".join(map(str, (*counts, gpu_type))), " ".join(map(str, nvswitches + switches))]
    lines += [f"{c.a} {c.b} {format_rate_bps(c.capacity_bps)} {_milliseconds(c.latency_ps)} 0" for c in cables]
    return "\n".join(lines) + "\n"


def _cable(fields: list[str], where: str, node_count: int, switches: set[int]) -> DuplexLink:
    if len(fields) != 5:
        raise InputError(f"{where}: found {len(fields)} fields, expected `src dst rate delay error_rate`")
    a, b = (_node(field, node_count, f"{where} {name}") for field, name in zip(fields[:2], ("src", "dst"), strict=True))
    rate, delay = parse_rate_bps(fields[2], f"{where} rate"), parse_time_ps(fields[3], f"{where} delay")
    try:
        is_lossless = float(fields[4]) == 0
    except ValueError:
        is_lossless = False
    if not is_lossless:
        raise InputError(f"{where} error_rate: found {fields[4]!r}, expected 0 (losses are not modelled)")
    match (a in switches) + (b in switches):
        case 0:
            kind = LinkKind.NVLINK
        case 1:
            kind = LinkKind.NIC
        case _:
            kind = LinkKind.FABRIC
    return DuplexLink(a, b, rate, delay, kind)


def _kinds(node_count: int, nvswitches: set[int], gpus: set[int], cables: Iterable[DuplexLink]) -> list[NodeKind]:
    nics = [c for c in cables if c.kind is LinkKind.NIC]
    access = {end for c in nics for end in (c.a, c.b) if end not in gpus}
    has_spines = len(access) < node_count - len(gpus) - len(nvswitches)
    kinds = []
    for node in range(node_count):
        if node in gpus:
            kinds.append(NodeKind.GPU)
        elif node in nvswitches:
            kinds.append(NodeKind.NVSWITCH)
        elif node not in access:
            kinds.append(NodeKind.SPINE)
        else:
            kinds.append(NodeKind.LEAF if has_spines else NodeKind.SWITCH)
    return kinds


def _named(kinds: list[NodeKind]) -> list[tuple[NodeKind, str]]:
    counts = dict.fromkeys(NodeKind, 0)
    named = []
    for kind in kinds:
        named.append((kind, f"{kind.name.lower()}{counts[kind]}"))
        counts[kind] += 1
    return named


def _integer(field: str, where: str) -> int:
    if not field.isascii() or not field.isdigit():
        raise InputError(f"{where}: found {field!r}, expected a whole number")
    return int(field)


def _node(field: str, node_count: int, where: str) -> int:
    node = _integer(field, where)
    if node >= node_count:
        raise InputError(f"{where}: found node {node}, expected 0…{node_count - 1}")
    return node


def _milliseconds(time_ps: int) -> str:
    whole, rest = divmod(time_ps, PS_PER_MS)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + "ms"
