"""What the instances of a pool share: engine, memory and price of iterations, checked against model and partition."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from pydantic import ValidationError

import simccl
from aicb import (
    Drafting,
    ExpertLoad,
    Gpu,
    IterationModel,
    Model,
    Overlap,
    Partition,
    Precision,
    get_gpu,
    known_gpus,
    parse_expert_load,
)
from aicb.estimators.estimator import Estimator
from aicb.estimators.selection import select_estimator
from aicb.experts.drift import ExpertDrift
from aicb.experts.placed import PlacedExperts
from aicb.experts.profile import load_profile
from aicb.iteration.drafting_host import UNMEASURED, DraftingHost, drafting_of_vllm
from aicb.iteration.host import load_host
from aicb.iteration.workers import AttentionWorkerModel, WorkersModel
from aicb.model.kv_groups import KvGroups
from aicb.model.worker_split import WorkerSplit
from aicb.operators.dispatch import ADDING, ExpertDispatch
from aicb.operators.drafter import Drafter
from aicb.operators.memory import MemoryLimits, planned_memory
from aicb.operators.worker_memory import attention_worker_memory, ffn_worker_memory
from boundary.errors import InputError
from boundary.fields import Section
from vidur_pd.config import NAMED_POLICIES, SCHEDULING_POLICIES, EngineConfig, EplbConfig, PoolConfig, SimulationConfig
from vidur_pd.config.file import describe
from vidur_pd.config.own_classes import load_class
from vidur_pd.config.speculative import SpeculativeConfig
from vidur_pd.execution.instances.placement import ffn_partition_of, partition_of
from vidur_pd.execution.iteration.passes import Halves
from vidur_pd.scheduling.policies import policy_named
from vidur_pd.scheduling.policy import Policy
from vidur_pd.simulation.drafters import drafter_of, drafting_of, layer_fed_by, speculation_of
from vidur_pd.simulation.pool_checks import (
    check_memory,
    check_options,
    check_policy,
    engine_field,
    expert_kinds,
    is_own,
    that_fit,
    warn_of_blocks,
    warn_of_first_use,
)


@dataclass(frozen=True, slots=True, eq=False)
class PoolModel:
    """What the instances of a pool share."""

    pool: PoolConfig
    engine: EngineConfig
    gpu: Gpu
    precision: Precision
    iteration_model: IterationModel
    num_kv_blocks: int
    weights_bytes: int
    """Of each GPU; where they differ, of the fullest."""
    kv_groups: KvGroups
    max_model_len: int
    first_experts: Callable[[], PlacedExperts] | None
    """Experts as they lie at the beginning, of one instance; ``None`` where they never change."""
    policy: type[Policy] | None
    """Of each rank, where Python decides; otherwise it is vLLM V1 in the core."""
    policy_options: Section
    drafting: Drafting | None
    """Passes that draft; where the pool only prefills, those of a layer over prompts, for pools that get its KV."""
    drafts_per_step: int
    """Drafts that a decode verifies; 0: none."""
    workers: WorkersModel | None = None
    """Prices of iterations with FFN workers; ``iteration_model`` is then the attention workers' part."""
    ffn_weights_bytes: int = 0
    """Of each FFN worker."""

    @property
    def ffn_gpu(self) -> Gpu:
        """Of FFN workers, or of all GPUs where there are none."""
        return self.gpu if self.workers is None else self.workers.ffn_gpu

    @property
    def max_batched_tokens(self) -> int:
        """Most tokens of an iteration of one rank."""
        if self.policy is None or self.policy.has_token_budget:
            return self.engine.max_batched_tokens
        return self.engine.max_seqs * self.max_model_len

    @property
    def watermark_blocks(self) -> int:
        """KV blocks that admissions leave free."""
        usual = 0.0 if self.policy is None else self.policy.watermark
        return int((usual if self.engine.watermark is None else self.engine.watermark) * self.num_kv_blocks)

    @property
    def lookahead_tokens(self) -> int:
        """KV slots that a step keeps for the drafts to come: as vLLM V1, which alone of the named policies has any."""
        drafting = self.drafting
        has_any = drafting is not None and self.drafts_per_step and self.engine.policy not in NAMED_POLICIES
        return drafting.lookahead_tokens if drafting is not None and has_any else 0

    @property
    def pipelines_chunks(self) -> bool:
        """The chunks of a prompt follow each other through the pipeline."""
        return self.pool.pp > 1 and (self.policy is None or self.policy.pipelines_chunks)

    @property
    def plans_ahead(self) -> bool:
        """Ranks decide an iteration while the one before is under way."""
        return self.engine.async_scheduling

    @property
    def launches_apart(self) -> bool:
        """Workers launch in processes of their own."""
        return launches_apart(self.engine, self.pool)

    @property
    def halves(self) -> Halves | None:
        """Two-batch overlap, where it is asked for."""
        overlap = self.engine.overlap
        if not overlap.two_batch:
            return None
        return Halves(
            overlap.communication_sm_share,
            overlap.decode_tokens_min,
            overlap.prefill_tokens_min,
            overlap.cut,
            overlap.decode_schedule,
            overlap.communication_busy_share,
        )


