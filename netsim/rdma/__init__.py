"""The flow graph as real traffic: agents on hosts send its flows, by UCX or libibverbs, and measure when they arrive.

Names are imported when they are first asked for: an agent needs neither what reads hosts files nor what checks graphs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from netsim.rdma.errors import TransferFailure
    from netsim.rdma.hosts import Hosts, read_hosts
    from netsim.rdma.measurement import Measurement
    from netsim.rdma.session import Session

__all__ = ["Hosts", "Measurement", "Session", "TransferFailure", "read_hosts"]

_MODULES: Final = {
    "Hosts": "hosts",
    "Measurement": "measurement",
    "Session": "session",
    "TransferFailure": "errors",
    "read_hosts": "hosts",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
