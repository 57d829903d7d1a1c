"""Types of the ns-3 extension (netsim/core/ns3/bindings.cpp); use it through `netsim.backends.ns3.extension`."""

from collections.abc import Sequence

import netsim._core as _core

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

class Ns3Simulation(_core.PacketSimulation):
    def __init__(
        self,
        network: _core.Network,
        ecmp_seed: int,
        parameters: _core.RoceParameters,
        node_names: Sequence[str],
    ) -> None: ...
    def capture(self, folder: str, links: Sequence[int] | None, most_bytes: int) -> None: ...
    def attributes(self, path: str) -> list[tuple[str, str]]: ...
    def trace(self, path: str) -> None: ...
    def traced(self) -> list[tuple[int, str, tuple[int, ...]]]: ...
    @property
    def simulator_now_ps(self) -> int: ...
