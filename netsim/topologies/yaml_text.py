"""Topologies as YAML: an explicit list of nodes and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeGuard

import numpy as np

from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.yaml_text import parse_yaml_mapping
from netsim.topologies.yaml_rows import is_plain, plain_document
from netsim.topology import CableTable, LinkKind, NodeKind, Topology
from netsim.units import format_rate_bps, format_time_ps, read_rate_bps, read_time_ps

_FIELDS: Final = ("gpus_per_node", "nodes", "links", "directed_links")
_MOST_NODES: Final = 50_000_000
"""Keys and values of a document: 7 for a cable, of which 100,000 GPUs have about a million."""
_LINK: Final = "[src, dst, rate, latency, nvlink|nic|fabric|pcie]"


def to_yaml(topology: Topology) -> str:
    """YAML that `from_yaml` reads back into an equal topology.

    ``nodes`` are ``[kind, name]`` in the order of node numbers; ``links`` are cables as
    ``[src, dst, rate, latency, kind]``, or ``directed_links`` where directions differ.
    """
    cables = topology.cables()
    section, rows = ("links", cables) if cables is not None else ("directed_links", topology.directed_links())
    names = [_scalar(name) for name in topology.node_name]
    node_kind = {int(kind): kind.name.lower() for kind in NodeKind}
    link_kind = {int(kind): kind.name.lower() for kind in LinkKind}
    rate = {bps: format_rate_bps(bps) for bps in np.unique(rows.capacity_bps).tolist()}
    latency = {ps: format_time_ps(ps) for ps in np.unique(rows.latency_ps).tolist()}
    columns = (rows.a, rows.b, rows.capacity_bps, rows.latency_ps, rows.kind)
    lines = [f"gpus_per_node: {topology.gpus_per_node}"]
    nodes = zip(topology.node_kind.tolist(), names, strict=True)
    lines += _section("nodes", [f"[{node_kind[kind]}, {name}]" for kind, name in nodes])
    links = zip(*(column.tolist() for column in columns), strict=True)
    lines += _section(
        section,
        [f"[{names[a]}, {names[b]}, {rate[bps]}, {latency[ps]}, {link_kind[kind]}]" for a, b, bps, ps, kind in links],
    )
    return "\n".join(lines) + "\n"


def _section(name: str, rows: list[str]) -> list[str]:
    return [f"{name}:", *(f"- {row}" for row in rows)] if rows else [f"{name}: []"]


def _scalar(name: str) -> str:
    """A name as YAML reads it back: as it is where it cannot be taken for anything else, else quoted."""
    import yaml

    if is_plain(name):
        return name
    return str(yaml.safe_dump(name, default_style='"', width=2**31)).strip()


def from_yaml(text: str, source: str = "topology") -> Topology:
    """Reads what `to_yaml` writes.

    Raises:
        InputError: naming ``source``, the field, what was found and what was expected.
    """
    return from_document(load_yaml(text, source), source)


def load_yaml(text: str, source: str) -> Mapping[str, object]:
    """The mapping that a YAML text holds."""
    if (plain := plain_document(text)) is not None:
        return plain
    return parse_yaml_mapping(text, source, "a topology", _MOST_NODES)


def from_document(document: Mapping[str, object], source: str) -> Topology:
    """`from_yaml` of an already loaded mapping."""
    for key in document:
        if key not in _FIELDS:
            raise InputError(f"{source} {key}: unknown field, expected one of {', '.join(_FIELDS)}")
    gpus_per_node = document.get("gpus_per_node")
    if not isinstance(gpus_per_node, int) or isinstance(gpus_per_node, bool):
        raise InputError(f"{source} gpus_per_node: found {quoted(gpus_per_node)}, expected a whole number")
    nodes = _nodes(document.get("nodes"), f"{source} nodes")
    ids = {name: node for node, (_, name) in enumerate(nodes)}
    cables = _links(document, "links", ids, source)
    directed = _links(document, "directed_links", ids, source)
    kinds, names = [kind for kind, _ in nodes], [name for _, name in nodes]
    try:
        return _with_directed(Topology.from_table(kinds, names, cables, gpus_per_node=gpus_per_node), directed)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _with_directed(topology: Topology, links: CableTable) -> Topology:
    if not len(links):
        return topology
    every = CableTable.joined([topology.directed_links(), links])
    return Topology(
        node_kind=topology.node_kind,
        node_name=topology.node_name,
        link_src=every.a,
        link_dst=every.b,
        capacity_bps=every.capacity_bps,
        latency_ps=every.latency_ps,
        link_kind=every.kind,
        gpus_per_node=topology.gpus_per_node,
    )


def _nodes(rows: object, where: str) -> list[tuple[NodeKind, str]]:
    kinds = {kind.name.lower(): kind for kind in NodeKind}
    nodes = []
    for row in rows if isinstance(rows, list) else [rows]:
        if not _is_row(row, 2) or row[0] not in kinds or not isinstance(row[1], str):
            raise InputError(f"{where}: found {quoted(row)}, expected [{'|'.join(kinds)}, name]")
        nodes.append((kinds[row[0]], row[1]))
    for name, count in Counter(name for _, name in nodes).items():
        if count > 1:
            raise InputError(f"{where}: found {quoted(name)} {count} times, expected unique names")
    return nodes


def _is_row(row: object, length: int) -> TypeGuard[list[str | int]]:
    return isinstance(row, list) and len(row) == length and all(isinstance(field, str | int) for field in row)


def _links(document: Mapping[str, object], section: str, ids: Mapping[str, int], source: str) -> CableTable:
    """The rows of a section; each way of writing a rate or a latency is parsed once."""
    rows = document.get(section, [])
    if not isinstance(rows, list):
        raise InputError(f"{source} {section}: found {quoted(rows)}, expected a list of {_LINK}")
    kinds = {kind.name.lower(): int(kind) for kind in LinkKind}
    rate_bps: dict[str | int, int] = {}
    latency_ps: dict[str | int, int] = {}
    links = []
    for index, row in enumerate(rows):
        where = f"{source} {section}[{index}]"
        if not _is_row(row, 5) or row[4] not in kinds:
            raise InputError(f"{where}: found {quoted(row)}, expected {_LINK}")
        src, dst, rate, latency, kind = row
        for name in (src, dst):
            if name not in ids:
                raise InputError(f"{where}: found unknown node {quoted(name)}, expected a name listed in nodes")
        if rate not in rate_bps:
            rate_bps[rate] = read_rate_bps(rate, f"{where} rate")
        if latency not in latency_ps:
            latency_ps[latency] = read_time_ps(latency, f"{where} latency")
        links.append((ids[str(src)], ids[str(dst)], rate_bps[rate], latency_ps[latency], kinds[str(kind)]))
    a, b, capacities_bps, latencies_ps, link_kinds = np.array(links, dtype=np.int64).reshape(-1, 5).T
    return CableTable.between(a, b, capacity_bps=capacities_bps, latency_ps=latencies_ps, kind=link_kinds)
