"""Engine `ucx` of the rdma backend (netsim/core/rdma)."""

from collections.abc import Mapping

from netsim.rdma.engines import Engine

def version() -> str: ...

class UcxEngine(Engine):
    def __init__(self, options: Mapping[str, object], *, transports: str, rndv_threshold: str, key: int) -> None: ...