@lru_cache(maxsize=16)
def _of_built_in(name: str, gpu: str, precision: Precision) -> Estimator:
    """An estimator over a table that ships, and does not change: what it remembers serves all runs of a process."""
    return select_estimator(name, get_gpu(gpu), precision)


BROADCASTS_US = {"sglang": 100.0}
"""What workers that schedule for themselves take to tell each other of requests in every iteration, by framework.
SGLang broadcasts the length of a list, by gloo and mostly 0 (``utils/common.py``: ``broadcast_pyobj``), in 100 us (vLLM
issue 4440, a broadcast of known size between processors). TensorRT-LLM's, by MPI, was not measured and counts for
nothing."""


def _drafting_host(engine: EngineConfig, model: Model, asked: SpeculativeConfig | None) -> DraftingHost:
    """Measured of vLLM."""
    return drafting_of_vllm(model, asked.method) if asked is not None and engine.framework == "vllm" else UNMEASURED


def launches_apart(engine: EngineConfig, pool: PoolConfig) -> bool:
    """Whether workers launch in processes of their own, as vLLM's do on more than one GPU
    (``vllm/config/parallel.py``, ``distributed_executor_backend``)."""
    return engine.framework == "vllm" and pool.tp * pool.dp * pool.pp > 1


Estimators = dict[tuple[str, str, Precision], Estimator]
"""Estimators of kernel times by (name, GPU, number formats): pools that agree in them share what it remembers."""


PoolModels = dict[str, PoolModel]
"""Pools by all that they are made of; only their number of instances may differ."""


def known_pool(
    config: SimulationConfig, pool: PoolConfig, model: Model, estimators: Estimators, known: PoolModels
) -> PoolModel:
    """`pool_model`, or an equal one of ``known``, which otherwise gets it."""
    drafting = [config.engine_of(other).speculative for other in config.cluster.pools]
    made_of = (
        config.model,
        config.seed,
        config.hardware_of(pool),
        config.routing.has_mixed_pool,
        pool.model_dump(exclude={"instances"}),
        config.engine_of(pool).model_dump(),
        [None if each is None else each.model_dump() for each in drafting],
    )
    key = json.dumps(made_of, default=str)
    if key not in known:
        known[key] = pool_model(config, pool, model, estimators)
    return replace(known[key], pool=pool)


