"""Network simulation: topology + flow graph -> completion times."""

__version__ = "0.1.0"

from boundary.errors import InputError
from netsim._core import LinkLog, PeriodicLoads, SteppedNetwork
from netsim.backends.contract import (
    BACKENDS,
    Completion,
    FailsLinks,
    FlowTimes,
    GraphHandle,
    LinkStats,
    LogsLinks,
    NetworkBackend,
    PausesLinks,
    SharesCapacity,
    capabilities_of,
)
from netsim.backends.create import create_backend
from netsim.errors import BackendError, BackendUnavailable, NoPath
from netsim.fabric import Fabric
from netsim.flow import NO_FLOW, FlowGraph, FlowGraphError
from netsim.roce.wire import WireFormat
from netsim.routing import Router
from netsim.topologies import (
    DragonflyShape,
    Uplinks,
    alibaba_hpn,
    dcn_plus,
    dragonfly,
    fat_tree,
    from_simai,
    from_yaml,
    nvl72,
    nvswitch,
    rail_optimized,
    single_switch,
    spectrum_x,
    to_simai,
    to_yaml,
    with_hosts,
)
from netsim.topologies.file import read_topology
from netsim.topology import LinkKind, NodeKind, Topology

__all__ = [
    "BACKENDS",
    "NO_FLOW",
    "BackendError",
    "BackendUnavailable",
    "Completion",
    "DragonflyShape",
    "Fabric",
    "FailsLinks",
    "FlowGraph",
    "FlowGraphError",
    "FlowTimes",
    "GraphHandle",
    "InputError",
    "LinkKind",
    "LinkLog",
    "LinkStats",
    "LogsLinks",
    "NetworkBackend",
    "NoPath",
    "NodeKind",
    "PausesLinks",
    "PeriodicLoads",
    "Router",
    "SharesCapacity",
    "SteppedNetwork",
    "Topology",
    "Uplinks",
    "WireFormat",
    "alibaba_hpn",
    "capabilities_of",
    "create_backend",
    "dcn_plus",
    "dragonfly",
    "fat_tree",
    "from_simai",
    "from_yaml",
    "nvl72",
    "nvswitch",
    "rail_optimized",
    "read_topology",
    "single_switch",
    "spectrum_x",
    "to_simai",
    "to_yaml",
    "with_hosts",
]
