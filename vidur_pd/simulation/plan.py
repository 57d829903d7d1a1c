"""The plan of a simulation: everything that is settled before simulated time starts, and that no run changes."""

from __future__ import annotations

from dataclasses import dataclass

import simccl
from aicb import Gpu, Model, Precision, load_model
from aicb.iteration.host import load_host
from boundary.errors import InputError
from netsim import Topology
from netsim.topologies.defaults import PCIE_BPS
from netsim.units import PS_PER_MS, PS_PER_US
from vidur_pd.cluster.faults.plan import Fault, plan_faults
from vidur_pd.cluster.planner.plan import FleetPlan, plan_fleet
from vidur_pd.cluster.routing.router import routing_class, routing_options
from vidur_pd.config import Role, SimulationConfig, hourly_price
from vidur_pd.execution.coupling.plan import CouplingPlan, plan_coupling
from vidur_pd.execution.instances.placement import Placement, PoolGpus, build_cluster
from vidur_pd.execution.instances.server_links import GpuLinks, PoolLinks, with_fastest, with_own_links
from vidur_pd.kv.transfer.modes.registry import mode_class
from vidur_pd.simulation.pools import (
    Estimators,
    PoolModel,
    PoolModels,
    ffn_gpu_of,
    gpu_of,
    known_pool,
    with_policy_options,
    with_weights,
)

HASH_BLOCK_TOKENS = 512
"""Prompt tokens behind one block hash where a workload has none of its own (Mooncake traces)."""


@dataclass(frozen=True, slots=True, eq=False)
class SimulationPlan:
    """What is simulated. Any number of runs may start from one plan; each gets a `SimulationState` of its own."""

    config: SimulationConfig
    """With everything that was left open filled in."""
    model: Model
    topology: Topology
    placements: tuple[Placement, ...]
    """[instances]"""
    pools: dict[str, PoolModel]
    coupling: CouplingPlan
    faults: tuple[Fault, ...]
    fleet: FleetPlan | None
    """``None`` without a planner."""
    hash_block_tokens: int
    connector_slowness: dict[str, float]
    """How many times longer the host of each pool takes for a transfer than its connector says."""

    def role_of(self, placement: Placement) -> Role:
        """What the ranks of an instance serve: more than its pool's role where routing has them do the other part."""
        routing = self.config.routing
        does_both = routing.has_mixed_pool or (routing.disaggregate is not None and placement.role == "decode")
        return "mixed" if does_both else placement.role

    @property
    def request_latency_ps(self) -> int:
        """From the client to the scheduler and from the sampled token back; charged once, before routing.

        A frontend was measured with it.
        """
        if self.config.frontend.kind != "none":
            return 0
        given_ms = self.config.engine.request_latency_ms
        if given_ms is not None:
            return round(given_ms * PS_PER_MS)
        entry = next(pool for pool in self.pools.values() if pool.pool.role != "decode")
        return round(entry.iteration_model.host.request_latency_us * PS_PER_US)

    @property
    def kv_precision(self) -> Precision:
        """Formats of what is handed over; equal for all pools that hand over."""
        return self._handing_pool.precision

    @property
    def kv_block_tokens(self) -> int:
        """Tokens of a KV block, likewise."""
        return self._handing_pool.engine.block_tokens

    @property
    def _handing_pool(self) -> PoolModel:
        """A pool that hands over, if there is one."""
        pools = list(self.pools.values())
        return next((pool for pool in pools if self.config.hands_over(pool.pool)), pools[0])

    @property
    def draft_layers(self) -> int:
        """Layers that draft whose KV is handed over with that of the model."""
        handing = (pool.drafting for pool in self.pools.values() if self.config.hands_over(pool.pool))
        return int(any(drafting is not None and drafting.is_by_layer for drafting in handing))


def plan_simulation(
    config: SimulationConfig, hash_block_tokens: int | None = None, known: PoolModels | None = None
) -> SimulationPlan:
    """The plan for a configuration.

    Args:
        config: what is simulated.
        hash_block_tokens: the block size of the workload's hashes.
        known: pools of earlier plans, to which those of this one are added: they keep the prices that runs have met.

    Raises: InputError of any package, for what model, partitions, GPUs, topology and engines do not allow.
    """
    coupling = plan_coupling(config)
    model = load_model(config.model)
    gpus = {pool.name: gpu_of(config, pool) for pool in config.cluster.pools}
    ffn_gpus = {pool.name: ffn_gpu_of(config, pool) for pool in config.cluster.pools}
    links = {name: PoolLinks(_links_of(gpu), _links_of(ffn_gpus[name])) for name, gpu in gpus.items()}
    fleet = plan_fleet(config)
    twins = {} if fleet is None else fleet.twins
    names = {name: PoolGpus(gpu.name, ffn_gpus[name].name) for name, gpu in gpus.items()}
    cluster = build_cluster(with_fastest(config.cluster, links), names, twins)
    if len({kind for each in links.values() for kind in (each.own, each.ffn)}) == 1:
        config = config.model_copy(update={"cluster": with_fastest(config.cluster, links)})
    else:
        cluster = with_own_links(cluster, config.cluster, links)
    estimators: Estimators = {}
    known = {} if known is None else known
    pools = {pool.name: known_pool(config, pool, model, estimators, known) for pool in config.cluster.pools}
    _check_kv(config, pools)
    _check_own_classes(config)
    config = _with_routing_options(with_weights(with_policy_options(config, pools), pools))
    _check_splitwise(config)
    _check_nics(config, cluster.topology)
    _check_prices(config)
    if config.routing.disaggregate is not None and not config.is_disaggregated:
        raise InputError("routing.disaggregate: found without pools of the roles prefill and decode, expected them")
    return SimulationPlan(
        config=config,
        model=model,
        topology=cluster.topology,
        placements=tuple(cluster.placements),
        pools=pools,
        coupling=coupling,
        faults=plan_faults(config, cluster.topology, cluster.placements),
        fleet=fleet,
        hash_block_tokens=hash_block_tokens or HASH_BLOCK_TOKENS,
        connector_slowness=_connector_slowness(config),
    )


