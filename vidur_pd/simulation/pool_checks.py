"""Checks of a pool's options against its model, its partition and the memory of its GPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from aicb import Drafting, Model, MoeLayout, Partition
from aicb.iteration.graph_sizes import MOST_CAPTURED_WITH_SINKS
from aicb.measurements.gpu import Gpu
from aicb.model.architecture import MoeFfn
from aicb.model.precision import SCALE_BLOCK, Precision
from aicb.operators.memory import InstanceMemory
from boundary.errors import InputError
from vidur_pd.config import NAMED_POLICIES, EngineConfig, PoolConfig, SimulationConfig
from vidur_pd.execution.instances.placement import partition_of
from vidur_pd.scheduling.policy import Policy

_log = logging.getLogger(__name__)


def check_options(config: SimulationConfig, pool: PoolConfig, model: Model, drafting: Drafting | None) -> None:
    """Raises: InputError, where an option does not go with the others, the model or the partition."""
    engine, partition = config.engine_of(pool), partition_of(pool)
    if pool.ffn is not None:
        _check_ffn_workers(config, pool, engine)
        return
    _check_experts(pool, engine, partition, model)
    _check_changing_experts(pool, engine, partition, model)
    _check_scheduling(pool, engine, drafting)
    _check_drafting(config, pool, drafting)


def _check_ffn_workers(config: SimulationConfig, pool: PoolConfig, engine: EngineConfig) -> None:
    """FFN workers are for decodes, and nothing else may divide an iteration or change experts."""
    if pool.role != "decode":
        raise InputError(f"cluster.pools.{pool.name}.ffn: found some with role {pool.role}, expected role decode")
    if pool.redundant_experts:
        raise InputError(
            f"cluster.pools.{pool.name}.redundant_experts: found {pool.redundant_experts}, expected 0, as experts are "
            "on FFN workers (ffn.redundant_experts)"
        )
    overlap = engine.overlap
    for name, found in (
        ("overlap.two_batch", overlap.two_batch),
        ("overlap.shared_expert", overlap.shared_expert is True),
        ("speculative", engine.speculative is not None),
        ("expert_drift", engine.expert_drift is not None),
        ("eplb", engine.eplb is not None),
    ):
        if found:
            field = engine_field(pool, name.partition(".")[0]) + name[len(name.partition(".")[0]) :]
            raise InputError(f"{field}: found in pool {pool.name} with FFN workers, expected none")
    if config.planner is not None and pool.name in config.planner.pools:
        raise InputError(f"planner.pools: found {pool.name}, expected a pool without FFN workers")
    if config.network.backend == "rdma":
        raise InputError(f"network.backend: found 'rdma' with FFN workers in pool {pool.name}, expected another")


def check_memory(pool: PoolConfig, engine: EngineConfig, model: Model, memory: InstanceMemory) -> None:
    """Raises: InputError, where KV blocks do not fit, or cannot be shared."""
    if engine.num_kv_blocks is not None and engine.num_kv_blocks > memory.num_kv_blocks:
        raise InputError(
            f"engine.num_kv_blocks: found {engine.num_kv_blocks}, expected at most the {memory.num_kv_blocks} blocks "
            f"that fit into the memory of a GPU of pool {pool.name}"
        )
    if engine.prefix_caching and memory.kv_groups.whole != 1:
        raise InputError(
            f"engine.prefix_caching: found true, expected false for {model.name}: hits are not modelled where "
            f"{memory.kv_groups.whole} groups of layers keep every token"
        )
    if memory.lacking_bytes:
        _warn_of_memory(engine_field(pool, "gpu_memory_utilization"), engine.gpu_memory_utilization, memory)


@cache
def _warn_of_memory(field: str, share: float, memory: InstanceMemory) -> None:
    """Once in a process, however many configurations it simulates."""
    needed = memory.activation_bytes + memory.runtime_bytes
    _log.warning(
        "%s: found %g, which leaves %.1f GB to activations, graphs and buffers of some %.1f: SGLang may lack memory",
        field,
        share,
        (needed - memory.lacking_bytes) / 1e9,
        needed / 1e9,
    )


def that_fit(refused: Partition, memory_of: Callable[[Partition], InstanceMemory]) -> str:
    """Partitions over more GPUs that fit into memory, the fewest first, as the end of a refusal; empty without any."""
    found: list[str] = []
    for more in (2, 4, 8, 16, 32):
        for name in ("tp", "dp", "pp"):
            sizes = {"tp": refused.tp, "dp": refused.dp, "pp": refused.pp}
            sizes[name] *= more
            if name == "dp" and refused.ep == 1:
                continue  # its ranks share nothing
            ep = sizes["tp"] * sizes["dp"] if refused.ep > 1 else 1
            try:
                divided = Partition(**sizes, ep=ep, redundant_experts=refused.redundant_experts)
                blocks = memory_of(divided).num_kv_blocks
            except ValueError:
                continue
            found.append(f"{divided} ({blocks:,} KV blocks a rank)")
        if found:
            return f"; what fits: {' or '.join(found)}"
    return ""


def check_policy(pool: PoolConfig, engine: EngineConfig, policy: type[Policy] | None, max_model_len: int) -> None:
    """Raises: InputError, where a named policy has no rules for an option, or a prompt that is not cut could wait for
    ever, as vLLM does (vllm/config/scheduler.py, verify_max_model_len). Warns of what else that refuses."""
    has_whole_prompts = policy is not None and policy.refuses_long_prompts
    if engine.policy in NAMED_POLICIES:
        for name, only in (("scheduling_policy", "fcfs"), ("chunked_prefill", True)):
            if (found := getattr(engine, name)) != only and not (name == "chunked_prefill" and has_whole_prompts):
                raise InputError(
                    f"{engine_field(pool, name)}: found {str(found).lower()}, expected {str(only).lower()} "
                    f"with policy {engine.policy} in pool {pool.name}"
                )
    if not (engine.chunked_prefill or has_whole_prompts) and engine.max_batched_tokens < max_model_len:
        raise InputError(
            f"{engine_field(pool, 'max_batched_tokens')}: found {engine.max_batched_tokens}, expected at least the "
            f"{max_model_len} of engine.max_model_len without engine.chunked_prefill"
        )
    if engine.framework == "vllm" and engine.max_batched_tokens < engine.max_seqs:
        _log.warning(
            "%s: found %d, below the %d of engine.max_seqs: simulated, but vLLM does not start so",
            engine_field(pool, "max_batched_tokens"),
            engine.max_batched_tokens,
            engine.max_seqs,
        )


def is_own(pool: PoolConfig, name: str) -> bool:
    """Whether the pool sets this field of ``engine`` for itself."""
    return getattr(pool.engine, name) is not None


def engine_field(pool: PoolConfig, name: str) -> str:
    """The field that sets this in a pool: the pool's own, or the common one."""
    return f"cluster.pools.{pool.name}.engine.{name}" if is_own(pool, name) else f"engine.{name}"


