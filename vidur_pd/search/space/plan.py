"""The space of ``vidur-pd plan``: prefill and decode pools of every partition that fits, in every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aicb import Partition, Precision, canonical_gpu, get_gpu, load_model
from boundary.errors import InputError
from vidur_pd.config.file import apply_override, parse_config
from vidur_pd.search.space.objective import Objective
from vidur_pd.search.space.partitions import SERVER_GPUS, fitting_partitions
from vidur_pd.search.space.space import MOST_POINTS, Space, make_space
from vidur_pd.simulation.pools import memory_limits

MOST_INSTANCES: Final = 16
"""Of a pool."""


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


def plan_space(wish: Wish) -> Space:
    """The space of deployments for a wish; least GPUs win. Raises: InputError."""
    model, gpu = load_model(wish.model), get_gpu(canonical_gpu(wish.gpu))
    weights = wish.weights or gpu.weights_of(model.published_weights)
    base: dict[str, Any] = {
        "model": wish.model,
        "hardware": wish.gpu,
        "workload": dict(wish.workload),
        "cluster": {
            "topology": {"kind": "rail_optimized", "gpus_per_node": SERVER_GPUS, "nic": wish.nic},
            "pools": [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}],
        },
        "engine": {"framework": wish.framework, "weights": weights},
        "output": {"iterations": False, "links": False},
    }
    for setting in wish.settings:
        apply_override(base, setting)
    engine = parse_config(deepcopy(base), Path(), "plan").engine
    precision = Precision(engine.weights or gpu.weights_of(model.published_weights), engine.kv)
    for each in (model, gpu):
        each.check(precision, "--weights" if engine.weights == wish.weights else "engine.weights")
    partitions = fitting_partitions(model, gpu, precision, memory_limits(engine), wish.gpus_max)
    choices = [_choice(partition) for partition in partitions]
    least = min(_gpus(partition) for partition in partitions)
    if 2 * least > wish.gpus_max:
        raise InputError(
            f"--gpus-max: found {wish.gpus_max}, expected at least {2 * least}: {wish.model} needs {least} {wish.gpu} "
            "per instance, and there are prefill and decode instances"
        )
    numbers = _numbers(wish.gpus_max // least, len(choices))
    tree = {
        "base": base,
        "choices": {
            "cluster.pools.prefill": choices,
            "cluster.pools.decode": choices,
            "cluster.pools.prefill.instances": numbers,
            "cluster.pools.decode.instances": numbers,
        },
        "objective": Objective.MIN_GPUS,
        "gpus_max": wish.gpus_max,
    }
    return make_space(tree, Path(), "plan")


def _numbers(most: int, partitions: int) -> list[int]:
    """Instances that are tried: all up to the most that there is room for, as far as the space stays small."""
    room = int((MOST_POINTS / partitions**2) ** 0.5)
    return list(range(1, min(most, MOST_INSTANCES, room) + 1))


def _choice(partition: Partition) -> dict[str, int]:
    degrees = (("tp", partition.tp), ("ep", partition.ep), ("dp", partition.dp))
    return {name: degree for name, degree in degrees if degree > 1} or {"tp": 1}


def _gpus(partition: Partition) -> int:
    return partition.tp * partition.dp * partition.pp