def _connector_slowness(config: SimulationConfig) -> dict[str, float]:
    """By pool: a launch of its host over one of the host on which the connector's host time was measured."""
    connector, pools = config.kv_transfer.connector, config.cluster.pools
    if connector.measured_on is None:
        return dict.fromkeys((pool.name for pool in pools), 1.0)
    try:
        launch_us = load_host(connector.measured_on).eager_launch_us
    except InputError as error:
        raise InputError(f"kv_transfer.connector.measured_on: {error}") from None
    if not launch_us:
        raise InputError(
            f"kv_transfer.connector.measured_on: found {connector.measured_on} with eager_launch_us 0, "
            "expected a host whose launches take time"
        )
    return {pool.name: load_host(config.engine_of(pool).host).eager_launch_us / launch_us for pool in pools}


def _links_of(gpu: Gpu) -> GpuLinks:
    """Of the GPU's NVLink, the rate that NCCL reckons with."""
    nvlink_bps = round(simccl.gpu_named(gpu.interconnect).nvlink_gbytes_per_s * 8e9)
    return GpuLinks(nvlink_bps, PCIE_BPS if gpu.host_bytes_per_s is None else round(gpu.host_bytes_per_s * 8))


def _check_kv(config: SimulationConfig, pools: dict[str, PoolModel]) -> None:
    """The KV of all pools that hand it over has one format and one block size, and that of the same layers."""
    if not config.is_disaggregated:
        return
    for field in ("kv", "block_tokens"):
        found = {p.pool.name: getattr(p.engine, field) for p in pools.values() if config.hands_over(p.pool)}
        if len(set(found.values())) > 1:
            text = ", ".join(f"{name} {value}" for name, value in found.items())
            raise InputError(f"engine.{field}: found {text}, expected one value for pools that hand KV over")
    by_layer = {
        p.pool.name: p.drafting is not None and p.drafting.is_by_layer
        for p in pools.values()
        if config.routing.has_mixed_pool
    }
    if len(set(by_layer.values())) > 1:
        without = next(name for name, has_layer in by_layer.items() if not has_layer)
        raise InputError(
            f"cluster.pools.{without}.engine.speculative: found none by a layer, expected one as in the other pools, "
            "as each may get KV from each"
        )


def _check_own_classes(config: SimulationConfig) -> None:
    """Routing policies and modes of KV transfers that the configuration names are there."""
    mode_class(config.kv_transfer.mode)
    for field in ("policy", "decode_policy", "rank_policy"):
        policy = getattr(config.routing, field)
        if policy is not None:
            routing_class(f"routing.{field}", policy)


def _with_routing_options(config: SimulationConfig) -> SimulationConfig:
    """The configuration with all options of its routing policies filled in."""
    fields = ["policy"] + (["decode_policy"] if config.routing.decode_policy is not None else [])
    options = {
        f"{field}_options": routing_options(config.routing, field).model_dump(mode="json")
        for field in fields
        if not (field == "policy" and config.routing.is_splitwise)
    }
    return config.model_copy(update={"routing": config.routing.model_copy(update=options)})


def _check_nics(config: SimulationConfig, topology: Topology) -> None:
    nics, most = config.kv_transfer.connector.nics, topology.gpus_per_node
    if nics > most:
        raise InputError(
            f"kv_transfer.connector.nics: found {nics}, expected at most {most}, one for each GPU of a node"
        )


def _check_prices(config: SimulationConfig) -> None:
    """A price list has all GPUs."""
    if config.prices is None:
        return
    for pool in config.cluster.pools:
        for name in config.gpus_by_hardware(pool):
            hourly_price(config.prices.gpu_hour, name)


def _check_splitwise(config: SimulationConfig) -> None:
    """Splitwise has machines for prompts and for tokens, and reserves memory for KV when a prompt is computed."""
    if not config.routing.is_splitwise:
        return
    if not config.is_disaggregated:
        raise InputError("routing.policy: found splitwise, expected it with pools of the roles prefill and decode")
    mixed = [pool.name for pool in config.cluster.pools if pool.role == "mixed"]
    if mixed and not config.routing.has_mixed_pool:
        raise InputError(
            f"cluster.pools.{mixed[0]}.role: found mixed, expected prefill or decode, as routing.splitwise.scheduler "
            "is not mixed_pool"
        )
    if config.routing.has_mixed_pool and config.kv_transfer.mode != "pull":
        raise InputError(
            f"kv_transfer.mode: found {config.kv_transfer.mode}, expected pull with routing.splitwise.scheduler "
            "mixed_pool: blocks that are reserved before prompts are computed, on machines that compute prompts "
            "themselves, could make each wait for the other for ever"
        )