def expert_kinds(model: Model) -> set[tuple[int, int]]:
    """(experts, experts per token) of its layers with routed experts."""
    return {(kind.ffn.experts, kind.ffn.experts_per_token) for kind in model.kinds if isinstance(kind.ffn, MoeFfn)}


def _check_experts(pool: PoolConfig, engine: EngineConfig, partition: Partition, model: Model) -> None:
    """Options of experts need experts: those that would do nothing are refused."""
    place, networks = f"cluster.pools.{pool.name}", [kind.ffn for kind in model.kinds if isinstance(kind.ffn, MoeFfn)]
    is_dispatched = bool(networks) and partition.moe_layout is MoeLayout.EXPERT_DATA
    if not networks:
        for field, found, expected in (
            (f"{place}.ep", partition.ep, 1),
            (f"{place}.redundant_experts", partition.redundant_experts, 0),
            ("engine.expert_load", engine.expert_load, "uniform"),
        ):
            if found != expected:
                raise InputError(f"{field}: found {found}, expected {expected}, as {model.name} has no routed experts")
    if engine.overlap.shared_expert is True and not any(network.shared_intermediate for network in networks):
        raise InputError(f"engine.overlap.shared_expert: found true, expected false, as {model.name} has none")
    if engine.overlap.two_batch and not is_dispatched:
        raise InputError(
            f"engine.overlap.two_batch: found true for pool {pool.name} ({partition}), "
            "expected false without dispatch between data-parallel ranks (ep = tp·dp, dp > 1)"
        )
    if partition.dp > 1 and not is_dispatched:
        _log.warning(
            "%s.dp: found %d without shared experts: its ranks are simulated in lockstep, which independent engines "
            "are not; expected dp 1 and %d instances",
            place,
            partition.dp,
            partition.dp * pool.instances,
        )


