"""Engine `verbs` of the rdma backend (netsim/core/rdma)."""

from collections.abc import Mapping

from netsim.rdma.engines import Engine

class VerbsEngine(Engine):  # type: ignore[misc]  # its methods are those of the protocol
    def __init__(
        self,
        options: Mapping[str, object],
        *,
        queue_pairs: int,
        split: bool,
        mtu_bytes: int | None,
        gid_index: int | None,
        traffic_class: int,
        service_level: int,
        timeout: int,
        retry_count: int,
        rnr_retry: int,
    ) -> None: ...
