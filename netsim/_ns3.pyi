"""Types of the ns-3 extension (netsim/core/ns3/bindings.cpp); use it through `netsim.ns3`."""

from collections.abc import Sequence

from netsim import _core

class PointToPointChain:
    HEADER_BYTES: int
    def __init__(self, rates_bps: Sequence[int], delays_ps: Sequence[int]) -> None: ...
    def send(self, payload_bytes: int, at_ps: int) -> None: ...
    def advance(self, until_ps: int) -> list[tuple[int, int]]: ...
    @property
    def now_ps(self) -> int: ...
    @property
    def event_count(self) -> int: ...
    def next_event_ps(self) -> int | None: ...
    def close(self) -> None: ...

class Engine:
    STEPPED: Engine
    STOCK: Engine

class How:
    SCHEDULE: How
    WITH_CONTEXT: How
    NOW: How
    AT_DESTROY: How

class Act:
    NONE: Act
    CANCEL: Act
    REMOVE: Act
    STOP: Act
    FAIL: Act

def run_script(
    engine: Engine, events: Sequence[tuple[int, How, int, Act, int]], step_ps: int
) -> list[tuple[int, int, int, bool, int]]: ...
def make_ns3_simulation(
    network: _core.Network, ecmp_seed: int, parameters: _core.RoceParameters
) -> _core.PacketSimulation: ...
