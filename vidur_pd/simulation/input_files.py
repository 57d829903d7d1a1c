"""Files that a simulation reads: what its results must not be written over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from aicb.iteration.host import host_files
from netsim.topologies.build import FileSpec
from vidur_pd.config import SimulationConfig
from vidur_pd.workload.loading import trace_paths


def input_files(config: SimulationConfig) -> list[Path]:
    """Traces, topology, hosts, models, GPUs and others that the configuration names, not what is built in."""
    return list(_input_files(config))


def _input_files(config: SimulationConfig) -> Iterator[Path]:
    from aicb import gpu_files, model_files

    yield from trace_paths(config.workload, Path())
    if isinstance(config.cluster.topology, FileSpec):
        yield config.cluster.topology.file
    network = config.network
    yield from (path for path in (network.hosts, network.measured, network.calibration) if path is not None)
    yield from model_files(config.model)
    for pool in config.cluster.pools:
        for gpu in config.gpus_by_hardware(pool):
            yield from gpu_files(gpu)
    engines = [config.engine, *(config.engine_of(pool) for pool in config.cluster.pools)]
    for host in (*(engine.host for engine in engines), config.kv_transfer.connector.measured_on):
        yield from host_files(host) if host is not None else ()
    routing = config.routing
    classes = [engine.policy for engine in engines] + [routing.policy, routing.decode_policy, routing.rank_policy]
    classes.append(config.kv_transfer.mode)
    for name in classes:
        place = (name or "").rpartition(":")[0]
        if place.endswith(".py"):
            yield Path(place)
    for engine in engines:
        kind, _, file = engine.expert_load.partition(":")
        if kind == "recorded":
            yield Path(file)
        if engine.speculative is not None and engine.speculative.draft_model is not None:
            yield from model_files(engine.speculative.draft_model)
