"""Defaults of an engine that hang on the rest of a configuration: its GPU, model, partition and drafts.

Values are as read: what they hold is validated later, and what cannot be read here changes no default.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final

import simccl
from aicb import Gpu, Partition, Precision, get_gpu, load_model
from aicb.model.architecture import GatedDeltaNet
from aicb.model.kv_groups import kv_groups
from boundary.errors import InputError

GIB: Final = 2**30
Tree = dict[str, Any]
_log = logging.getLogger(__name__)


def by_gpu_memory(entries: Collection[Mapping[str, Any]], gpu: str) -> Tree:
    """Fields of the last of the entries that a GPU satisfies: ``at_least_gib`` of memory, and not under ``except``."""
    known = _gpu(gpu)
    fields: Tree = {}
    if known is None:
        return fields
    for entry in entries:
        if known.hbm_bytes >= entry["at_least_gib"] * GIB and known.name not in entry.get("except", ()):
            fields = entry["engine"]
    return fields


def can_plan_ahead(policies: Collection[str], engine: Mapping[str, Any], pp: Any) -> bool:
    """Whether iterations are decided asynchronously by default.

    Here not with drafts, nor with several pipeline stages, which have a batch each under way anyhow, nor by another
    policy than the framework's.
    """
    return engine.get("policy") in policies and not engine.get("speculative") and pp == 1


@cache
def has_prefix_hits(model: str) -> bool:
    """Whether prefix caching is on for a model.

    It is not for those with a recurrent state (vLLM 0.24.0, `ModelConfig.is_prefix_caching_supported`), and here not
    for those with several groups of layers that keep every token.
    """
    try:
        loaded = load_model(model)
        has_one_group = kv_groups(loaded, Partition(), Precision()).whole == 1
    except InputError:
        return True
    return has_one_group and not any(isinstance(kind.attention, GatedDeltaNet) for kind in loaded.kinds)


def measured_collectives(stack: str, gpus: Collection[str]) -> str:
    """The engine's own all-reduce kernels where they were measured on all GPUs, else NCCL's."""
    return stack if all(_are_measured(stack, gpu) for gpu in gpus) else str(simccl.Stack.NCCL)


@cache
def _are_measured(stack: str, gpu: str) -> bool:
    known = _gpu(gpu)
    if known is None:
        return True
    try:
        simccl.check_measured(simccl.Stack(stack), known.interconnect)
    except InputError:
        _log.warning(
            "network.collectives: NCCL's all-reduce stands for that of %s, which was not measured on %s", stack, gpu
        )
        return False
    return True


def _gpu(name: str) -> Gpu | None:
    try:
        return get_gpu(name)
    except InputError:
        return None
