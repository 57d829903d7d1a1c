"""The tiers of KV of a run: checked against engines and model, made, and summed up."""

from __future__ import annotations

from collections.abc import Iterator

from boundary.errors import InputError
from netsim import capabilities_of
from vidur_pd._core import ChunkKeys, Loop
from vidur_pd.config import CORE_POLICY
from vidur_pd.config.kv_cache import KvCacheConfig
from vidur_pd.execution.clock import EventQueue
from vidur_pd.execution.communication.idle_fabric import IdleFabric
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.execution.iteration.prompts import PromptTimes
from vidur_pd.kv.store.build import TierBuilder
from vidur_pd.kv.store.places import Places
from vidur_pd.kv.store.pooled import PooledTier
from vidur_pd.kv.store.rank_store import RankStore
from vidur_pd.kv.store.store import KvStore
from vidur_pd.kv.store.tier import Tier, TierCounts
from vidur_pd.kv.transfer.rank_pairs import cache_sizes
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.summary import TierSummary
from vidur_pd.simulation.plan import SimulationPlan
from vidur_pd.simulation.pools import PoolModel
from vidur_pd.simulation.state import SimulationState

NEVER_TOKENS = 2**40
"""More than any prompt has."""


def kv_store_of(state: SimulationState, loop: Loop, queue: EventQueue) -> KvStore | None:
    """The tiers that the configuration asks for; ``None``: none.

    Raises: InputError, where engines, model or network cannot have them.
    """
    plan = state.plan
    config = plan.config.kv_cache
    if config is None:
        return None
    _check(plan, config)
    times = _prompt_times(state)
    keys = ChunkKeys(config.chunk_tokens, plan.hash_block_tokens)
    places = Places(plan.model, plan.topology)
    builder = TierBuilder(config, keys, places)
    stores: list[list[RankStore]] = []
    for instance in state.instances:
        pool, of_ranks = plan.pools[instance.placement.pool], list[RankStore]()
        draft_layers = int(pool.drafting is not None and pool.drafting.is_by_layer)
        for rank in instance.ranks if plan.role_of(instance.placement) != "decode" else ():
            store = builder.of(rank, places.of(instance.placement, rank.index, pool.precision, draft_layers))
            indices = [access.tier.index for access in store.direct]
            least_tokens = _least_tokens(plan, config, store, times[instance.index])
            rank.state.load_from(indices, least_tokens, is_layerwise=config.layerwise)
            of_ranks.append(store)
        stores.append(of_ranks)

    def recompute_ps(instance: Instance, start: int, end: int) -> int:
        return times[instance.index].between_ps(start, end)

    return KvStore(keys, stores, state.network, loop, queue, recompute_ps)


def _prompt_times(state: SimulationState) -> list[PromptTimes]:
    """[instances] those of one pool share theirs."""
    of_pools: dict[str, PromptTimes] = {}
    for instance, pricer in zip(state.instances, state.iteration_pricers, strict=True):
        pool = state.plan.pools[instance.placement.pool]
        if instance.placement.pool not in of_pools:
            budget = min(pool.max_batched_tokens, pool.max_model_len)
            of_pools[instance.placement.pool] = PromptTimes(pricer.alone_ps, budget)
    return [of_pools[instance.placement.pool] for instance in state.instances]


def _check(plan: SimulationPlan, config: KvCacheConfig) -> None:
    if capabilities_of(plan.coupling.transfer_backend).sends_traffic:
        raise InputError("kv_cache.tiers: found with network.backend rdma, expected a simulated network")
    for pool in plan.pools.values():
        if pool.pool.role != "decode" or plan.config.routing.decode_instances_prefill:
            _check_pool(plan, config, pool)


