"""The space of ``vidur-pd plan``: prefill and decode pools, or one for both, of every partition that fits, in every
number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from aicb import Partition, Precision, load_model
from boundary.errors import InputError
from vidur_pd.config import PoolConfig, SimulationConfig
from vidur_pd.config.file import apply_override, parse_config
from vidur_pd.config.kv_transfer import IDEAL, OF_FRAMEWORKS
from vidur_pd.search.space.objective import Objective
from vidur_pd.search.space.partitions import SERVER_GPUS, fitting_partitions
from vidur_pd.search.space.space import MOST_POINTS, Space, make_space
from vidur_pd.simulation.pool_checks import engine_field, is_own
from vidur_pd.simulation.pools import gpu_of, memory_limits

MOST_INSTANCES: Final = 16
"""Of a pool."""
MET: Final = {"handshake_us": 0, "handshake_descriptor_us": 0}
"""First contacts of instances are over: a deployment is judged by what it serves from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a user wants served, and on what."""

    model: str
    gpu: str
    workload: Mapping[str, Any]
    """As in a configuration."""
    gpus_max: int
    weights: str | None
    """``None``: as the model is published, where the GPU can compute in it."""
    framework: str
    nic: str
    settings: Sequence[str]
    """Overrides of the configuration that all points share."""
    is_colocated: bool = False
    """Instances serve both phases, instead of prefill and decode apart."""


def plan_space(wish: Wish) -> Space:
    """The space of deployments for a wish; least GPUs win. Raises: InputError."""
    roles = {"server": "mixed"} if wish.is_colocated else {"prefill": "prefill", "decode": "decode"}
    base: dict[str, Any] = {
        "model": wish.model,
        "hardware": wish.gpu,
        "workload": dict(wish.workload),
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": SERVER_GPUS, "nic": wish.nic},
            "pools": [{"name": name, "role": role} for name, role in roles.items()],
        },
        "engine": {"framework": wish.framework, "weights": wish.weights},
        "output": {"iterations": False, "links": False},
    }
    if not wish.is_colocated:
        base["kv_transfer"] = {"connector": {"kind": OF_FRAMEWORKS.get(wish.framework, IDEAL), **MET}}
    for setting in wish.settings:
        apply_override(base, setting)
    config = parse_config(deepcopy(base), Path(), "plan")
    partitions = {pool.name: _partitions(wish, config, pool) for pool in config.cluster.pools}
    least = {name: min(map(_gpus, found)) for name, found in partitions.items()}
    if sum(least.values()) > wish.gpus_max:
        needed = " and ".join(
            f"{least[pool.name]} {config.hardware_of(pool)} per {pool.name} instance" for pool in config.cluster.pools
        )
        raise InputError(
            f"--gpus-max: found {wish.gpus_max}, expected at least {sum(least.values())}: {wish.model} needs {needed}"
        )
    room = int((MOST_POINTS / prod(map(len, partitions.values()))) ** (1 / len(partitions)))
    choices: dict[str, list[Any]] = {}
    for name, found in partitions.items():
        choices[f"cluster.pools.{name}"] = [_choice(partition) for partition in found]
    for name in partitions:
        most = min(wish.gpus_max // least[name], MOST_INSTANCES, room)
        choices[f"cluster.pools.{name}.instances"] = list(range(1, most + 1))
    tree = {"base": base, "choices": choices, "objective": Objective.MIN_GPUS, "gpus_max": wish.gpus_max}
    return make_space(tree, Path(), "plan")


def _partitions(wish: Wish, config: SimulationConfig, pool: PoolConfig) -> list[Partition]:
    """Those that fit with the engine and the GPU of the pool."""
    model, gpu, engine = load_model(config.model), gpu_of(config, pool), config.engine_of(pool)
    precision = Precision(engine.weights or gpu.weights_of(model.published_weights), engine.kv)
    is_wished = engine.weights == wish.weights and not is_own(pool, "weights")
    for each in (model, gpu):
        each.check(precision, "--weights" if is_wished else engine_field(pool, "weights"))
    return fitting_partitions(model, gpu, precision, memory_limits(engine), wish.gpus_max)


def _choice(partition: Partition) -> dict[str, int]:
    degrees = (("tp", partition.tp), ("ep", partition.ep), ("dp", partition.dp))
    return {name: degree for name, degree in degrees if degree > 1} or {"tp": 1}


def _gpus(partition: Partition) -> int:
    return partition.tp * partition.dp * partition.pp
