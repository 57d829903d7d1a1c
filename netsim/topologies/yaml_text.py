"""Topologies as YAML: an explicit list of nodes and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeGuard

import numpy as np

from netsim.errors import InputError
from netsim.topology import DuplexLink, LinkKind, NodeKind, Topology
from netsim.units import format_rate_bps, format_time_ps, read_rate_bps, read_time_ps

_FIELDS: Final = ("gpus_per_node", "nodes", "links", "directed_links")
_LINK: Final = "[src, dst, rate, latency, nvlink|nic|fabric]"


def to_yaml(topology: Topology) -> str:
    """YAML that `from_yaml` reads back into an equal topology.

    ``nodes`` are ``[kind, name]`` in the order of node numbers; ``links`` are cables as
    ``[src, dst, rate, latency, kind]``, or ``directed_links`` where directions differ.
    """
    import yaml

    cables = topology.cables()
    section, rows = ("links", cables) if cables is not None else ("directed_links", topology.directed_links())
    names = topology.node_name
    document = {
        "gpus_per_node": topology.gpus_per_node,
        "nodes": [
            [NodeKind(kind).name.lower(), name] for kind, name in zip(topology.node_kind.tolist(), names, strict=True)
        ],
        section: [
            [names[r.a], names[r.b], format_rate_bps(r.capacity_bps), format_time_ps(r.latency_ps), r.kind.name.lower()]
            for r in rows
        ],
    }
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, default_flow_style=None, width=120))


def from_yaml(text: str, source: str = "topology") -> Topology:
    """Reads what `to_yaml` writes.

    Raises:
        InputError: naming ``source``, the field, what was found and what was expected.
    """
    return from_document(load_yaml(text, source), source)


def load_yaml(text: str, source: str) -> Mapping[str, object]:
    """The mapping that a YAML text holds."""
    import yaml

    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise InputError(f"{source}: expected YAML, found {' '.join(str(error).split())}") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise InputError(f"{source}: found {type(document).__name__}, expected a mapping with text keys")
    return document


def from_document(document: Mapping[str, object], source: str) -> Topology:
    """`from_yaml` of an already loaded mapping."""
    for key in document:
        if key not in _FIELDS:
            raise InputError(f"{source} {key}: unknown field, expected one of {', '.join(_FIELDS)}")
    gpus_per_node = document.get("gpus_per_node")
    if not isinstance(gpus_per_node, int) or isinstance(gpus_per_node, bool):
        raise InputError(f"{source} gpus_per_node: found {gpus_per_node!r}, expected a whole number")
    nodes = _nodes(document.get("nodes"), f"{source} nodes")
    ids = {name: node for node, (_, name) in enumerate(nodes)}
    cables = [_link(row, ids, where) for row, where in _rows(document, "links", source)]
    directed = [_link(row, ids, where) for row, where in _rows(document, "directed_links", source)]
    try:
        return _with_directed(Topology.from_cables(nodes, cables, gpus_per_node=gpus_per_node), directed)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def _with_directed(topology: Topology, links: Sequence[DuplexLink]) -> Topology:
    if not links:
        return topology
    return Topology(
        node_kind=topology.node_kind,
        node_name=topology.node_name,
        link_src=np.append(topology.link_src, [x.a for x in links]).astype(np.int32),
        link_dst=np.append(topology.link_dst, [x.b for x in links]).astype(np.int32),
        capacity_bps=np.append(topology.capacity_bps, [x.capacity_bps for x in links]).astype(np.int64),
        latency_ps=np.append(topology.latency_ps, [x.latency_ps for x in links]).astype(np.int64),
        link_kind=np.append(topology.link_kind, [x.kind for x in links]).astype(np.int8),
        gpus_per_node=topology.gpus_per_node,
    )


def _nodes(rows: object, where: str) -> list[tuple[NodeKind, str]]:
    kinds = {kind.name.lower(): kind for kind in NodeKind}
    nodes = []
    for row in rows if isinstance(rows, list) else [rows]:
        if not _is_row(row, 2) or row[0] not in kinds or not isinstance(row[1], str):
            raise InputError(f"{where}: found {row!r}, expected [{'|'.join(kinds)}, name]")
        nodes.append((kinds[row[0]], row[1]))
    for name, count in Counter(name for _, name in nodes).items():
        if count > 1:
            raise InputError(f"{where}: found {name!r} {count} times, expected unique names")
    return nodes


def _is_row(row: object, length: int) -> TypeGuard[list[str | int]]:
    return isinstance(row, list) and len(row) == length and all(isinstance(field, str | int) for field in row)


def _rows(document: Mapping[str, object], section: str, source: str) -> list[tuple[object, str]]:
    rows = document.get(section, [])
    if not isinstance(rows, list):
        raise InputError(f"{source} {section}: found {rows!r}, expected a list of {_LINK}")
    return [(row, f"{source} {section}[{i}]") for i, row in enumerate(rows)]


def _link(row: object, ids: Mapping[str, int], where: str) -> DuplexLink:
    kinds = {kind.name.lower(): kind for kind in LinkKind}
    if not _is_row(row, 5) or row[4] not in kinds:
        raise InputError(f"{where}: found {row!r}, expected {_LINK}")
    for name in row[:2]:
        if name not in ids:
            raise InputError(f"{where}: found unknown node {name!r}, expected a name listed in nodes")
    src, dst, rate, latency, kind = row
    return DuplexLink(
        ids[str(src)],
        ids[str(dst)],
        read_rate_bps(rate, f"{where} rate"),
        read_time_ps(latency, f"{where} latency"),
        kinds[str(kind)],
    )
