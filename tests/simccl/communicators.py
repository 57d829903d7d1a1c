"""Communicators on real topologies, and Hypothesis strategies of them."""

from __future__ import annotations

from hypothesis import strategies as st

from netsim import create_backend, rail_optimized
from netsim.topologies.defaults import LinkRates
from simccl import Communicator, Plan
from simccl.communicator.gpus import gpu_named
from simccl.communicator.gpus import gpus as gpu_types

A_WEEK_PS = 7 * 24 * 3600 * 10**12


def spread(nodes: int, per_node: int, gpu: str = "h100", gpus_per_node: int = 8) -> Communicator:
    """The first ``per_node`` GPUs of each node of a fabric with the link rates of the GPU type."""
    rates = LinkRates(
        nic_bps=round(gpu_named(gpu).nic_gbytes_per_s * 8e9), nvlink_bps=round(gpu_named(gpu).nvlink_gbytes_per_s * 8e9)
    )
    topology = rail_optimized(nodes, gpus_per_node, rates=rates)
    gpus = tuple(node * gpus_per_node + i for node in range(nodes) for i in range(per_node))
    return Communicator(gpus, topology, gpu)


def run_on_idle(plan: Plan, backend_name: str = "fluid") -> int:
    """Picoseconds that the plan's graph takes alone."""
    backend = create_backend(backend_name, plan.communicator.topology)
    backend.submit(plan.graph(), 0)
    completions = backend.advance(A_WEEK_PS)
    backend.close()
    return completions[-1].at_ps


@st.composite
def communicators(draw: st.DrawFn, most_ranks: int = 64) -> Communicator:
    """Any 2 … ``most_ranks`` GPUs of a fabric in any order: whole nodes, parts of nodes, unequal nodes."""
    nodes = draw(st.integers(1, 8))
    gpus_per_node = draw(st.integers(1 if nodes > 1 else 2, 8))
    topology = rail_optimized(nodes, gpus_per_node)
    gpus = draw(
        st.lists(
            st.integers(0, nodes * gpus_per_node - 1),
            min_size=2,
            max_size=min(most_ranks, nodes * gpus_per_node),
            unique=True,
        )
    )
    return Communicator(tuple(gpus), topology, draw(st.sampled_from(sorted(gpu_types()))))


sizes = st.one_of(st.integers(1, 300), st.integers(1, 1 << 30), st.sampled_from([1 << 16, 1 << 20, 1 << 30]))
"""Bytes, small and ragged ones above all."""
