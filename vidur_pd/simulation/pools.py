"""What the instances of a pool share: engine, memory and price of iterations, checked against model and partition."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pydantic import ValidationError

import simccl
from aicb import (
    Drafting,
    ExpertLoad,
    Gpu,
    IterationModel,
    Model,
    MoeLayout,
    Overlap,
    Partition,
    Precision,
    get_gpu,
    instance_memory,
    known_gpus,
    parse_expert_load,
)
from aicb.estimators.estimator import Estimator
from aicb.estimators.selection import select_estimator
from aicb.experts.profile import load_profile
from aicb.model.architecture import MoeFfn
from aicb.model.kv_groups import KvGroups
from boundary.errors import InputError
from boundary.fields import Section
from vidur_pd.cluster.placement import partition_of
from vidur_pd.config import NAMED_POLICIES, SCHEDULING_POLICIES, EngineConfig, PoolConfig, SimulationConfig
from vidur_pd.config.file import describe
from vidur_pd.config.own_classes import load_class
from vidur_pd.execution.iteration.passes import Halves
from vidur_pd.scheduling.policies import policy_named
from vidur_pd.scheduling.policy import Policy

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PoolModel:
    """What the instances of a pool share."""

    pool: PoolConfig
    engine: EngineConfig
    gpu: Gpu
    precision: Precision
    iteration_model: IterationModel
    num_kv_blocks: int
    kv_groups: KvGroups
    max_model_len: int
    policy: type[Policy] | None
    """Of each rank, where Python decides; otherwise it is vLLM V1 in the core."""
    policy_options: Section
    drafting: Drafting | None
    """Speculative decoding, where the pool decodes."""

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
    def plans_ahead(self) -> bool:
        """Ranks decide an iteration while the one before is under way."""
        return self.engine.async_scheduling

    @property
    def halves(self) -> Halves | None:
        """Two-batch overlap, where it is asked for."""
        overlap = self.engine.overlap
        return Halves(overlap.communication_sm_share) if overlap.two_batch else None


@lru_cache(maxsize=16)
def _of_built_in(name: str, gpu: str, precision: Precision) -> Estimator:
    """An estimator over a table that ships, and does not change: what it remembers serves all runs of a process."""
    return select_estimator(name, get_gpu(gpu), precision)


Estimators = dict[tuple[str, str, Precision], Estimator]
"""Estimators of kernel times by (name, GPU, number formats): pools that agree in them share what it remembers."""


def pool_model(config: SimulationConfig, pool: PoolConfig, model: Model, estimators: Estimators) -> PoolModel:
    """Resolves a pool's options; an estimator that ``estimators`` lacks is added to them.

    Raises: InputError, where an option does not go with the model, the partition, the GPU or its memory.
    """
    engine, gpu, partition = config.engine_of(pool), gpu_of(config, pool), partition_of(pool)
    drafting: Drafting | None = None
    if engine.speculative is not None and config.decodes(pool):
        drafting = Drafting(engine.speculative.drafts, engine.speculative.acceptance)
    precision = Precision(weights=engine.weights, kv=engine.kv)
    _check_experts(pool, engine, partition, model, drafting)
    _check_scheduling(pool, engine, drafting)
    overlap = engine.overlap
    try:
        memory = instance_memory(
            model,
            partition,
            precision,
            gpu,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            max_batched_tokens=engine.max_batched_tokens,
            max_seqs=engine.max_seqs,
            block_tokens=engine.block_tokens,
            cuda_graphs=engine.cuda_graphs,
            has_draft_layer=drafting is not None,
        )
        load = _expert_load(engine)
        for network in {kind.ffn for kind in model.kinds if isinstance(kind.ffn, MoeFfn)}:
            load_profile(load, (network.experts, network.experts_per_token), partition, config.seed)
        key = (engine.estimator, config.hardware_of(pool), precision)
        if key not in estimators:
            is_built_in = key[1] in known_gpus()
            estimators[key] = _of_built_in(*key) if is_built_in else select_estimator(engine.estimator, gpu, precision)
        iteration_model = IterationModel(
            model,
            partition,
            precision,
            gpu,
            cuda_graphs=engine.cuda_graphs,
            graph_sizes=engine.graph_sizes,
            max_seqs=engine.max_seqs,
            max_batched_tokens=engine.max_batched_tokens,
            queries=1 if drafting is None else drafting.queries,
            estimator=estimators[key],
            expert_load=load,
            seed=config.seed,
            overlap=Overlap(overlap.shared_expert, overlap.shared_expert_sm_share),
        )
    except ValueError as error:
        raise InputError(f"cluster.pools.{pool.name}: {error}") from error
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
    return PoolModel(
        pool=pool,
        engine=engine,
        gpu=gpu,
        precision=precision,
        iteration_model=iteration_model,
        num_kv_blocks=engine.num_kv_blocks or memory.num_kv_blocks,
        kv_groups=memory.kv_groups,
        max_model_len=_max_model_len(engine, model),
        policy=(policy := _policy(engine, pool)),
        policy_options=_policy_options(engine, pool, policy),
        drafting=drafting,
    )


def gpu_of(config: SimulationConfig, pool: PoolConfig) -> Gpu:
    """The pool's GPU. Raises: InputError, where none is known by that name, or nothing of its interconnect."""
    field = f"cluster.pools.{pool.name}.hardware" if pool.hardware else "hardware"
    try:
        gpu = get_gpu(config.hardware_of(pool))
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
    return load_class(_engine_field(pool, "policy"), engine.policy, Policy)


