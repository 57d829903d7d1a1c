"""Specs of topologies: the fields of every kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from boundary.fields import Count, Ratio
from netsim.topologies.checks import MAX_CABLES
from netsim.topologies.defaults import (
    LINK_LATENCY_PS,
    NIC_BPS,
    NVLINK5_BPS,
    NVLINK_BPS,
    NVLINK_LATENCY_PS,
    PCIE_BPS,
    PCIE_LATENCY_PS,
    LinkRates,
)
from netsim.topologies.nvswitch import NVL72_GPUS
from netsim.topologies.simai_templates import (
    DCN_PLUS_SPINE_PORTS,
    DCN_PLUS_SPINES,
    HPN_SPINES,
    SPECTRUM_X_SPINE_PORTS,
    SPECTRUM_X_SPINES,
    Uplinks,
)
from netsim.units.fields import Latency, Rate

Size = Annotated[Count, Field(le=MAX_CABLES)]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class PcieSpec(_Spec):
    """`netsim.topologies.with_hosts`: the CPU memory of every server, and PCIe between it and the GPUs."""

    rate: Rate = Field(PCIE_BPS, description="of a PCIe link, per direction")
    latency: Latency = Field(PCIE_LATENCY_PS, description="of a PCIe link")
    gpus_per_switch: Size = Field(1, description="GPUs that share a PCIe switch and its link to the host")


class _DomainSpec(_Spec):
    nvlink: Rate = Field(NVLINK_BPS, description="NVLink rate of a GPU, per direction")
    nvlink_latency: Latency = Field(NVLINK_LATENCY_PS, description="between a GPU and its NVSwitch")
    pcie: PcieSpec | None = Field(None, description="hosts and PCIe; none if omitted")

    @property
    def rates(self) -> LinkRates:
        return LinkRates(nvlink_bps=self.nvlink, nvlink_latency_ps=self.nvlink_latency)


_ALONE_OR_JOINED = (
    "GPUs of a server, which an NVSwitch joins; 1: every GPU has its NIC alone, and tensor parallelism crosses NICs"
)
"""Of topologies whose hosts need not be servers."""


class NvswitchSpec(_DomainSpec):
    """`netsim.topologies.nvswitch`: one server."""

    kind: Literal["nvswitch"] = "nvswitch"
    gpus_per_node: Size = Field(8, description="GPUs of a server, which an NVSwitch joins")
    nvswitches: Size = Field(1, description="nodes that share the NVLink rate of a GPU; 1 stands for all planes")


class Nvl72Spec(_DomainSpec):
    """`netsim.topologies.nvl72`: one rack."""

    kind: Literal["nvl72"] = "nvl72"
    nvlink: Rate = Field(NVLINK5_BPS, description="NVLink rate of a GPU, per direction")
    nvswitches: Size = Field(1, description="nodes that share the NVLink rate of a GPU; 1 stands for all planes")

    @property
    def gpus_per_node(self) -> int:
        return NVL72_GPUS


class _GpuSpec(_DomainSpec):
    nodes: Size | None = Field(None, description="servers; derived from the GPUs needed if omitted")
    gpus_per_node: Size = Field(8, description="GPUs of a server, which an NVSwitch joins")
    nic: Rate = Field(NIC_BPS, description="rate of a GPU's NIC, all its ports together, per direction")
    link_latency: Latency = Field(LINK_LATENCY_PS, description="of a NIC link and of a link between switches")

    @property
    def rates(self) -> LinkRates:
        return LinkRates(self.nic, self.link_latency, self.nvlink, self.nvlink_latency)


class SingleSwitchSpec(_GpuSpec):
    """`netsim.topologies.single_switch`."""

    kind: Literal["single_switch"] = "single_switch"
    gpus_per_node: Size = Field(1, description=_ALONE_OR_JOINED)


class RailOptimizedSpec(_GpuSpec):
    """`netsim.topologies.rail_optimized`."""

    kind: Literal["rail_optimized"] = "rail_optimized"
    rails: Size | None = Field(None, description="NICs of a server on leaves of their own; all of them if omitted")
    nvswitches_per_node: Size = 1
    nodes_per_segment: Size | None = Field(
        None, description="servers that a leaf has ports for; all, with at most 64 NICs to a leaf, if omitted"
    )
    spines: Size | None = Field(None, description="uplinks of a leaf")
    oversubscription: Ratio = Field(1, description="rate of a leaf's NIC ports over that of its uplinks")


class FatTreeSpec(_GpuSpec):
    """`netsim.topologies.fat_tree`."""

    kind: Literal["fat_tree"] = "fat_tree"
    gpus_per_node: Size = Field(1, description=_ALONE_OR_JOINED)
    k: Size | None = Field(
        None, ge=2, multiple_of=2, description="ports of a switch; the least that suffices if omitted"
    )
    hosts_per_edge: Size | None = Field(None, description="NIC ports of an edge switch; k/2 if omitted")
    oversubscription: Ratio = Field(1, description="rate of an edge switch's NIC ports over that of its uplinks")


class DragonflySpec(_GpuSpec):
    """`netsim.topologies.dragonfly`; numbers left out are those of the balanced network, a = 2p = 2h."""

    kind: Literal["dragonfly"] = "dragonfly"
    gpus_per_node: Size = Field(1, description=_ALONE_OR_JOINED)
    hosts_per_router: Size | None = Field(None, description="p; the least that suffices if omitted")
    routers_per_group: Size | None = Field(None, description="a; 2p if omitted")
    global_ports: Size | None = Field(None, description="h, of a router; p if omitted")
    groups: Size | None = Field(None, description="g; a·h + 1 if omitted")
    oversubscription: Ratio = Field(1, description="rate of a router's NIC ports over that of its global ports")
    global_latency: Latency | None = Field(None, description="of a link between groups; link_latency if omitted")


class _TemplateSpec(_GpuSpec):
    uplink: Rate | None = Field(None, description="rate of a link between switches; 400Gbps if omitted")
    oversubscription: Ratio | None = Field(
        None, description="in place of uplink: rate of a leaf's NIC ports over that of its uplinks"
    )
    spines: Size

    @property
    def uplinks(self) -> Uplinks:
        return Uplinks(self.spines, self.uplink, self.oversubscription)


class SpectrumXSpec(_TemplateSpec):
    """`netsim.topologies.spectrum_x`."""

    kind: Literal["spectrum_x"] = "spectrum_x"
    spines: Size = SPECTRUM_X_SPINES
    spine_ports: Size = Field(SPECTRUM_X_SPINE_PORTS, description="most leaves of a spine")


class AlibabaHpnSpec(_TemplateSpec):
    """`netsim.topologies.alibaba_hpn`."""

    kind: Literal["alibaba_hpn"] = "alibaba_hpn"
    tors: int = Field(2, ge=1, le=2, description="ports of a NIC, each on a leaf of its own")
    planes: int = Field(1, ge=1, le=2, description="2: leaves and spines of the two ports have nothing in common")
    spines: Size = HPN_SPINES
    spine_ports: Size | None = Field(None, description="most leaves of a spine; 240 over the planes if omitted")


class DcnPlusSpec(_TemplateSpec):
    """`netsim.topologies.dcn_plus`."""

    kind: Literal["dcn_plus"] = "dcn_plus"
    tors: int = Field(1, ge=1, le=2, description="ports of a NIC, each on a leaf of its own")
    spines: Size = DCN_PLUS_SPINES
    spine_ports: Size = Field(DCN_PLUS_SPINE_PORTS, description="most leaves of a spine")


class FileSpec(_Spec):
    """A topology from a file: YAML or SimAI's text."""

    kind: Literal["file"] = "file"
    file: Path


