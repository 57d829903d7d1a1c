"""What is priced and what is simulated, per coupling and backend.

| backend | ``isolated`` | ``fluid`` | ``exact`` |
|---|---|---|---|
| `fluid` | collectives priced | priced, stretched by the load of their links | simulated |
| `packet`, `ns3` | collectives priced, by `packet` | refused | simulated, forecast by `fluid` |
| `analytical` | collectives priced | as ``isolated`` | refused |
| `rdma` | collectives measured as real traffic | refused | refused |

KV transfers are simulated as flows wherever flows share links; on `analytical` each is priced alone. On `rdma` they are
flows of `fluid`, which alone take what messages between their hosts were measured to take.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from boundary.errors import InputError
from netsim import BACKENDS, capabilities_of
from vidur_pd.config import SimulationConfig
from vidur_pd.config.faults import LINK_FAULTS

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
    """What runs collectives on an idle fabric. With ``exact`` coupling that only forecasts when an iteration ends, and
    with real traffic it only says what they put on links."""
    transfer_backend: str
    """What carries KV transfers."""
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
        transfer_backend="fluid" if capabilities_of(network.backend).sends_traffic else network.backend,
        collectives=collectives[in_force],
        transfers=Treatment.SIMULATED if capabilities_of(network.backend).shares_links else Treatment.PRICED,
    )


def _pricing_backend(backend: str, coupling: str) -> str:
    """ns-3 can live but once in a process; ``packet`` gives the same times. For a forecast ``fluid`` will do."""
    if not capabilities_of(backend).simulates_packets:
        return "fluid" if capabilities_of(backend).sends_traffic else backend
    return "fluid" if coupling == "exact" else "packet"


def _check(config: SimulationConfig) -> None:
    network = config.network
    if capabilities_of(network.backend).sends_traffic:
        _check_real_traffic(config)
    if network.calibration is not None and not capabilities_of(network.backend).is_calibrated:
        known = " or ".join(name for name in BACKENDS if capabilities_of(name).is_calibrated)
        raise InputError(f"network.calibration: found one with backend {network.backend!r}, expected {known}")
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


def _check_real_traffic(config: SimulationConfig) -> None:
    """Graphs run one after the other on real hosts, whose links this program does not fail."""
    network = config.network
    if network.coupling != "isolated":
        raise InputError(
            f"network.coupling: found {network.coupling!r} with backend {network.backend!r}, whose traffic takes real "
            "time, expected 'isolated'"
        )
    if network.hosts is None and network.measured is None:
        raise InputError(
            f"network.hosts: found none with backend {network.backend!r}, expected a hosts file (or network.measured, "
            "what an earlier run has measured)"
        )
    for place, fault in enumerate(config.faults):
        if isinstance(fault, LINK_FAULTS):
            raise InputError(
                f"faults.{place}.kind: found {fault.kind!r} with backend {network.backend!r}, expected no fault of "
                "links, which are those of real hosts"
            )