def _is_own(pool: PoolConfig, name: str) -> bool:
    """Whether the pool sets this field of ``engine`` for itself."""
    return getattr(pool.engine, name) is not None


def _has_own_policy(pool: PoolConfig) -> bool:
    return _is_own(pool, "policy") or _is_own(pool, "policy_options")


def _engine_field(pool: PoolConfig, name: str) -> str:
    """The field that sets this in a pool: the pool's own, or the common one."""
    is_own = _is_own(pool, name)
    return f"cluster.pools.{pool.name}.engine.{name}" if is_own else f"engine.{name}"


def _check_scheduling(pool: PoolConfig, engine: EngineConfig, drafting: Drafting | None) -> None:
    if engine.policy in NAMED_POLICIES:
        for name, only in (("scheduling_policy", "fcfs"), ("chunked_prefill", True)):
            if (found := getattr(engine, name)) != only:
                raise InputError(
                    f"{_engine_field(pool, name)}: found {str(found).lower()}, expected {str(only).lower()} "
                    f"with policy {engine.policy} in pool {pool.name}"
                )
    if not engine.async_scheduling:
        return
    reason = f"pp {pool.pp}" if pool.pp > 1 else "speculative" if drafting is not None else None
    if reason is not None:
        field = _engine_field(pool, "async_scheduling")
        raise InputError(f"{field}: found true, expected false with {reason} in pool {pool.name}")


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


def _expert_load(engine: EngineConfig) -> ExpertLoad:
    try:
        return parse_expert_load(engine.expert_load)
    except ValueError as error:
        raise InputError(f"engine.expert_load: {str(error).removeprefix('expert_load: ')}") from None


def _check_experts(
    pool: PoolConfig, engine: EngineConfig, partition: Partition, model: Model, drafting: Drafting | None
) -> None:
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
    if engine.overlap.shared_expert and not any(network.shared_intermediate for network in networks):
        raise InputError(f"engine.overlap.shared_expert: found true, expected false, as {model.name} has none")
    if engine.overlap.two_batch and not is_dispatched:
        raise InputError(
            f"engine.overlap.two_batch: found true for pool {pool.name} ({partition}), "
            "expected false without dispatch between data-parallel ranks (ep = tp·dp, dp > 1)"
        )
    if engine.overlap.two_batch and drafting is not None:
        raise InputError(f"engine.overlap.two_batch: found true for pool {pool.name}, expected false with speculative")
    if partition.dp > 1 and not is_dispatched:
        _log.warning(
            "%s.dp: found %d without shared experts: its ranks are simulated in lockstep, which independent engines "
            "are not; expected dp 1 and %d instances",
            place,
            partition.dp,
            partition.dp * pool.instances,
        )
