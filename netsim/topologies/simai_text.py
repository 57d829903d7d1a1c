"""SimAI's topology text.

Line 1 is ``nodes gpus_per_server nvswitches switches links gpu_type``, line 2 the ids of NVSwitches and then of
switches, and every further line a cable: ``src dst rate delay error_rate``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from boundary.numbers import whole_number
from boundary.quoting import quoted
from netsim.topologies.checks import MAX_CABLES
from netsim.topology import CableTable, LinkKind, NodeKind, Topology
from netsim.units import PS_PER_MS, format_rate_bps, parse_rate_bps, parse_time_ps

_HEADER: Final = "node_num gpus_per_server nvswitch_num switch_num link_num gpu_type"


def from_simai(text: str, source: str = "SimAI topology") -> Topology:
    """Reads SimAI's text.

    The format does not tell tiers: a switch with GPUs is a leaf if there are switches without; of these, those with a
    leaf are spines and the others cores. Where all switches have GPUs they are plain switches.

    Raises:
        InputError: naming ``source``, the line and the field. Links with a loss rate are refused: losses are not
            modelled here.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or len(lines[0][1]) != 6:
        raise InputError(f"{source} line 1: expected `{_HEADER}`")
    node_count, gpus_per_node, nvswitch_count, switch_count, link_count = (
        whole_number(field, f"{source} line 1 {name}", "a number", 0, MAX_CABLES)
        for field, name in zip(lines[0][1], _HEADER.split()[:5], strict=False)
    )
    ids = lines[1][1] if nvswitch_count + switch_count and len(lines) > 1 else []
    special = [_node(field, node_count, f"{source} line 2") for field in ids]
    if len(special) != nvswitch_count + switch_count or len(set(special)) != len(special):
        raise InputError(
            f"{source} line 2: found {len(special)} ids, expected {nvswitch_count} different ids of NVSwitches and "
            f"{switch_count} of switches"
        )
    rows = lines[2 if ids else 1 :]
    if len(rows) != link_count:
        raise InputError(f"{source}: found {len(rows)} link lines, expected {link_count} (line 1, link_num)")
    kind = np.full(node_count, NodeKind.GPU, dtype=np.int8)
    kind[special[:nvswitch_count]] = NodeKind.NVSWITCH
    kind[special[nvswitch_count:]] = NodeKind.SWITCH
    cables = _cables(rows, kind, source)
    _tell_tiers(kind, cables)
    return Topology.from_table(kind, _names(kind.tolist()), cables, gpus_per_node=gpus_per_node)


def to_simai(topology: Topology, gpu_type: str = "H100") -> str:
    """SimAI's text of a topology made of cables.

    Raises:
        InputError: where some link has no equal opposite link, which the format cannot express.
    """
    cables = topology.cables()
    if cables is None:
        raise InputError("SimAI topology: found a link without an equal opposite one, expected cables")
    if (topology.node_kind == NodeKind.HOST).any():
        raise InputError(
            "SimAI topology: found a host, which the format does not know, expected a topology without pcie"
        )
    is_nvswitch = topology.node_kind == NodeKind.NVSWITCH
    nvswitches = np.flatnonzero(is_nvswitch).tolist()
    switches = np.flatnonzero((topology.node_kind != NodeKind.GPU) & ~is_nvswitch).tolist()
    counts = (topology.nodes, topology.gpus_per_node, len(nvswitches), len(switches), len(cables))
    lines = [" ".join(map(str, (*counts, gpu_type))), " ".join(map(str, nvswitches + switches))]
    rate = {bps: format_rate_bps(bps) for bps in np.unique(cables.capacity_bps).tolist()}
    delay = {ps: _milliseconds(ps) for ps in np.unique(cables.latency_ps).tolist()}
    columns = (cables.a, cables.b, cables.capacity_bps, cables.latency_ps)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    lines += [f"{a} {b} {rate[bps]} {delay[ps]} 0" for a, b, bps, ps in rows]
    return "\n".join(lines) + "\n"


def _cables(rows: list[tuple[int, list[str]]], kind: NDArray[np.int8], source: str) -> CableTable:
    """[rows] The cables; each way of writing a rate or a delay is parsed once."""
    rate_bps: dict[str, int] = {}
    delay_ps: dict[str, int] = {}
    ends, capacities_bps, latencies_ps = [], [], []
    for number, fields in rows:
        where = f"{source} line {number}"
        if len(fields) != 5:
            raise InputError(f"{where}: found {len(fields)} fields, expected `src dst rate delay error_rate`")
        src, dst, rate, delay, error_rate = fields
        ends.append((_node(src, len(kind), f"{where} src"), _node(dst, len(kind), f"{where} dst")))
        if rate not in rate_bps:
            rate_bps[rate] = parse_rate_bps(rate, f"{where} rate")
        if delay not in delay_ps:
            delay_ps[delay] = parse_time_ps(delay, f"{where} delay")
        if error_rate != "0":
            _check_lossless(error_rate, where)
        capacities_bps.append(rate_bps[rate])
        latencies_ps.append(delay_ps[delay])
    a, b = np.array(ends, dtype=np.int32).reshape(-1, 2).T
    switch_ends = (kind[a] == NodeKind.SWITCH).astype(int) + (kind[b] == NodeKind.SWITCH)
    kind_by_switch_ends = np.array([LinkKind.NVLINK, LinkKind.NIC, LinkKind.FABRIC])
    return CableTable.between(
        a, b, capacity_bps=capacities_bps, latency_ps=latencies_ps, kind=kind_by_switch_ends[switch_ends]
    )


def _check_lossless(error_rate: str, where: str) -> None:
    try:
        is_lossless = float(error_rate) == 0
    except ValueError:
        is_lossless = False
    if not is_lossless:
        raise InputError(f"{where} error_rate: found {quoted(error_rate)}, expected 0 (losses are not modelled)")


def _tell_tiers(kind: NDArray[np.int8], cables: CableTable) -> None:
    """Makes leaves, spines and cores of plain switches, in place, where some have no GPU."""
    to_gpu = cables.kind == LinkKind.NIC
    access = np.zeros(len(kind), dtype=bool)
    access[cables.a[to_gpu]] = access[cables.b[to_gpu]] = True
    is_switch = kind == NodeKind.SWITCH
    is_leaf = access & is_switch
    if np.array_equal(is_leaf, is_switch):
        return
    kind[is_switch] = NodeKind.CORE
    for one, other in ((cables.a, cables.b), (cables.b, cables.a)):
        above = other[is_leaf[one] & is_switch[other]]
        kind[above] = NodeKind.SPINE
    kind[is_leaf] = NodeKind.LEAF


def _names(kinds: list[int]) -> list[str]:
    prefix = {int(kind): kind.name.lower() for kind in NodeKind}
    counts = dict.fromkeys(prefix, 0)
    names = []
    for kind in kinds:
        names.append(f"{prefix[kind]}{counts[kind]}")
        counts[kind] += 1
    return names


def _node(field: str, node_count: int, where: str) -> int:
    return whole_number(field, where, "a node", 0, node_count - 1)


def _milliseconds(time_ps: int) -> str:
    whole, rest = divmod(time_ps, PS_PER_MS)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".") + "ms"