def _check_pool(plan: SimulationPlan, config: KvCacheConfig, pool: PoolModel) -> None:
    name, engine, chunk = pool.pool.name, pool.engine, config.chunk_tokens
    if config.layerwise:
        if pool.pool.pp > 1:
            raise InputError(f"kv_cache.layerwise: found with pp {pool.pool.pp} of pool {name}, expected pp 1")
    elif engine.policy != CORE_POLICY:
        raise InputError(
            f"kv_cache.tiers: found with policy {engine.policy} of pool {name}, expected {CORE_POLICY}, or layerwise"
        )
    if not engine.prefix_caching:
        raise InputError(f"kv_cache.tiers: found with pool {name} without prefix caching, expected it on")
    if chunk % engine.block_tokens:
        raise InputError(
            f"kv_cache.chunk_tokens: found {chunk}, expected a multiple of the {engine.block_tokens} block_tokens of "
            f"pool {name}"
        )
    if pool.kv_groups.spanned or cache_sizes(plan.model, pool.precision).state is not None:
        raise InputError(f"kv_cache.tiers: found with model {plan.model.name}, expected one that keeps every token")


def _least_tokens(plan: SimulationPlan, config: KvCacheConfig, store: RankStore, times: PromptTimes) -> list[int]:
    """[tiers] fewest tokens that are loaded from each."""
    if config.load == "always":
        return [config.load_tokens_min] * len(store.direct)
    idle = IdleFabric(plan.topology, "fluid", None)
    most = plan.pools[store.rank.instance.placement.pool].max_model_len
    return [max(config.load_tokens_min, least) for least in _worth(store, idle, times, config.chunk_tokens, most)]


def _worth(store: RankStore, idle: IdleFabric, times: PromptTimes, chunk: int, most: int) -> Iterator[int]:
    """[tiers] fewest tokens that a request has sooner by a load on an idle network: powers of two chunks.

    Whole chunks are loaded, of which the prefix cache may have all but a block. What is saved is least where a single
    token is left to compute, as that takes an iteration all the same.
    """
    for access in store.direct:
        tokens = chunk
        while tokens <= most:
            crossing = tokens + chunk
            run = idle.run(store.place.load(crossing, host=store.farthest_host(access)))
            assert run is not None, "an idle fabric is whole"
            read_ps = 0 if access.disk is None else access.disk.alone_ps(crossing * store.place.stored_token_bytes)
            if run.duration_ps + access.latency_ps + read_ps <= times.saved_ps(tokens):
                break
            tokens *= 2
        yield tokens if tokens <= most else NEVER_TOKENS


def tier_summaries(store: KvStore) -> tuple[TierSummary, ...]:
    """One for each tier of the configuration, over all ranks."""
    kinds: dict[str, tuple[TierCounts, int, int]] = {}
    seen: set[Tier | PooledTier] = set()
    for rank_store in (each for of_instance in store.stores for each in of_instance):
        for access in rank_store.tiers:
            counts, caches, held = kinds.setdefault(access.kind, (TierCounts(), 0, 0))
            if access.tier in seen:
                continue
            seen.add(access.tier)
            counts.add(access.tier.all_counts() if isinstance(access.tier, PooledTier) else access.tier.counts)
            caches += access.tier.caches if isinstance(access.tier, PooledTier) else 1
            kinds[access.kind] = counts, caches, held + len(access.tier.index) * access.chunk_bytes
    return tuple(_summary(kind, *found) for kind, found in kinds.items())


def _summary(kind: str, counts: TierCounts, caches: int, held_bytes: int) -> TierSummary:
    return TierSummary(
        kind=kind,
        caches=caches,
        loads=counts.loads,
        failed_loads=counts.failed_loads,
        prefetched_chunks=counts.prefetched_chunks,
        loaded_tokens=counts.loaded_tokens,
        loaded_chunks=counts.loaded_chunks,
        loaded_bytes=counts.loaded_bytes,
        stored_chunks=counts.stored_chunks,
        stored_bytes=counts.stored_bytes,
        evicted_chunks=counts.evicted_chunks,
        held_bytes=held_bytes,
        load_s=counts.load_ps / PS_PER_S,
        recompute_s=counts.recompute_ps / PS_PER_S,
    )
