"""Builders of topologies, and their text formats."""

from netsim.topologies.rail_optimized import rail_optimized
from netsim.topologies.simai_text import from_simai, to_simai
from netsim.topologies.single_switch import single_switch
from netsim.topologies.yaml_text import from_yaml, to_yaml

__all__ = ["from_simai", "from_yaml", "rail_optimized", "single_switch", "to_simai", "to_yaml"]
