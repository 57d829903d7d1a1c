"""Configuration of a topology: which builder, with which numbers."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    TypeAdapter,
    ValidationError,
)

from netsim.errors import InputError
from netsim.topologies.defaults import LINK_LATENCY_PS, NIC_BPS, NVLINK_BPS, NVLINK_LATENCY_PS, LinkRates
from netsim.topologies.rail_optimized import rail_optimized
from netsim.topologies.single_switch import single_switch
from netsim.topology import Topology
from netsim.topology_file import read_topology
from netsim.units import format_rate_bps, format_time_ps, read_rate_bps, read_time_ps

Rate = Annotated[int, BeforeValidator(read_rate_bps), PlainSerializer(format_rate_bps, when_used="json")]
"""Bit/s, given as text with a unit."""
Time = Annotated[int, BeforeValidator(read_time_ps), PlainSerializer(format_time_ps, when_used="json")]
"""Picoseconds, given as text with a unit."""


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _GpuSpec(_Spec):
    nodes: int | None = Field(None, ge=1, description="servers; derived from the GPUs needed if omitted")
    nic: Rate = Field(NIC_BPS, description="rate of a GPU's NIC, per direction")
    nvlink: Rate = Field(NVLINK_BPS, description="NVLink rate of a GPU, per direction")
    link_latency: Time = Field(LINK_LATENCY_PS, description="of a NIC link and of a link between switches")
    nvlink_latency: Time = Field(NVLINK_LATENCY_PS, description="between a GPU and its NVSwitch")

    @property
    def rates(self) -> LinkRates:
        return LinkRates(self.nic, self.link_latency, self.nvlink, self.nvlink_latency)


class RailOptimizedSpec(_GpuSpec):
    """`netsim.topologies.rail_optimized`."""

    kind: Literal["rail_optimized"] = "rail_optimized"
    gpus_per_node: int = Field(8, ge=1)
    nodes_per_segment: int | None = Field(None, ge=1, description="NIC ports of a leaf; the servers, at most 64")
    spines: int | None = Field(None, ge=1, description="uplinks of a leaf")
    oversubscription: float = Field(1, gt=0, description="rate of a leaf's NIC ports over that of its uplinks")


class SingleSwitchSpec(_GpuSpec):
    """`netsim.topologies.single_switch`."""

    kind: Literal["single_switch"] = "single_switch"
    gpus_per_node: int = Field(1, ge=1)


class FileSpec(_Spec):
    """A topology from a file: YAML or SimAI's text."""

    kind: Literal["file"] = "file"
    file: Path


def _tag(value: object) -> str | None:
    if isinstance(value, Mapping):
        return str(value["kind"]) if "kind" in value else ("file" if "file" in value else None)
    return getattr(value, "kind", None)


TopologySpec = Annotated[
    Annotated[RailOptimizedSpec, Tag("rail_optimized")]
    | Annotated[SingleSwitchSpec, Tag("single_switch")]
    | Annotated[FileSpec, Tag("file")],
    Discriminator(_tag),
]
"""One of the specs, told apart by ``kind``; ``{file: T.yaml}`` needs none."""

_SPECS: dict[str, type[_Spec]] = {
    "rail_optimized": RailOptimizedSpec,
    "single_switch": SingleSwitchSpec,
    "file": FileSpec,
}


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

    Without ``nodes``, as many servers as ``gpus_needed`` fill.

    Raises:
        InputError: naming both numbers where the topology has fewer GPUs than are needed, or where neither ``nodes``
            nor ``gpus_needed`` is known.
    """
    match spec:
        case RailOptimizedSpec():
            topology = rail_optimized(
                _nodes(spec, spec.gpus_per_node, gpus_needed),
                spec.gpus_per_node,
                nodes_per_segment=spec.nodes_per_segment,
                spines=spec.spines,
                oversubscription=spec.oversubscription,
                rates=spec.rates,
            )
        case SingleSwitchSpec():
            nodes = _nodes(spec, spec.gpus_per_node, gpus_needed)
            topology = single_switch(nodes, spec.gpus_per_node, rates=spec.rates)
        case FileSpec():
            topology = read_topology(spec.file)
            if topology.gpus < (gpus_needed or 0):
                raise InputError(f"{spec.file} gpus: found {topology.gpus}, expected at least {gpus_needed}")
    return topology


def _nodes(spec: _GpuSpec, gpus_per_node: int, gpus_needed: int | None) -> int:
    if spec.nodes is None:
        if gpus_needed is None:
            raise InputError("topology nodes: found none, expected a number of servers")
        return max(1, -(-gpus_needed // gpus_per_node))
    gpus = spec.nodes * gpus_per_node
    if gpus < (gpus_needed or 0):
        raise InputError(f"topology nodes: found {spec.nodes} with {gpus} GPUs, expected at least {gpus_needed} GPUs")
    return spec.nodes


def _first_line(error: ValidationError, document: Mapping[str, object], source: str) -> str:
    first = error.errors(include_url=False)[0]
    place = first["loc"]
    path = [str(part) for part in (place[1:] if place and place[0] in _SPECS else place)]  # after the variant's tag
    where = " ".join([source, ".".join(path)]).strip()
    match first["type"]:
        case "union_tag_not_found" | "union_tag_invalid":
            found = repr(document["kind"]) if "kind" in document else "none"
            return f"{where} kind: found {found}, expected rail_optimized, single_switch, or file: PATH"
        case "extra_forbidden":
            fields = list(_SPECS[str(_tag(document))].model_fields)
            nearest = difflib.get_close_matches(path[-1], fields, n=1, cutoff=0)
            return f"{where}: unknown field, expected one of {', '.join(fields)}; nearest: {nearest[0]}"
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return f"{where}: {str(cause).partition(': ')[2]}"
    return f"{where}: found {first['input']!r}, expected: {first['msg'].lower()}"
