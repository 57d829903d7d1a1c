"""Types of the C++ core (netsim/core/bindings.cpp)."""

import numpy as np
from numpy.typing import NDArray

WHOLE_GRAPH: int
RATE_UNITS_PER_BPS: int
MAX_CAPACITY_BPS: int

def murmur3_32(data: bytes, seed: int) -> int: ...
def ecmp_hash(src: int, dst: int, flow_label: int, at: int) -> int: ...

class Path:
    @property
    def links(self) -> NDArray[np.uint32]: ...
    @property
    def latency_ps(self) -> int: ...
    @property
    def bottleneck_bps(self) -> int: ...

class Network:
    def __init__(
        self,
        kinds: NDArray[np.int8],
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        capacity_bps: NDArray[np.int64],
        latency_ps: NDArray[np.int64],
    ) -> None: ...

class Routing:
    def __init__(self, network: Network) -> None: ...
    def path(self, src: int, dst: int, flow_label: int) -> Path: ...

class Sharing:
    MAX_MIN: Sharing
    UNCONTENDED: Sharing

class FlowSimulation:
    def __init__(self, network: Network, sharing: Sharing) -> None: ...
    @property
    def now_ps(self) -> int: ...
    def submit(
        self,
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        size_bytes: NDArray[np.int64],
        ready_ps: NDArray[np.int64],
        delay_ps: NDArray[np.int64],
        dep_offsets: NDArray[np.int64],
        deps: NDArray[np.int64],
        flow_label: NDArray[np.uint32],
        notify: NDArray[np.bool_],
        max_rate_bps: NDArray[np.int64],
        after: NDArray[np.int64],
        at_ps: int,
    ) -> int: ...
    def advance(self, until_ps: int) -> list[tuple[int, int, int]]: ...
    def next_event_ps(self) -> int | None: ...
    def cancel(self, handle: int) -> None: ...
    def forget(self, handle: int) -> None: ...
    def flow_times(self, handle: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def link_totals(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]: ...
    def set_background_bps(self, links: NDArray[np.int64], rates_bps: NDArray[np.float64]) -> None: ...
    def link_rates_bps(self) -> NDArray[np.float64]: ...
