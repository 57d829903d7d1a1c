"""Defaults that SGLang 0.5.23 computes: its share of memory, and what data-parallel attention changes.

Values are as read, as in `vidur_pd.config.engine_conditions`. Files are those of the wheel, below ``sglang/srt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from aicb import load_model
from aicb.measurements.gpu import MIB
from aicb.model.architecture import LatentAttention
from boundary.errors import InputError
from vidur_pd.config.engine_conditions import has_two_batches, known_gpu

SERVER_GPUS: Final = 8
"""Of an HGX server."""
LARGEST_GRAPHS: Final = ((160, (512, 512)), (60, (256, 512)), (35, (32, 160)), (20, (48, 160)), (0, (8, 8)))
"""Requests of SGLang's largest graph of decodes by GiB of memory, with up to three GPUs of a stage and with more."""
PREFILL_GRAPHS: Final = ((0, 4), (32, 16), (256, 32), (512, 64), (1024, 256), (4096, 512))
"""Behind how many tokens SGLang has graphs of prefills for every so many more (``arg_groups/cuda_graph_hook.py``)."""
MOST_LATENT_GRAPH_TOKENS: Final = 8192
"""Of graphs of prefills with latent attention."""
WHOLE_PROMPT_TOKENS: Final = 16384
"""SGLang's ``max_prefill_tokens``, which stands for a chunk where prompts are not cut."""
DP_CONSERVATIVENESS: Final = 0.3
"""By which SGLang multiplies its ``schedule_conservativeness`` with data-parallel attention."""
Tree = dict[str, Any]


def with_divided_attention(engine: Mapping[str, Any], stated: Mapping[str, Any], pool: Mapping[str, Any]) -> Tree:
    """What SGLang 0.5.23 changes with data-parallel attention (``server_args.py``, `_handle_data_parallelism`).

    A chunk is that of all ranks, so that each has its part, and prompts are admitted more freely. A part is no less
    than the requests that are stated, as decodes take a token each here and are not bound by it there; pools that only
    decode have no chunk. Grouped-query attention makes its schedule in each layer
    (``layers/attention/flashattention_backend.py``, `_should_disable_scheduler_metadata_precompute`). ``engine``: the
    profile's fields so far. Nothing where ranks share no experts: they are servers apart.
    """
    dp, ep = _whole(pool.get("dp", 1), 1), _whole(pool.get("ep", 1), 1)
    if dp == 1 or ep == 1:
        return {}
    fields: Tree = {"policy_options": {"schedule_conservativeness": DP_CONSERVATIVENESS}}
    if (stated.get("policy") or engine["policy"]) != engine["policy"]:
        fields = {}
    if engine["gqa_kernel"] == "fa3_sglang":
        fields["gqa_kernel"] = "fa3"
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
    known, [tp, dp, pp] = known_gpu(gpu), [_whole(pool.get(name, 1), 1) for name in ("tp", "dp", "pp")]
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
    if has_prompt_graphs(role, pp, has_graphs=has_graphs, has_two_batches=has_two_batches(engine)):
        reserve += 1536 if _has_latents(model) else 8 * len(_prefill_graphs(chunk))
        reserve += 1024 if has_deep_ep else 0
    reserve = max(reserve, 10 * 1024) if memory_mib > 60 * 1024 else reserve
    reserve += 2048 if has_deep_ep and has_graphs and role != "prefill" else 0
    share = round(1 - reserve / memory_mib, 3)
    return {"gpu_memory_utilization": share} if share > 0 else {}


def has_prompt_graphs(role: object, pp: int, *, has_graphs: bool, has_two_batches: bool) -> bool:
    """Whether SGLang 0.5.23 replays prompts: not with two half batches, pipeline stages or context parallelism
    (``arg_groups/cuda_graph_hook.py``, `disable_breakable_cudagraph_if_incompatible`), and not in decode pools
    (`apply_cuda_graph_disaggregation_roles`)."""
    return has_graphs and not has_two_batches and pp == 1 and role != "decode"


def prompt_graphs(engine: Mapping[str, Any], pool: Mapping[str, Any], model: str) -> Tree:
    """Tokens of the graphs of prompts that SGLang 0.5.23 replays between attentions: up to a chunk, with latent
    attention at most 8,192 (``arg_groups/memory_hook.py``). ``engine``: with its defaults. Of prompts that are not cut
    there are as many as of ``max_prefill_tokens``."""
    chunk = _whole(engine["max_batched_tokens"], 2048)
    chunk = WHOLE_PROMPT_TOKENS if engine["chunked_prefill"] is False else chunk
    most = min(chunk, MOST_LATENT_GRAPH_TOKENS) if _has_latents(model) else chunk
    has_graphs, halves = engine["cuda_graphs"] is True, has_two_batches(engine)
    has_some = has_prompt_graphs(
        pool.get("role"), _whole(pool.get("pp", 1), 1), has_graphs=has_graphs, has_two_batches=halves
    )
    return {"prompt_graph_sizes": _prefill_graphs(most) if has_some else []}


def _prefill_graphs(most: int) -> list[int]:
    ends = [start for start, _ in PREFILL_GRAPHS[1:]] + [most]
    return [
        size
        for (start, step), end in zip(PREFILL_GRAPHS, ends, strict=True)
        for size in range(start + step, min(end, most) + 1, step)
    ]


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
