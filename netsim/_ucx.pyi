"""Engine `ucx` of the rdma backend (netsim/core/rdma)."""

from collections.abc import Mapping
from typing import Protocol

from netsim.backends.rdma.engines import Engine

class _Constructor(Protocol):
    def __call__(
        self, options: Mapping[str, object], *, transports: str, rndv_threshold: str, key: int, gpu: int
    ) -> Engine: ...

UcxEngine: _Constructor

def version() -> str: ...
