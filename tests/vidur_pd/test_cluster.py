from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundary.errors import InputError
from netsim import Topology
from netsim.topologies.build import FileSpec, NvswitchSpec, RailOptimizedSpec
from netsim.topologies.build import build as build_topology
from netsim.topologies.own_rates import with_server_rates
from netsim.topology import LinkKind
from tests.integration.small_runs import config, pool
from vidur_pd.config import ClusterConfig, FfnConfig, PoolConfig
from vidur_pd.execution.instances.placement import Cluster, PoolGpus
from vidur_pd.execution.instances.placement import build_cluster as build
from vidur_pd.simulation.plan import plan_simulation


def cluster(*pools: PoolConfig, nodes: int | None = None) -> ClusterConfig:
    return ClusterConfig(topology=RailOptimizedSpec(gpus_per_node=8, nodes=nodes), pools=pools)


def build_cluster(config: ClusterConfig) -> Cluster:
    names = {}
    for each in config.pools:
        own = each.hardware or "h200"
        names[each.name] = PoolGpus(own, (each.ffn and each.ffn.hardware) or own)
    return build(config, names)


def test_an_instance_that_fits_a_node_never_straddles_two() -> None:
    """Three instances of 3 GPUs and one of 8: 0-2, 3-5, then 6-7 are skipped: 8-10, and 16-23 on a node of its own."""
    small = PoolConfig(name="small", role="mixed", instances=3, tp=3)
    large = PoolConfig(name="large", role="mixed", tp=8)
    placed = build_cluster(cluster(small, large))
    assert [p.gpus for p in placed.placements] == [(0, 1, 2), (3, 4, 5), (8, 9, 10), tuple(range(16, 24))]
    assert [p.name for p in placed.placements] == ["small-0", "small-1", "small-2", "large-0"]
    assert placed.topology.gpus == 24


def test_rank_groups_are_ordered_by_stage_then_data_rank_then_tensor_rank() -> None:
    """pp 2 × dp 2 × tp 2 on GPUs 0-7: stage 1 is 4-7, its second data-parallel rank 6-7."""
    placement = build_cluster(cluster(PoolConfig(name="p", role="mixed", tp=2, dp=2, pp=2, ep=4))).placements[0]
    assert placement.stage_gpus(1) == (4, 5, 6, 7)
    assert placement.tensor_group(1, 1) == (6, 7)
    assert placement.rank_gpus(1) == ((2, 3), (6, 7))


def test_pools_larger_than_the_topology_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"16.*24|24.*16"):
        build_cluster(cluster(PoolConfig(name="p", role="mixed", instances=3, tp=8), nodes=2))


def test_a_topology_that_cannot_be_built_is_refused_by_its_field(tmp_path: Path) -> None:
    pools = (PoolConfig(name="p", role="mixed", tp=8),)
    with pytest.raises(
        InputError, match=r"^cluster\.topology\.file: .*/t\.yaml: found no such file, expected a topology"
    ):
        build_cluster(ClusterConfig(topology=FileSpec(file=tmp_path / "t.yaml"), pools=pools))
    with pytest.raises(InputError, match=r"^cluster\.topology: nvswitch gpus: found 4, expected at least 8"):
        build_cluster(ClusterConfig(topology=NvswitchSpec(gpus_per_node=4), pools=pools))


def test_an_expert_group_that_is_not_the_stage_is_refused() -> None:
    with pytest.raises(InputError, match=r"cluster\.pools\.p\.ep: found 4"):
        build_cluster(cluster(PoolConfig(name="p", role="mixed", tp=8, ep=4)))


def test_ffn_workers_stand_behind_the_attention_workers_of_their_instance() -> None:
    """Two instances of 2 attention and 4 FFN workers: 0-1 and 2-5, then 6-7, and 8-11 as 4 do not fit behind 7."""
    decode = PoolConfig(name="d", role="mixed", instances=2, dp=2, ffn=FfnConfig(dp=4))
    first, second = build_cluster(cluster(decode)).placements
    assert (first.gpus, first.ffn_gpus) == ((0, 1), (2, 3, 4, 5))
    assert (second.gpus, second.ffn_gpus) == ((6, 7), (8, 9, 10, 11))
    assert second.all_gpus == (6, 7, 8, 9, 10, 11)
    assert decode.gpus_per_instance == 6


def test_ffn_workers_that_divide_networks_are_neighbours() -> None:
    decode = PoolConfig(name="d", role="mixed", dp=4, ffn=FfnConfig(tp=2, dp=2))
    (placement,) = build_cluster(cluster(decode)).placements
    assert placement.ffn_groups() == ((4, 5), (6, 7))