def warn_of_blocks(pool: PoolConfig, partition: Partition, model: Model) -> None:
    """Experts that tensor parallelism cuts through blocks of an fp8 checkpoint are simulated, but no engine loads them.

    fp8 that an engine makes of a bf16 checkpoint while it loads has a scale per tensor and no blocks
    (``--quantization fp8``: vLLM 0.24, quantization/fp8.py and quantization/online/fp8.py).
    """
    for columns in cut_blocks(partition, model):
        whole = [
            tp for tp in range(1, partition.tp + 1) if partition.tp % tp == 0 and columns % (tp * SCALE_BLOCK) == 0
        ]
        _log.warning(
            "cluster.pools.%s.tp: found %d, which leaves a GPU %d columns of an expert: vLLM and SGLang refuse an fp8 "
            "checkpoint whose blocks of %d are cut; expected at most %d, or ep %d",
            pool.name,
            partition.tp,
            columns // partition.tp,
            SCALE_BLOCK,
            max(whole, default=1),
            partition.tp,
        )


def warn_of_first_use(pool: PoolConfig, engine: EngineConfig, precision: Precision, gpu: Gpu) -> None:
    """vLLM's own choice of kernel for mxfp4 experts on Hopper is compiled while it serves (0.7 to 1.1 s a time for
    gpt-oss-20b on an H100, 1.3 to 2.7 for gpt-oss-120b on two H200s, vLLM 0.24)."""
    is_triton = precision.weights == "mxfp4" and engine.experts_kernel != "marlin"
    is_compiled = is_triton and engine.framework == "vllm" and gpu.architecture == "sm90"
    if is_compiled and pool.role != "decode" and engine.max_batched_tokens > MOST_CAPTURED_WITH_SINKS:
        _warn_of_compilation()


@cache
def _warn_of_compilation() -> None:
    """Once in a process, however many configurations it simulates."""
    _log.warning(
        "engine.framework: found vllm, which compiles mxfp4 experts for each new number of tokens above %d in a batch "
        "with prompts, 0.7 to 2.7 s a time: not simulated; warm lengths up, or take VLLM_MXFP4_USE_MARLIN=1 "
        "(engine.experts_kernel: marlin)",
        MOST_CAPTURED_WITH_SINKS,
    )


def cut_blocks(partition: Partition, model: Model) -> list[int]:
    """Columns of experts that tensor parallelism divides evenly, but not into whole blocks of fp8 scales."""
    if partition.moe_layout is not MoeLayout.TENSOR:
        return []
    widths = sorted({kind.ffn.intermediate for kind in model.kinds if isinstance(kind.ffn, MoeFfn)})
    return [width for width in widths if width % partition.tp == 0 and width % (partition.tp * SCALE_BLOCK)]


def _check_changing_experts(pool: PoolConfig, engine: EngineConfig, partition: Partition, model: Model) -> None:
    """What changes where experts are, or who wants them, needs several GPUs that hold some, and popularities."""
    kinds = expert_kinds(model)
    for name, without in (("expert_drift", ("balanced", "uniform")), ("eplb", ("balanced",))):
        if getattr(engine, name) is None:
            continue
        found = f"{engine_field(pool, name)}: found one"
        if len(kinds) != 1:
            count = f"{len(kinds)} kinds of" if kinds else "no"
            raise InputError(f"{found}, expected none, as {model.name} has {count} routed experts")
        if partition.ep == 1:
            raise InputError(f"{found}, expected none where ep is 1 ({partition})")
        if engine.expert_load.partition(":")[0] in without:
            raise InputError(f"{found} with expert_load {engine.expert_load}, expected another load")


def _check_scheduling(pool: PoolConfig, engine: EngineConfig, drafting: Drafting | None) -> None:
    """Drafts of n-grams are found when their step has ended; policies but vLLM's do not decide before that either."""
    if not engine.async_scheduling:
        return
    reason = f"pp {pool.pp}" if pool.pp > 1 else None
    if drafting is not None and reason is None and engine.policy in NAMED_POLICIES:
        reason = f"speculative and policy {engine.policy}"
    elif drafting is not None and reason is None and drafting.method == "ngram":
        reason = "speculative.method ngram"
    if reason is not None:
        field = engine_field(pool, "async_scheduling")
        raise InputError(f"{field}: found true, expected false with {reason} in pool {pool.name}")


def _check_drafting(config: SimulationConfig, pool: PoolConfig, drafting: Drafting | None) -> None:
    if drafting is not None and drafting.method == "draft_model" and config.hands_over(pool):
        raise InputError(
            f"{engine_field(pool, 'speculative')}.method: found draft_model in pool {pool.name}, expected mtp, eagle "
            "or ngram where KV comes from another pool, as that of a draft model is not handed over"
        )
