"""What is priced and what is simulated, per coupling and backend.

| backend | ``isolated`` | ``fluid`` | ``exact`` |
|---|---|---|---|
| `fluid` | collectives priced | priced, stretched by the load of their links | simulated |
| `packet`, `ns3` | collectives priced, by `packet` | refused | simulated, forecast by `fluid` |
| `analytical`, `rdma` | collectives priced | as ``isolated`` | refused |

KV transfers are simulated as flows wherever flows share links; on `analytical` each is priced alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from boundary.errors import InputError
from netsim import capabilities_of
from vidur_pd.config import SimulationConfig

TRAFFIC: Final = ("kv", "collective")
"""What flows of each ``FlowGraph.traffic`` are."""
KV: Final = TRAFFIC.index("kv")
COLLECTIVE: Final = TRAFFIC.index("collective")


class Treatment(StrEnum):
    """Where the time of a piece of communication comes from."""

    PRICED = "priced"
    """Run once on an idle fabric, or a closed form."""
    SLOWED_DOWN = "stretched"
    """Priced, and then slowed by a rule for what shares its links."""
    SIMULATED = "simulated"
    """Flows on the network that everything else is on."""


@dataclass(frozen=True, slots=True)
class CouplingPlan:
    """How communication gets its time in a run."""

    in_force: Literal["isolated", "fluid", "exact"]
    pricing_backend: str
    """What runs collectives on an idle fabric. With ``exact`` coupling that only forecasts when an iteration ends."""
    collectives: Treatment
    transfers: Treatment


def plan_coupling(config: SimulationConfig) -> CouplingPlan:
    """The plan for a configuration.

    Raises: InputError, where the backend or a pool cannot have the coupling that is asked for.
    """
    _check(config)
    network = config.network
    in_force = network.coupling
    if in_force == "fluid" and not capabilities_of(network.backend).carries_loads:
        in_force = "isolated"
    collectives = {"isolated": Treatment.PRICED, "fluid": Treatment.SLOWED_DOWN, "exact": Treatment.SIMULATED}
    return CouplingPlan(
        in_force=in_force,
        pricing_backend=_pricing_backend(network.backend, in_force),
        collectives=collectives[in_force],
        transfers=Treatment.SIMULATED if capabilities_of(network.backend).shares_links else Treatment.PRICED,
    )


def _pricing_backend(backend: str, coupling: str) -> str:
    """ns-3 can live but once in a process; ``packet`` gives the same times. For a forecast ``fluid`` will do."""
    if not capabilities_of(backend).simulates_packets:
        return backend
    return "fluid" if coupling == "exact" else "packet"


def _check(config: SimulationConfig) -> None:
    network = config.network
    if network.coupling == "fluid" and capabilities_of(network.backend).simulates_packets:
        raise InputError(
            f"network.coupling: found 'fluid' with backend {network.backend!r}, on which load cannot stand for flows, "
            "expected 'isolated' or 'exact' (or backend 'fluid')"
        )
    if network.coupling != "exact":
        return
    if any(pool.pp > 1 for pool in config.cluster.pools):
        raise InputError("network.coupling: found 'exact' with a pool of pp > 1, expected 'isolated' or 'fluid'")
    if any(config.engine_of(pool).overlap.two_batch for pool in config.cluster.pools):
        raise InputError("network.coupling: found 'exact' with two-batch overlap, expected 'isolated' or 'fluid'")
    if not capabilities_of(network.backend).shares_links:
        raise InputError(
            f"network.coupling: found 'exact' with backend {network.backend!r}, which has no contention to couple"
        )
