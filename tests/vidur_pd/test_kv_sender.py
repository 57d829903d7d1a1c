from typing import Any

import numpy as np
import pytest

from netsim.routing import Router
from netsim.units import PS_PER_MS
from tests.integration.small_runs import config, pool
from vidur_pd.execution.instances.instance import Rank
from vidur_pd.kv.transfer.sender import KvSender
from vidur_pd.kv.transfer.transfer import LayerTimes
from vidur_pd.simulation.plan import plan_simulation
from vidur_pd.simulation.state import SimulationState, assemble

FAR_PS = 10**15
CASES = {
    "heads": ({"tp": 4}, {"tp": 2}, {"model": "qwen3-8b"}),
    "stages": ({"tp": 2, "pp": 2}, {"tp": 1, "pp": 3}, {"model": "qwen3-8b"}),
    "latent": ({"tp": 4, "ep": 16, "dp": 4}, {"tp": 2, "ep": 16, "dp": 8}, {"model": "deepseek-v3"}),
    "state": ({"tp": 4}, {"tp": 2}, {"model": "qwen3-next-80b-a3b"}),
}


def state_of(prefill: dict[str, Any], decode: dict[str, Any], sections: dict[str, Any]) -> SimulationState:
    pools = [pool("prefill", "prefill", **prefill), pool("decode", "decode", **decode)]
    fabric = {"kind": "rail_optimized", "gpus_per_node": 8, "spines": 2}
    return assemble(plan_simulation(config(pools, topology=fabric, engine={"weights": "fp8"}, **sections)))


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_links_carry_the_flows_that_cross_them(case: str, layerwise: bool) -> None:
    """Transfers between all pairs of the first ranks, two of each, against the routes of their flows one by one."""
    state = state_of(*CASES[case])
    topology, network = state.plan.topology, state.network
    sender = sender_of(state, setup_ps=5, keep_flows=True)
    prefill, decode = (
        [rank for instance in state.instances if instance.placement.role == role for rank in instance.ranks[:3]]
        for role in ("prefill", "decode")
    )
    layers = LayerTimes(0, 10**6) if layerwise else None
    routes, sent_bytes, flows = Router(topology), 0, sender.flows
    assert flows is not None
    for tokens in (1000, 37):
        for source in prefill:
            for destination in decode:
                sent = sender.send(
                    source, destination, tokens, with_state=sender.has_state, now_ps=network.now_ps, layers=layers
                )
                sent_bytes += sent.size_bytes
        arrive(sender, state)
    expected = np.zeros(topology.links)
    for flow in flows:
        expected[routes.route(flow.src, flow.dst)] += flow.size_bytes
    assert network.link_stats().carried_bytes == pytest.approx(expected, rel=1e-12)
    assert sent_bytes == sum(flow.size_bytes for flow in flows)


def sender_of(state: SimulationState, *, setup_ps: int, keep_flows: bool) -> KvSender:
    plan = state.plan
    config = plan.config.kv_transfer.model_copy(update={"setup_ms": setup_ps / PS_PER_MS})
    return KvSender(
        plan.model,
        plan.kv_precision,
        state.network,
        plan.topology,
        config,
        block_tokens=plan.kv_block_tokens,
        keep_flows=keep_flows,
        slowness=plan.connector_slowness,
    )


def arrive(sender: KvSender, state: SimulationState) -> list[list[tuple[int, int]]]:
    """Runs all transfers to their end: GPU pairs of the flows of each."""
    transfers = []
    while sender.active:
        for completion in state.network.advance(FAR_PS):
            assert sender.flows is not None
            known = len(sender.flows)
            sender.arrived(completion.handle)
            transfers.append([(flow.src, flow.dst) for flow in sender.flows[known:]])
    return transfers


def test_a_latent_comes_from_the_rail_that_it_goes_to() -> None:
    """Prefill ranks have GPUs 0…3 and 4…7 of a node, decode ranks two GPUs each: every flow stays on its rail as far as
    the prefill rank has a GPU there."""
    state = state_of(*CASES["latent"])
    sender = sender_of(state, setup_ps=0, keep_flows=True)
    source, destination = first_ranks(state)
    sender.send(source, destination, 10, with_state=False, now_ps=0, layers=None)
    (pairs,) = arrive(sender, state)
    assert len(pairs) == 2
    assert [state.plan.topology.rail_of(src) for src, _ in pairs] == [
        state.plan.topology.rail_of(dst) for _, dst in pairs
    ]


def first_ranks(state: SimulationState) -> tuple[Rank, Rank]:
    prefill, decode = (
        next(instance for instance in state.instances if instance.placement.role == role)
        for role in ("prefill", "decode")
    )
    return prefill.ranks[0], decode.ranks[0]


def test_a_transfer_that_is_abandoned_leaves_no_flow_behind() -> None:
    state = state_of(*CASES["heads"])
    sender = sender_of(state, setup_ps=0, keep_flows=False)
    sent = sender.send(*first_ranks(state), 10, with_state=False, now_ps=0, layers=None)
    assert state.network.next_event_ps() is not None
    lost_bytes = sender.abandon(sent.handle, 0)
    assert lost_bytes == sent.size_bytes
    assert sender.active == 0
    assert state.network.advance(FAR_PS) == []


def test_layers_are_computed_evenly() -> None:
    """Ten time units for three layers from 100 on: after 3, 6 and 10; at 104 the first is ready."""
    assert LayerTimes(100, 110).ready_after(100, 3).tolist() == [3, 6, 10]
    assert LayerTimes(100, 110).ready_after(104, 3).tolist() == [0, 2, 6]
