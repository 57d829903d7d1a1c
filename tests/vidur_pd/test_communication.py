"""Prices of collectives: whose kernels run, and on which GPUs."""

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import simccl
from aicb import Communication
from aicb.operators.operator import TokenExchange
from netsim import Fabric, Topology, create_backend, rail_optimized
from netsim.topologies.defaults import LinkRates
from netsim.topology import LinkKind
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.execution.communication.pricer import CollectiveCost, CommunicationPricer
from vidur_pd.simulation.plan import plan_simulation

DECODE = [pool("p", "prefill", tp=2), pool("d", "decode", tp=2)]
ROWS = [(3_000 * index, 200, 40) for index in range(8)]


def topology() -> object:
    nvlink_bps = round(simccl.gpu_named("h100").nvlink_gbytes_per_s * 8e9)
    return rail_optimized(1, 8, rates=LinkRates(nvlink_bps=nvlink_bps))


@pytest.mark.parametrize("backend", ["fluid", "analytical"])
@pytest.mark.parametrize("stack", list(simccl.Stack))
def test_an_all_reduce_takes_the_time_of_the_stack_that_runs_it(backend: str, stack: simccl.Stack) -> None:
    """64 KiB between 8 H100s: 14 buffers of an eighth, twice with LL, by NCCL; seven whole ones by one-shot kernels."""
    fabric, gpus = topology(), tuple(range(8))
    cost = CommunicationPricer(fabric, backend, "h100", stack).cost(Communication("all_reduce", 64 << 10, "tp"), gpus)
    communicator = simccl.Communicator(gpus, fabric, "h100")
    expected = simccl.collective_time("all_reduce", 64 << 10, communicator, stack=stack)
    assert cost.duration_ps == pytest.approx(expected.time_ps, rel=0.01, abs=150_000)
    assert (expected.algorithm is simccl.Algorithm.ONE_SHOT) == (stack is not simccl.Stack.NCCL)
    assert np.unique(cost.link_bytes).tolist() == ([229_376] if stack is simccl.Stack.NCCL else [458_752])


@pytest.mark.parametrize("coupling", ["isolated", "fluid", "exact"])
def test_an_engines_all_reduce_makes_decoding_with_tensor_parallelism_faster(coupling: str) -> None:
    """Two H200s, batches of 1 to 8 tokens of 8 KiB, two all-reduces in each of 36 layers: 2.4 µs less than NCCL each,
    and up to 0.4 µs less on the way, as one-shot has one hop instead of two."""
    share_s = {}
    for stack in ("nccl", "vllm"):
        settings = {"engine": {"norm_kernel": "apart"}, "network": {"coupling": coupling, "collectives": stack}}
        result = simulate(config(DECODE, **settings), ROWS)
        columns = result.iterations.columns()
        decodes = columns["prefill_tokens"] == 0
        assert decodes.any()
        share_s[stack] = np.median(columns["communication_s"][decodes]) / 72
    assert 2.3e-6 < share_s["nccl"] - share_s["vllm"] < 2.8e-6


def test_a_gpu_without_measured_kernels_is_refused_before_the_run() -> None:
    with pytest.raises(simccl.InputError, match="stack: found sglang on a100, whose kernels were measured on"):
        CommunicationPricer(topology(), "fluid", "a100", simccl.Stack.SGLANG)
    assert plan_simulation(config(DECODE, network={"collectives": "sglang"})).config.network.collectives == "sglang"


@pytest.mark.parametrize("backend", ["fluid", "analytical", "packet"])
def test_a_cost_is_that_of_the_fabric_as_it_is(backend: str) -> None:
    """At a quarter of one NIC, an exchange is as long as that NIC needs; when it is repaired, as long as it was.

    Packets have 4 % of headers; the whole NIC is not the bottleneck, as a flow gets 93 % of it."""
    fabric, gpus, what = rail_optimized(2, 8), (0, 8), Communication("all_to_all", 64 << 20, "ep")
    live = Fabric(fabric)
    pricer = CommunicationPricer(fabric, backend, "h200", live=live)
    whole = pricer.cost(what, gpus)
    cable = first_of(fabric, whole, LinkKind.NIC)
    live.slow_down(cable, 0.25)
    slow = pricer.cost(what, gpus)
    least_ps = float(slow.link_bytes[slow.links == cable][0]) * 8e12 / (0.25 * float(fabric.capacity_bps[cable]))
    busy_ps = float(slow.link_busy_ps[slow.links == cable][0])
    assert least_ps <= busy_ps * (1 + 1e-9)
    assert busy_ps < 1.05 * least_ps
    assert busy_ps <= slow.duration_ps < 1.05 * busy_ps
    assert slow.duration_ps > 3.5 * whole.duration_ps
    live.speed_up(cable, 0.25)
    assert pricer.cost(what, gpus) is whole