def kind_of(value: object) -> str | None:
    """The kind that a spec or a document for one names; a document with a ``file`` need not."""
    if isinstance(value, Mapping):
        return str(value["kind"]) if "kind" in value else ("file" if "file" in value else None)
    return getattr(value, "kind", None)


TopologySpec = Annotated[
    Annotated[NvswitchSpec, Tag("nvswitch")]
    | Annotated[Nvl72Spec, Tag("nvl72")]
    | Annotated[SingleSwitchSpec, Tag("single_switch")]
    | Annotated[FatTreeSpec, Tag("fat_tree")]
    | Annotated[RailOptimizedSpec, Tag("rail_optimized")]
    | Annotated[SpectrumXSpec, Tag("spectrum_x")]
    | Annotated[AlibabaHpnSpec, Tag("alibaba_hpn")]
    | Annotated[DcnPlusSpec, Tag("dcn_plus")]
    | Annotated[DragonflySpec, Tag("dragonfly")]
    | Annotated[FileSpec, Tag("file")],
    Discriminator(kind_of),
]
"""One of the specs, named by ``kind``; ``{file: T.yaml}`` needs none."""

SPECS: Final[dict[str, type[BaseModel]]] = {
    "nvswitch": NvswitchSpec,
    "nvl72": Nvl72Spec,
    "single_switch": SingleSwitchSpec,
    "fat_tree": FatTreeSpec,
    "rail_optimized": RailOptimizedSpec,
    "spectrum_x": SpectrumXSpec,
    "alibaba_hpn": AlibabaHpnSpec,
    "dcn_plus": DcnPlusSpec,
    "dragonfly": DragonflySpec,
    "file": FileSpec,
}
"""By kind."""
