"""Partitions of a model that fit into the memory of a GPU, for the pools of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aicb import Gpu, Model, Partition, Precision
from aicb.model.architecture import MoeFfn
from aicb.operators.memory import MemoryLimits, planned_memory
from boundary.errors import InputError

SERVER_GPUS: Final = 8
"""Over which tensor parallelism goes at most: the GPUs of an HGX server share NVLink."""
WIDEST: Final = 32
"""GPUs of the widest expert-parallel instance that is tried."""


def fitting_partitions(
    model: Model, gpu: Gpu, precision: Precision, limits: MemoryLimits, most_gpus: int
) -> list[Partition]:
    """Partitions that leave room for KV, the fewest GPUs first.

    Tensor parallelism within a server (with its experts shared by the same GPUs), and for models with routed experts
    data-parallel attention with experts over all of its GPUs, within a server and across.

    Raises:
        InputError: the model does not fit into the GPUs at all, saying how far it is from it.
    """
    found, last = [], None
    for partition in _candidates(model, most_gpus):
        try:
            planned_memory(model, partition, precision, gpu, limits)
        except InputError as error:
            last = error
        else:
            found.append(partition)
    if not found:
        raise InputError(f"{model.name} on {gpu.name}: found no partition of up to {most_gpus} GPUs that fits ({last})")
    return found


def _candidates(model: Model, most_gpus: int) -> Iterator[Partition]:
    has_experts = any(isinstance(kind.ffn, MoeFfn) for kind in model.kinds)
    degree = 1
    while degree <= min(WIDEST, most_gpus):
        if degree <= SERVER_GPUS:
            yield Partition(degree, degree if has_experts else 1, 1, 1)
        if has_experts and degree > 1:
            yield Partition(1, degree, degree, 1)
        degree *= 2
