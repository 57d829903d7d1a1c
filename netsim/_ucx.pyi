"""Engine `ucx` of the rdma backend (netsim/core/rdma)."""

from collections.abc import Mapping

from netsim.rdma.engines import Engine

def version() -> str: ...

class UcxEngine(Engine):  # type: ignore[misc]  # its methods are those of the protocol
    def __init__(self, options: Mapping[str, object], *, transports: str, rndv_threshold: str, key: int) -> None: ...
