"""The flow graph as real traffic: agents on hosts send its flows, by UCX or libibverbs, and measure when they arrive.

Names are imported when they are first asked for: an agent needs neither what reads hosts files nor what checks graphs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from netsim.backends.rdma.errors import TransferFailure
    from netsim.backends.rdma.hosts import Hosts, read_hosts
    from netsim.backends.rdma.measurement import Measurement
    from netsim.backends.rdma.message_times import MeasuredPairs, measure_pair
    from netsim.backends.rdma.session import Session

__all__ = ["Hosts", "MeasuredPairs", "Measurement", "Session", "TransferFailure", "measure_pair", "read_hosts"]

_MODULES: Final = {
    "Hosts": "hosts",
    "MeasuredPairs": "message_times",
    "Measurement": "measurement",
    "Session": "session",
    "TransferFailure": "errors",
    "measure_pair": "message_times",
    "read_hosts": "hosts",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
