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
from aicb.measurements.gpu import MIB
from aicb.model.architecture import GatedDeltaNet, LatentAttention
from aicb.model.kv_groups import kv_groups
from aicb.operators.norm_kernel import FUSED_UP_TO_BYTES
from boundary.errors import InputError

GIB: Final = 2**30
SERVER_GPUS: Final = 8
"""Of an HGX server."""
LARGEST_GRAPHS: Final = ((160, (512, 512)), (60, (256, 512)), (35, (32, 160)), (20, (48, 160)), (0, (8, 8)))
"""Requests of SGLang's largest graph of decodes by GiB of memory, with up to three GPUs of a stage and with more."""
PREFILL_GRAPHS: Final = ((0, 4), (32, 16), (256, 32), (512, 64), (1024, 256), (4096, 512))
"""Behind how many tokens SGLang has graphs of prefills for every so many more (``arg_groups/cuda_graph_hook.py``)."""
WHOLE_PROMPT_TOKENS: Final = 16384
"""SGLang's ``max_prefill_tokens``, which stands for a chunk where prompts are not cut."""
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


DP_CONSERVATIVENESS: Final = 0.3
"""By which SGLang multiplies its ``schedule_conservativeness`` with data-parallel attention."""


def with_divided_attention(engine: Mapping[str, Any], stated: Mapping[str, Any], pool: Mapping[str, Any]) -> Tree:
    """What SGLang 0.5.23 changes with data-parallel attention (``server_args.py``, `_handle_data_parallelism`).

    A chunk is that of all ranks, so that each has its part, and prompts are admitted more freely. A part is no less
    than the requests that are stated, as decodes take a token each here and are not bound by it there; pools that only
    decode have no chunk. ``engine``: the profile's fields so far. Nothing where ranks share no experts: they are
    servers apart.
    """
    dp, ep = _whole(pool.get("dp", 1), 1), _whole(pool.get("ep", 1), 1)
    if dp == 1 or ep == 1:
        return {}
    fields: Tree = {"policy_options": {"schedule_conservativeness": DP_CONSERVATIVENESS}}
    if (stated.get("policy") or engine["policy"]) != engine["policy"]:
        fields = {}
    if pool.get("role") != "decode":
        fields["max_batched_tokens"] = max(engine["max_batched_tokens"] // dp, _whole(stated.get("max_seqs"), 1))
    return fields


def static_share(engine: Mapping[str, Any], max_seqs: Any, pool: Mapping[str, Any], gpu: str, model: str) -> Tree:
    """The share of memory for weights and KV that SGLang 0.5.23 has where nobody states one: ``1 − reserve / memory``.

    MiB of its reserve (``arg_groups/memory_hook.py``, `handle_gpu_memory_settings`): 512, 1.5 per token of a chunk, in
    decode pools per request, of at least 2048, and 128 per GPU; 2 per request of the largest graph of decodes, and with
    data-parallel attention 3 (4.5 above 300) per rank and request of it; 8 per graph of prefills, or 1536 for all with
    latent attention; at least 10,240 above 60 GiB of memory; with DeepEP 1024 for graphs of prefills and 2048 more.
    A chunk is that of one rank. Ignored: drafts, and the 0.85 by which AMD's attention multiplies the share.

    Empty, so that the profile's stands, where the reserve is more than the memory, and where ranks of data-parallel
    attention are on several servers: it grows with them, and operators state a share. ``engine``: with its defaults;
    ``max_seqs``: what is stated.
    """
    known, [tp, dp, pp] = _gpu(gpu), [_whole(pool.get(name, 1), 1) for name in ("tp", "dp", "pp")]
    if known is None or (dp > 1 and tp * dp > SERVER_GPUS):
        return {}
    memory_mib = known.hbm_bytes / MIB
    few, many = next(graphs for least, graphs in LARGEST_GRAPHS if memory_mib >= least * 1024)
    requests = _whole(max_seqs, 0) * dp
    graph = min(many if tp * dp >= 4 else few, requests or many)
    chunk, role = _whole(engine["max_batched_tokens"], 2048), pool.get("role")
    chunk = WHOLE_PROMPT_TOKENS if engine["chunked_prefill"] is False else chunk
    has_deep_ep, has_graphs = _has_deep_ep(engine["expert_dispatch"]), engine["cuda_graphs"] is True
    reserve = 512 + 1.5 * max((requests or graph) if role == "decode" else chunk, 2048) + 128 * tp * dp * pp
    if role != "prefill":
        reserve += 2 * graph if has_graphs else 0
        reserve += (4.5 if graph > 300 else 3) * graph * dp if dp > 1 else 0
    if role != "decode" and has_graphs and pp == 1 and not has_two_batches(engine):
        reserve += 1536 if _has_latents(model) else 8 * _prefill_graphs(chunk)
        reserve += 1024 if has_deep_ep else 0
    reserve = max(reserve, 10 * 1024) if memory_mib > 60 * 1024 else reserve
    reserve += 2048 if has_deep_ep and has_graphs and role != "prefill" else 0
    share = round(1 - reserve / memory_mib, 3)
    return {"gpu_memory_utilization": share} if share > 0 else {}


def _prefill_graphs(chunk: int) -> int:
    ends = [start for start, _ in PREFILL_GRAPHS[1:]] + [chunk]
    return sum(max(min(end, chunk) - start, 0) // step for (start, step), end in zip(PREFILL_GRAPHS, ends, strict=True))


def _has_deep_ep(dispatch: object) -> bool:
    kernels = dispatch.values() if isinstance(dispatch, Mapping) else (dispatch,)
    return any(str(kernel).startswith("deepep") for kernel in kernels)


@cache
def _has_latents(model: str) -> bool:
    try:
        return any(isinstance(kind.attention, LatentAttention) for kind in load_model(model).kinds)
    except InputError:
        return False


def _whole(value: object, default: int) -> int:
    """A number above 0 as it is read, or the default in place of anything else."""
    return value if isinstance(value, int) and value > 0 else default


def on_gpus(entry: Mapping[str, Any], gpu: str) -> Tree:
    """Fields of an engine on the ``gpus`` that the entry names; else none."""
    known = _gpu(gpu)
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
    known = _gpu(gpu)
    if known is None:
        return True
    try:
        simccl.check_measured(simccl.Stack(stack), known.interconnect)
    except InputError:
        return False
    return True


def _gpu(name: str) -> Gpu | None:
    try:
        return get_gpu(name)
    except InputError:
        return None
