"""Random faults of a cluster, of every kind that it can have."""

from __future__ import annotations

import random
from typing import Any

from netsim.backends.contract import capabilities_of
from netsim.topology import LinkKind
from vidur_pd.config import SimulationConfig
from vidur_pd.simulation.plan import plan_simulation


def random_faults(
    choose: random.Random, bare: SimulationConfig, until_s: float
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One to four faults that begin before ``until_s``, and what becomes of the requests that they hit."""
    faults = [random_fault(choose, bare, until_s) for _ in range(choose.randint(1, 4))]
    return faults, {
        "requests": choose.choice(("recompute", "retry", "fail")),
        "max_attempts": choose.choice((1, 3)),
        "transfer_retries": choose.choice((0, 2)),
        "without_instance": choose.choice(("wait", "fail")),
        "degraded": choose.choice(("keep", "drain")),
    }


def random_fault(choose: random.Random, bare: SimulationConfig, until_s: float) -> dict[str, Any]:
    """One fault of any kind that the cluster can have."""
    plan = plan_simulation(bare)
    topology = plan.topology
    names = [placement.name for placement in plan.placements]
    gpus = sorted(gpu for placement in plan.placements for gpu in placement.gpus)
    link = choose.randrange(topology.links)
    cable = [topology.node_name[topology.link_src[link]], topology.node_name[topology.link_dst[link]]]
    kinds = ["gpu", "instance", "drain", "straggler", "slow_gpu", "link", "link_flap", "slow_link"]
    if (topology.link_kind != LinkKind.NVLINK).any():
        kinds.append("nic")
    if capabilities_of(bare.network.backend).simulates_packets and topology.link_kind[link] != LinkKind.NVLINK:
        kinds.append("pfc_storm")
    kind = choose.choice(kinds)
    fields: dict[str, Any] = {
        "gpu": {"gpu": choose.choice(gpus)},
        "nic": {"gpu": choose.choice(gpus)},
        "slow_gpu": {"gpu": choose.choice(gpus), "factor": 3.0},
        "instance": {"instance": choose.choice(names)},
        "drain": {"instance": choose.choice(names)},
        "straggler": {"instance": choose.choice(names), "factor": 1.7},
        "slow_link": {"between": cable, "share": choose.choice((0.02, 0.5))},
        "link_flap": {"between": cable, "count": choose.randint(1, 6), "down_s": 2e-3, "up_s": 1e-3},
    }.get(kind, {"between": cable})
    duration = choose.choice((None, round(choose.uniform(1e-5, until_s / 2), 6)))
    timing = {} if kind == "link_flap" else {"for_s": duration}
    return {"kind": kind, "at_s": round(choose.uniform(0, until_s), 6), **fields, **timing}
