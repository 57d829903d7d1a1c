"""One NVLink domain: GPUs that only NVSwitches connect."""

from __future__ import annotations

from typing import Final

import numpy as np

from netsim.topologies.checks import check_counts, check_size
from netsim.topologies.defaults import NVLINK5_BPS, LinkRates
from netsim.topologies.servers import Servers
from netsim.topology import Topology

NVL72_GPUS: Final = 72
"""18 compute trays of 4 GPUs; NVIDIA GB200 NVL72."""


def nvswitch(gpus_per_node: int = 8, *, nvswitches: int = 1, rates: LinkRates | None = None) -> Topology:
    """One server without a fabric, such as HGX H100 by itself.

    By default one NVSwitch stands for all planes of the domain. With more, a GPU has an equal part of its NVLink rate
    on each. Real GPUs spread every transfer over all planes; under static ECMP a flow takes one of them, so that a
    single flow then reaches only that part of the rate.
    """
    check_counts("nvswitch", gpus_per_node=gpus_per_node, nvswitches=nvswitches)
    check_size("nvswitch", gpus_per_node + nvswitches, gpus_per_node * nvswitches)
    server = Servers(1, gpus_per_node, nvswitches)
    no_ports = np.empty((gpus_per_node, 0), dtype=np.int64)
    return server.with_fabric([], [server.cables(no_ports, rates or LinkRates())])


def nvl72(*, nvswitches: int = 1, rates: LinkRates | None = None) -> Topology:
    """The NVLink domain of a GB200 NVL72 rack by itself: 72 GPUs with NVLink 5.

    ``nvswitches`` is 1, a node for the whole domain, or 18, a node per NVSwitch (9 switch trays of 2, with one of a
    GPU's 18 NVLinks on each); see `nvswitch` for what that means for single flows. Several racks are `rail_optimized`
    with 72 GPUs per node and 4 rails, the GPUs of a compute tray.
    """
    return nvswitch(NVL72_GPUS, nvswitches=nvswitches, rates=rates or LinkRates(nvlink_bps=NVLINK5_BPS))
