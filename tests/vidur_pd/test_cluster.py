from __future__ import annotations

import pytest

from boundary.errors import InputError
from netsim.topologies.build import NvswitchSpec, RailOptimizedSpec
from vidur_pd.cluster.placement import Cluster
from vidur_pd.cluster.placement import build_cluster as build
from vidur_pd.config import ClusterConfig, PoolConfig


def cluster(*pools: PoolConfig, nodes: int | None = None) -> ClusterConfig:
    return ClusterConfig(topology=RailOptimizedSpec(gpus_per_node=8, nodes=nodes), pools=pools)


def build_cluster(config: ClusterConfig) -> Cluster:
    return build(config, {pool.name: pool.hardware or "h200" for pool in config.pools})


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


def test_an_expert_group_that_is_not_the_stage_is_refused() -> None:
    with pytest.raises(InputError, match=r"cluster\.pools\.p\.ep: found 4"):
        build_cluster(cluster(PoolConfig(name="p", role="mixed", tp=8, ep=4)))


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