def test_ffn_workers_with_another_gpu_stand_on_servers_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """Two H20s as attention workers on one server, four H200s on the next: six GPUs of the first stay idle."""
    decode = PoolConfig(name="d", role="mixed", dp=2, hardware="h20", ffn=FfnConfig(dp=4, hardware="h200"))
    placed = build_cluster(cluster(decode))
    assert placed.placements[0].gpus == (0, 1)
    assert placed.placements[0].ffn_gpus == (8, 9, 10, 11)
    assert "h200 here, h20 in pool d; 6 GPUs of the server before stay idle" in caplog.text


def test_a_server_has_gpus_of_one_kind(caplog: pytest.LogCaptureFixture) -> None:
    """Two H200s, then four H100s: 0-1 and 8-11, so 16 GPUs in two servers instead of 8 in one. The next pool of H100s
    goes on behind them, and whole servers leave nothing idle."""
    few = PoolConfig(name="few", role="prefill", tp=2)
    other = PoolConfig(name="other", role="decode", tp=4, hardware="h100")
    more = PoolConfig(name="more", role="decode", tp=2, hardware="h100")
    placed = build_cluster(cluster(few, other, more))
    assert [p.gpus for p in placed.placements] == [(0, 1), (8, 9, 10, 11), (12, 13)]
    assert placed.topology.gpus == 16
    assert caplog.messages == [
        "cluster.pools.other: begins on a server of its own: h100 here, h200 in pool few; 6 GPUs of the server before "
        "stay idle"
    ]
    caplog.clear()
    whole = PoolConfig(name="whole", role="prefill", tp=8)
    assert [p.gpus[0] for p in build_cluster(cluster(whole, other)).placements] == [0, 8]
    assert caplog.messages == []


def test_one_nvlink_domain_for_two_kinds_of_gpus_is_refused_with_both() -> None:
    few = PoolConfig(name="few", role="prefill", tp=2)
    other = PoolConfig(name="other", role="decode", tp=2, hardware="h20")
    for topology in (NvswitchSpec(gpus_per_node=8), RailOptimizedSpec(gpus_per_node=8, nodes=1)):
        with pytest.raises(InputError, match="a server has GPUs of one kind, found in pools few h200, other h20"):
            build_cluster(ClusterConfig(topology=topology, pools=(few, other)))


def rates_of(topology: Topology, kind: LinkKind) -> list[list[float]]:
    """[servers] distinct rates [Gbit/s] of the links of a kind that GPUs and hosts of a server have."""
    server = {gpu: topology.node_of(gpu) for gpu in range(topology.gpus)}
    server |= {int(host): node for node in range(topology.gpus // 8) for host in topology.hosts_of(node)}
    found: list[set[float]] = [set() for _ in range(topology.gpus // 8)]
    for link in np.flatnonzero(topology.link_kind == kind).tolist():
        ends = (int(topology.link_src[link]), int(topology.link_dst[link]))
        for end in ends:
            if end in server:
                found[server[end]].add(topology.capacity_bps[link] / 1e9)
    return [sorted(rates) for rates in found]


@pytest.mark.parametrize("fields", [{}, {"nvswitches_per_node": 4}], ids=["one plane", "four planes"])
def test_servers_have_the_links_of_their_own_gpus(fields: dict[str, Any]) -> None:
    """A100: 12 NVLinks of 20 GB/s as NCCL reckons, and PCIe 4.0 x16; H200: 18 of 20.6 GB/s, PCIe 5.0 x16. What the
    topology states holds for all."""
    pools = [pool("p", "prefill", tp=8, hardware="a100"), pool("d", "decode", tp=8)]
    topology = {"kind": "rail_optimized", "gpus_per_node": 8, "pcie": {}, **fields}
    planes = fields.get("nvswitches_per_node", 1)
    plan = plan_simulation(config(pools, topology=topology))
    assert rates_of(plan.topology, LinkKind.NVLINK) == [[1920 / planes], [2966.4 / planes]]
    assert rates_of(plan.topology, LinkKind.PCIE) == [[252], [504]]
    again = plan_simulation(plan.config)  # as it is written beside results
    assert (again.topology.capacity_bps == plan.topology.capacity_bps).all()
    stated = plan_simulation(config(pools, topology={**topology, "nvlink": "900Gbps", "pcie": {"rate": "100Gbps"}}))
    assert rates_of(stated.topology, LinkKind.NVLINK) == [[900 / planes]] * 2
    assert rates_of(stated.topology, LinkKind.PCIE) == [[100]] * 2


def test_only_links_inside_servers_have_a_rate_by_server() -> None:
    topology = build_topology(RailOptimizedSpec(gpus_per_node=2, nodes=2))
    for kind, shares, expected in (
        (LinkKind.NIC, [1, 1], "found nic, expected a link inside servers"),
        (LinkKind.NVLINK, [1], "expected 2 above 0"),
        (LinkKind.NVLINK, [1, 0], "expected 2 above 0"),
    ):
        with pytest.raises(InputError, match=expected):
            with_server_rates(topology, kind, shares)