@pytest.mark.parametrize("backend", ["fluid", "analytical", "packet"])
def test_a_collective_takes_another_path_round_a_failed_link(backend: str) -> None:
    """Two segments meet at two spines: without the cable to one of them the bytes go over the other."""
    fabric = rail_optimized(4, 2, spines=2, nodes_per_segment=2)
    gpus, what = (0, 4), Communication("all_to_all", 1 << 20, "ep")
    live = Fabric(fabric)
    pricer = CommunicationPricer(fabric, backend, "h200", live=live)
    whole = pricer.cost(what, gpus)
    failed = first_of(fabric, whole, LinkKind.FABRIC)
    live.fail([failed])
    round_it = pricer.cost(what, gpus)
    assert failed not in round_it.links
    assert round_it.link_bytes.sum() == whole.link_bytes.sum()
    assert round_it.duration_ps == pytest.approx(whole.duration_ps, rel=0.01)


def first_of(fabric: Topology, cost: CollectiveCost, kind: LinkKind) -> int:
    """The first link of a kind that a collective is on."""
    return int(cost.links[fabric.link_kind[cost.links] == kind][0])


@pytest.mark.parametrize("slow_server", [0, 1])
def test_a_server_with_a_slow_nvlink_stands_for_no_other(slow_server: int) -> None:
    """A quarter of one GPU's NVLink is felt in its server alone, also where that is the one that stands for all."""
    fabric, what = rail_optimized(3, 8), Communication("all_reduce", 64 << 20, "tp")
    live = Fabric(fabric)
    pricer = CommunicationPricer(fabric, "fluid", "h200", live=live)
    is_nvlink = (fabric.link_src == 8 * slow_server) & (fabric.link_kind == LinkKind.NVLINK)
    live.slow_down(int(np.flatnonzero(is_nvlink)[0]), 0.25)
    times = [pricer.cost(what, tuple(range(8 * server, 8 * server + 8))).duration_ps for server in range(3)]
    whole = [time for server, time in enumerate(times) if server != slow_server]
    assert whole[0] == whole[1]
    assert times[slow_server] > 2 * whole[0]


def exchange(op: Literal["dispatch", "combine"], tokens: float, **differing: Any) -> Communication:
    """Of DeepSeek-V3's tokens in fp8, by DeepEP's normal kernels."""
    found = TokenExchange(False, 7168, True, 256, 8, 8, 4)
    return Communication(op, round(tokens * 14336), "ep", replace(found, **differing))