def pool_model(config: SimulationConfig, pool: PoolConfig, model: Model, estimators: Estimators) -> PoolModel:
    """Resolves a pool's options; an estimator that ``estimators`` lacks is added to them.

    Raises: InputError, where an option does not go with the model, the partition, the GPU or its memory.
    """
    engine, gpu, partition = config.engine_of(pool), gpu_of(config, pool), partition_of(pool)
    verified, fed = speculation_of(config, pool), layer_fed_by(config, pool)
    drafting = None if verified is None else drafting_of(verified)
    precision = Precision(engine.weights or gpu.weights_of(model.published_weights), engine.kv)
    check_options(config, pool, model, drafting)
    for each in (model, gpu, ffn_gpu_of(config, pool)):
        each.check(precision, engine_field(pool, "weights"))
    if precision.weights == model.published_weights == "fp8" and pool.ffn is None:
        warn_of_blocks(pool, partition, model)
    warn_of_first_use(pool, engine, precision, gpu)
    longest, drafter = _max_model_len(engine, model), None
    dispatch = _dispatch(engine)
    policy = _policy(engine, pool)
    check_policy(pool, engine, policy, longest)
    if (asked := verified or fed) is not None:
        drafter = drafter_of(asked, engine_field(pool, "speculative"), (model, partition, precision), longest)

    split = worker_split_of(pool)
    limits = memory_limits(engine, drafter)
    ffn_gpu, ffn_memory = ffn_gpu_of(config, pool), None
    try:
        if split is None:
            memory = planned_memory(model, partition, precision, gpu, limits)
        else:
            split.check(model)
            memory = attention_worker_memory(model, split, precision, gpu, limits)
            ffn_memory = ffn_worker_memory(model, split, precision, ffn_gpu, limits)
    except ValueError as error:
        has_others = split is None and " bytes of " in str(error)
        fitting = partial(planned_memory, model, precision=precision, gpu=gpu, limits=limits)
        others = that_fit(partition, fitting) if has_others else ""
        raise InputError(f"cluster.pools.{pool.name}: {error}{others}") from error
    try:
        load = _expert_load(engine)
        with_experts = partition if split is None else split.ffn
        for holder, divided in ((model, with_experts), *([(drafter.model, drafter.partition)] if drafter else [])):
            for moe in expert_kinds(holder):
                load_profile(load, moe, divided, config.seed)
        of_gpu = partial(_estimator, engine, precision, estimators)
        options: dict[str, Any] = {
            "cuda_graphs": engine.cuda_graphs,
            "graph_sizes": engine.graph_sizes,
            "prompt_graph_sizes": engine.prompt_graph_sizes,
            "max_seqs": engine.max_seqs,
            "max_batched_tokens": engine.max_batched_tokens,
            "estimator": of_gpu(config.hardware_of(pool), gpu),
            "expert_load": load,
            "seed": config.seed,
            "experts_kernel": engine.experts_kernel,
            "moe_kernels": engine.moe_kernels,
            "mla_kernel": engine.mla_kernel,
            "gqa_kernel": engine.gqa_kernel,
            "quant_kernel": engine.quant_kernel,
            "dense_kernel": engine.dense_kernel,
            "rope_kernel": engine.rope_kernel,
            "hybrid_kernels": engine.hybrid_kernels,
            "host": load_host(engine.host),
            "host_engine": engine.host_engine,
            "broadcast_us": None if launches_apart(engine, pool) else BROADCASTS_US.get(engine.framework, 0.0),
        }
        workers = None
        if split is None:
            iteration_model = IterationModel(
                model,
                partition,
                precision,
                gpu,
                queries=1 if drafting is None else drafting.queries,
                overlap=_overlap(engine),
                norm_kernel=engine.norm_kernel,
                drafter=drafter,
                drafting_host=_drafting_host(engine, model, asked),
                dispatch=dispatch,
                **options,
            )
        else:
            attention = AttentionWorkerModel(split, model, precision, gpu, **options)
            iteration_model = attention
            estimator = of_gpu(config.ffn_hardware_of(pool), ffn_gpu)
            workers = WorkersModel(split, attention, ffn_gpu, estimator, load, config.seed)
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}: {error}") from error
    check_memory(pool, engine, model, memory)
    return PoolModel(
        pool=pool,
        engine=engine,
        gpu=gpu,
        precision=precision,
        iteration_model=iteration_model,
        num_kv_blocks=engine.num_kv_blocks or memory.num_kv_blocks,
        weights_bytes=memory.weights_bytes,
        kv_groups=memory.kv_groups,
        max_model_len=longest,
        first_experts=_first_experts(config, engine, partition, model),
        policy=policy,
        policy_options=_policy_options(engine, pool, policy),
        drafting=Drafting(method=fed.method) if fed is not None else drafting,
        drafts_per_step=0 if drafting is None else drafting.drafts,
        workers=workers,
        ffn_weights_bytes=0 if ffn_memory is None else ffn_memory.weights,
    )


