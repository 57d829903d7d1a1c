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
from aicb.operators.norm_kernel import FUSED_UP_TO_BYTES
from boundary.errors import InputError

GIB: Final = 2**30
Tree = dict[str, Any]
_log = logging.getLogger(__name__)


def by_gpu_memory(entries: Collection[Mapping[str, Any]], gpu: str) -> Tree:
    """Fields of the last of the entries that a GPU satisfies: ``at_least_gib`` of memory, and not under ``except``."""
    known = known_gpu(gpu)
    fields: Tree = {}
    if known is None:
        return fields
    for entry in entries:
        if known.hbm_bytes >= entry["at_least_gib"] * GIB and known.name not in entry.get("except", ()):
            fields = entry["engine"]
    return fields


def on_gpus(entry: Mapping[str, Any], gpu: str) -> Tree:
    """Fields of an engine on the ``gpus`` that the entry names; else none."""
    known = known_gpu(gpu)
    return dict(entry["engine"]) if known is not None and known.name in entry.get("gpus", ()) else {}


def with_own_all_reduce(entry: Mapping[str, Any], gpu: str, collectives: Any) -> Tree:
    """Fields of an engine whose own all-reduce kernels run, on the ``gpus`` that the entry names; else none."""
    return on_gpus(entry, gpu) if collectives != str(simccl.Stack.NCCL) else {}


def warn_of_estimated_norms(engine: Mapping[str, Any], tp: Any) -> None:
    """Says that the kernel of norms with all-reduces was measured among fewer ranks than run it here."""
    if isinstance(tp, int) and are_norms_estimated(engine.get("norm_kernel"), tp):
        _warn_of_ranks(tp)


def are_norms_estimated(norm_kernel: object, tp: int) -> bool:
    """Whether norms run in FlashInfer's all-reduce among so many ranks, and it was not measured among them."""
    return norm_kernel == "flashinfer" and tp in FUSED_UP_TO_BYTES and tp not in simccl.FLASHINFER_RANKS


@cache
def _warn_of_ranks(ranks: int) -> None:
    """Once in a process, however many configurations it reads."""
    _log.warning("engine.norm_kernel: FlashInfer's all-reduce was not measured among %d ranks: estimated", ranks)


def with_whole_experts(entry: Mapping[str, Any], gpu: str, pool: Mapping[str, Any]) -> Tree:
    """Fields of an engine whose ranks hold all experts, on the ``gpus`` that the entry names; else none.

    ``pool``: what has the experts, a pool or its FFN workers.
    """
    return on_gpus(entry, gpu) if pool.get("ep", 1) == 1 else {}


def with_divided_experts(entry: Mapping[str, Any], gpu: str, pool: Mapping[str, Any]) -> Tree:
    """Fields of an engine whose ranks share experts, on the ``gpus`` that the entry names; none with FFN workers."""
    return on_gpus(entry, gpu) if pool.get("ep", 1) != 1 and not pool.get("ffn") else {}


def has_two_batches(engine: Mapping[str, Any]) -> bool:
    """Whether two batches take turns, for which engines want DeepEP or another all-to-all."""
    overlap = engine.get("overlap")
    return isinstance(overlap, Mapping) and overlap.get("two_batch") is True


def can_plan_ahead(
    policy: str, engine: Mapping[str, Any], pool: Mapping[str, Any], routing: Any, with_drafts: Collection[str]
) -> bool:
    """Whether iterations are decided asynchronously by default.

    ``policy``: the framework's. ``pool``: whose ranks they are, if known. ``with_drafts``: methods of drafting with
    which the framework does so.

    Here not with several pipeline stages, which have a batch each under way anyhow, nor by another policy, which may
    not look whether a request is in an iteration already.
    """
    drafting = engine.get("speculative") if _decodes(pool, routing) else None
    method = drafting.get("method", "mtp") if isinstance(drafting, Mapping) else None
    may_draft = drafting is None or method in with_drafts
    return engine.get("policy") == policy and may_draft and pool.get("pp", 1) == 1


def _decodes(pool: Mapping[str, Any], routing: Any) -> bool:
    """`SimulationConfig.decodes` of a pool as it is read: Splitwise's mixed pool may take instances of every pool."""
    if pool.get("role") != "prefill":
        return True
    if not isinstance(routing, Mapping) or routing.get("policy") != "splitwise":
        return False
    splitwise = routing.get("splitwise")
    return not isinstance(splitwise, Mapping) or splitwise.get("scheduler", "mixed_pool") == "mixed_pool"


def max_model_len(stated: Any, model: str) -> int:
    """Longest prompt + output: an iteration has room for it where prompts are not cut (vLLM's `EngineArgs`)."""
    if isinstance(stated, int):
        return stated
    try:
        return load_model(model).max_context_tokens
    except InputError:
        return 0


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


def measured_collectives(stack: str, gpus: Collection[str], *, is_used: bool) -> str:
    """The engine's own all-reduce kernels where all GPUs have measured ones, else NCCL's; warns if they are used."""
    unmeasured = sorted(gpu for gpu in gpus if not _are_measured(stack, gpu))
    if unmeasured and is_used:
        _warn_of_nccl(stack, ", ".join(unmeasured))
    return str(simccl.Stack.NCCL) if unmeasured else stack


@cache
def _warn_of_nccl(stack: str, gpus: str) -> None:
    """Once in a process, however many configurations it reads."""
    _log.warning("network.collectives: NCCL's all-reduce stands for that of %s, not measured on %s", stack, gpus)


@cache
def _are_measured(stack: str, gpu: str) -> bool:
    known = known_gpu(gpu)
    if known is None:
        return True
    try:
        simccl.check_measured(simccl.Stack(stack), known.interconnect)
    except InputError:
        return False
    return True


def known_gpu(name: str) -> Gpu | None:
    """The GPU, if there is one of that name."""
    try:
        return get_gpu(name)
    except InputError:
        return None