@pytest.mark.parametrize("backend", ["fluid", "analytical"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize(("is_low_latency", "tokens"), [(False, 4096), (False, 300), (True, 64)])
def test_a_dispatch_takes_the_time_of_deepeps_kernels(
    backend: str, nodes: int, is_low_latency: bool, tokens: int
) -> None:
    """As `simccl.expert_times_us` has it; low latency is up to 4 % longer where paths of different rails collide."""
    nvlink_bps = round(simccl.gpu_named("h100").nvlink_gbytes_per_s * 8e9)
    fabric, gpus = rail_optimized(nodes, 8, rates=LinkRates(nvlink_bps=nvlink_bps)), tuple(range(8 * nodes))
    pricer, at = CommunicationPricer(fabric, backend, "h100"), simccl.Communicator(gpus, fabric, "h100").shape()
    mode = simccl.Algorithm.LOW_LATENCY if is_low_latency else simccl.Algorithm.HIERARCHICAL
    choice = simccl.ExpertChoice(256, 8, 8, 4)
    for op, phase in (("dispatch", simccl.Phase.DISPATCH), ("combine", simccl.Phase.COMBINE)):
        cost = pricer.cost(exchange(op, tokens, is_low_latency=is_low_latency), gpus)
        (expected,) = simccl.expert_times_us(mode, phase, np.array([tokens]), hidden=7168, choice=choice, at=at)
        assert -0.01 < cost.duration_ps / 1e6 / expected - 1 < (0.04 if is_low_latency else 0.01)


def test_dispatches_between_nodes_put_one_copy_per_node_on_nics() -> None:
    """A node has two of the eight groups, of which a token has four: with j of the two, no expert of 8 is there in
    C(128 − 32·j, 8) of C(128, 8) cases. Three quarters of the nodes are others; 1,000 tokens of 7,472 bytes."""
    fabric, gpus = rail_optimized(4, 8), tuple(range(32))
    cost = CommunicationPricer(fabric, "fluid", "h100").cost(exchange("dispatch", 1000), gpus)
    missed = sum(
        math.comb(2, j) * math.comb(6, 4 - j) * math.comb(128 - 32 * j, 8) for j in range(3)
    ) / math.comb(8, 4) / math.comb(128, 8)  # fmt: skip
    is_nic = (fabric.link_kind[cost.links] == LinkKind.NIC) & (fabric.link_src[cost.links] < 32)
    np.testing.assert_allclose(cost.link_bytes[is_nic], 1000 * 7472 * 3 * (1 - missed), rtol=1e-5)
    assert is_nic.sum() == 32


@pytest.mark.parametrize("backend", ["fluid", "analytical"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_small_tensors_of_a_gather_add_the_steps_of_their_rings(backend: str, nodes: int) -> None:
    """Three of at most 7 KiB between 8 n ranks by LL, H20: 7 steps of 0.6 µs on one node; on two, 14 of at least 1.0
    and one of 2.7 over the network. The 6.6 µs of a launch are there once."""
    nvlink_bps = round(simccl.gpu_named("h20").nvlink_gbytes_per_s * 8e9)
    fabric, gpus = rail_optimized(nodes, 8, rates=LinkRates(nvlink_bps=nvlink_bps)), tuple(range(8 * nodes))
    pricer = CommunicationPricer(fabric, backend, "h20")
    alone, together = (
        pricer.cost(Communication("all_gather", 32 * 7168, "ep", behind=behind), gpus)
        for behind in ((), (224 / 7168, 32 / 7168, 32 / 7168))
    )
    added_us = (together.duration_ps - alone.duration_ps) / 1e6
    assert added_us == pytest.approx(3 * (7 * 0.6 if nodes == 1 else 14 * 1.0 + 2.7), rel=0.03)
    np.testing.assert_array_equal(together.link_bytes, alone.link_bytes)


def test_uneven_ranks_last_as_long_as_the_fullest_and_carry_the_mean() -> None:
    fabric, gpus = rail_optimized(2, 8), tuple(range(16))
    pricer = CommunicationPricer(fabric, "fluid", "h100")
    even, uneven = (pricer.cost(exchange("combine", 500, mean_share=share), gpus) for share in (1.0, 0.25))
    assert uneven.duration_ps == even.duration_ps
    np.testing.assert_allclose(uneven.link_bytes, even.link_bytes / 4)
    np.testing.assert_allclose(uneven.link_busy_ps, even.link_busy_ps / 4)
    communicator, backend = pricer.communicator(gpus), create_backend("fluid", fabric)
    graph = pricer.flows(exchange("combine", 500, mean_share=0.25), communicator)
    assert graph.size_bytes.sum() == pytest.approx(
        pricer.flows(exchange("combine", 500), communicator).size_bytes.sum() / 4
    )
    backend.submit(graph, 0)
    (completion,) = backend.advance(10**12)
    assert completion.at_ps == pytest.approx(even.duration_ps, rel=1e-3)


def test_popular_ranks_receive_more_and_hold_up_the_others() -> None:
    """Rank 3 of 8 with three times the load: three times the bytes on its NVLink, and thrice the time."""
    fabric, gpus = rail_optimized(1, 8), tuple(range(8))
    popularity = tuple((3.0, 3.0) if rank == 3 else (5 / 7, 5 / 7) for rank in range(8))
    even, skewed = (
        CommunicationPricer(fabric, "fluid", "h100").cost(
            exchange("dispatch", 10_000, is_low_latency=True, popularity=each), gpus
        )
        for each in (None, popularity)
    )
    (arriving,) = np.flatnonzero(fabric.link_dst[skewed.links] == 3)
    assert skewed.link_bytes[arriving] == pytest.approx(3 * even.link_bytes[arriving], rel=1e-6)
    assert skewed.duration_ps == pytest.approx(3 * even.duration_ps, rel=0.02)
