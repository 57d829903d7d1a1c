"""Prices of collectives: whose kernels run, and on which GPUs."""

import numpy as np
import pytest

import simccl
from aicb import Communication
from netsim import Fabric, Topology, rail_optimized
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
        result = simulate(config(DECODE, network={"coupling": coupling, "collectives": stack}), ROWS)
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