def memory_limits(engine: EngineConfig, drafter: Drafter | None = None) -> MemoryLimits:
    """What an engine sets that memory depends on."""
    return MemoryLimits(
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_batched_tokens=engine.max_batched_tokens,
        max_seqs=engine.max_seqs,
        block_tokens=engine.block_tokens,
        cuda_graphs=engine.cuda_graphs,
        drafter=drafter,
        dispatch=_dispatch(engine),
        is_static=engine.framework == "sglang",
        largest_graph=max(engine.graph_sizes) if engine.graph_sizes else None,
    )


def _dispatch(engine: EngineConfig) -> ExpertDispatch:
    return ExpertDispatch(engine.expert_dispatch.prefill, engine.expert_dispatch.decode)


def _overlap(engine: EngineConfig) -> Overlap:
    stated, sm_share, dispatch = engine.overlap.shared_expert, engine.overlap.shared_expert_sm_share, _dispatch(engine)
    if isinstance(stated, bool):
        return Overlap(stated, sm_share)
    return Overlap(dispatch.prefill not in ADDING and dispatch.decode not in ADDING, sm_share, stated)


def worker_split_of(pool: PoolConfig) -> WorkerSplit | None:
    """Division into attention workers and FFN workers, if there are any of these.

    Raises: InputError, where their parallel sizes do not go together.
    """
    ffn = ffn_partition_of(pool)
    if pool.ffn is None or ffn is None:
        return None
    try:
        return WorkerSplit(partition_of(pool), ffn, pool.ffn.micro_batches, pool.ffn.messages, pool.ffn.shared_expert)
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}.{error}") from None


def _estimator(engine: EngineConfig, precision: Precision, known: Estimators, name: str, gpu: Gpu) -> Estimator:
    """Of a GPU's kernels; ``known`` gets it."""
    key = (engine.estimator, name, precision)
    if key not in known:
        is_built_in = name in known_gpus()
        known[key] = _of_built_in(*key) if is_built_in else select_estimator(engine.estimator, gpu, precision)
    return known[key]


def ffn_gpu_of(config: SimulationConfig, pool: PoolConfig) -> Gpu:
    """The GPU of FFN workers, or of all GPUs where there are none. Raises: as `gpu_of`."""
    if pool.ffn is None or pool.ffn.hardware is None:
        return gpu_of(config, pool)
    return _gpu(pool.ffn.hardware, f"cluster.pools.{pool.name}.ffn.hardware")


def gpu_of(config: SimulationConfig, pool: PoolConfig) -> Gpu:
    """The pool's GPU. Raises: InputError, where none is known by that name, or nothing of its interconnect."""
    return _gpu(config.hardware_of(pool), f"cluster.pools.{pool.name}.hardware" if pool.hardware else "hardware")


def _gpu(name: str, field: str) -> Gpu:
    try:
        gpu = get_gpu(name)
    except ValueError as error:
        raise InputError(f"{field}: {str(error).removeprefix('gpu: ')}") from None
    try:
        simccl.gpu_named(gpu.interconnect)
    except ValueError as error:
        known = str(error).partition("expected ")[2]
        raise InputError(
            f"{field}: found interconnect {gpu.interconnect!r}, expected interconnect_as in gpu.yaml to be {known}"
        ) from None
    return gpu


