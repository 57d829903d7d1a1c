"""Builders of topologies, and their text formats."""

from netsim.topologies.dragonfly import DragonflyShape, dragonfly
from netsim.topologies.fat_tree import fat_tree
from netsim.topologies.hosts import with_hosts
from netsim.topologies.nvswitch import nvl72, nvswitch
from netsim.topologies.rail_optimized import rail_optimized
from netsim.topologies.simai_templates import Uplinks, alibaba_hpn, dcn_plus, spectrum_x
from netsim.topologies.simai_text import from_simai, to_simai
from netsim.topologies.single_switch import single_switch
from netsim.topologies.yaml_text import from_yaml, to_yaml

__all__ = [
    "DragonflyShape",
    "Uplinks",
    "alibaba_hpn",
    "dcn_plus",
    "dragonfly",
    "fat_tree",
    "from_simai",
    "from_yaml",
    "nvl72",
    "nvswitch",
    "rail_optimized",
    "single_switch",
    "spectrum_x",
    "to_simai",
    "to_yaml",
    "with_hosts",
]
