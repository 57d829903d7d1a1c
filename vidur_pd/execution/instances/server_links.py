"""Links inside servers: of pools with other GPUs each has its own NVLink, and its own way to the memory of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from netsim.topologies.build import FileSpec
from netsim.topologies.own_rates import with_server_rates
from netsim.topology import LinkKind
from vidur_pd.config import ClusterConfig
from vidur_pd.execution.instances.placement import Cluster


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """Rates of a GPU's links inside its server, per direction."""

    nvlink_bps: int
    host_bps: int


@dataclass(frozen=True, slots=True)
class PoolLinks:
    """Of the GPUs of a pool, and of its FFN workers, which are the same where there are none."""

    own: GpuLinks
    ffn: GpuLinks


def with_fastest(config: ClusterConfig, links: Mapping[str, PoolLinks]) -> ClusterConfig:
    """The cluster with the rates of the fastest GPUs of its pools (``links`` by name), where its topology has none."""
    spec = config.topology
    if isinstance(spec, FileSpec):
        return config
    changed: dict[str, object] = {}
    if "nvlink" not in spec.model_fields_set:
        changed["nvlink"] = max(each.nvlink_bps for each in _kinds(links))
    if spec.pcie is not None and "rate" not in spec.pcie.model_fields_set:
        changed["pcie"] = spec.pcie.model_copy(update={"rate": max(each.host_bps for each in _kinds(links))})
    return config.model_copy(update={"topology": spec.model_copy(update=changed)}) if changed else config


def with_own_links(cluster: Cluster, config: ClusterConfig, links: Mapping[str, PoolLinks]) -> Cluster:
    """The cluster with each server's rates, where ``config`` leaves them open.

    Servers without an instance have the rates of the fastest.
    """
    spec, topology = config.topology, cluster.topology
    if isinstance(spec, FileSpec):
        return cluster
    if "nvlink" not in spec.model_fields_set:
        shares = _shares(cluster, links, lambda each: each.nvlink_bps)
        topology = with_server_rates(topology, LinkKind.NVLINK, shares)
    if spec.pcie is not None and "rate" not in spec.pcie.model_fields_set:
        topology = with_server_rates(topology, LinkKind.PCIE, _shares(cluster, links, lambda each: each.host_bps))
    return replace(cluster, topology=topology)


def _kinds(links: Mapping[str, PoolLinks]) -> list[GpuLinks]:
    return [kind for each in links.values() for kind in (each.own, each.ffn)]


def _shares(cluster: Cluster, links: Mapping[str, PoolLinks], rate: Callable[[GpuLinks], int]) -> Sequence[float]:
    """[servers] rate over that of the fastest."""
    topology, fastest_bps = cluster.topology, max(map(rate, _kinds(links)))
    shares = [1.0] * (topology.gpus // topology.gpus_per_node)
    for placement in cluster.placements:
        of_pool = links[placement.pool]
        for gpus, each in ((placement.gpus, of_pool.own), (placement.ffn_gpus, of_pool.ffn)):
            for gpu in gpus:
                shares[topology.node_of(gpu)] = rate(each) / fastest_bps
    return shares
