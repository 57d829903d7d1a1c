"""Engine `verbs` of the rdma backend (netsim/core/rdma)."""

from collections.abc import Mapping
from typing import Protocol

from netsim.backends.rdma.engines import Engine

class _Constructor(Protocol):
    def __call__(
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
    ) -> Engine: ...

VerbsEngine: _Constructor