def _max_model_len(engine: EngineConfig, model: Model) -> int:
    longest = engine.max_model_len or model.max_context_tokens
    if longest > model.max_context_tokens:
        raise InputError(
            f"engine.max_model_len: found {longest}, "
            f"expected at most the {model.max_context_tokens} tokens of {model.name}"
        )
    return longest


def _policy(engine: EngineConfig, pool: PoolConfig) -> type[Policy] | None:
    if engine.policy in SCHEDULING_POLICIES:
        return policy_named(engine.policy)
    return load_class(engine_field(pool, "policy"), engine.policy, Policy)


def _has_own_policy(pool: PoolConfig) -> bool:
    return is_own(pool, "policy") or is_own(pool, "policy_options")


def _policy_options(engine: EngineConfig, pool: PoolConfig, policy: type[Policy] | None) -> Section:
    """``engine.policy_options`` as the policy knows them."""
    field = f"cluster.pools.{pool.name}.engine.policy_options" if _has_own_policy(pool) else "engine.policy_options"
    known = Section if policy is None else policy.Options
    if engine.policy_options and not known.model_fields:
        first = next(iter(engine.policy_options))
        raise InputError(f"{field}.{first}: unknown field; expected no options with {engine.policy}")
    try:
        return known.model_validate(engine.policy_options)
    except ValidationError as error:
        raise InputError(f"{field}.{describe(error, known)}") from None


def with_policy_options(config: SimulationConfig, pools: Mapping[str, PoolModel]) -> SimulationConfig:
    """The configuration with all options of its policies filled in."""
    common, own = {}, []
    for pool in config.cluster.pools:
        resolved = pools[pool.name].policy_options.model_dump(mode="json")
        if not _has_own_policy(pool):
            common = resolved
            own.append(pool)
        else:
            overrides = pool.engine.model_copy(update={"policy_options": resolved})
            own.append(pool.model_copy(update={"engine": overrides}))
    cluster = config.cluster.model_copy(update={"pools": tuple(own)})
    engine = config.engine.model_copy(update={"policy_options": common or config.engine.policy_options})
    return config.model_copy(update={"cluster": cluster, "engine": engine})


def with_weights(config: SimulationConfig, pools: Mapping[str, PoolModel]) -> SimulationConfig:
    """The configuration with the format of weights that runs: in common, or of each pool where they differ."""
    if config.engine.weights is not None:
        return config
    found = {pools[pool.name].precision.weights for pool in config.cluster.pools if not is_own(pool, "weights")}
    if len(found) == 1:
        return config.model_copy(update={"engine": config.engine.model_copy(update={"weights": found.pop()})})
    own = [
        pool.model_copy(
            update={"engine": pool.engine.model_copy(update={"weights": pools[pool.name].precision.weights})}
        )
        for pool in config.cluster.pools
    ]
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"pools": tuple(own)})})


def _expert_load(engine: EngineConfig) -> ExpertLoad:
    try:
        return parse_expert_load(engine.expert_load)
    except ValueError as error:
        raise InputError(f"engine.expert_load: {str(error).removeprefix('expert_load: ')}") from None


def _first_experts(
    config: SimulationConfig, engine: EngineConfig, partition: Partition, model: Model
) -> Callable[[], PlacedExperts] | None:
    if engine.expert_drift is None and engine.eplb is None:
        return None
    (moe,) = expert_kinds(model)
    configured = engine.expert_drift
    drift = None if configured is None else ExpertDrift(configured.correlation_s, configured.seconds_per_step)
    window_steps = EplbConfig().window_steps if engine.eplb is None else engine.eplb.window_steps
    load = _expert_load(engine)
    return lambda: PlacedExperts(load, moe, partition, seed=config.seed, drift=drift, window_steps=window_steps)
