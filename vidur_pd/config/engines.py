"""Engine profiles: what a serving engine of one version does where its user says nothing.

A profile is a YAML file in ``config/data/engines``. Its ``engine``, ``network`` and ``kv_transfer`` are defaults of
the sections of these names; entries of ``by_gpu_memory`` replace some of ``engine`` on GPUs of at least so much memory,
but for those under ``except``, the last that applies winning; ``on_gpus`` replaces some on the GPUs it names, and
``with_whole_experts`` where ranks share no experts besides, ``with_divided_experts`` where they do, and
``with_own_all_reduce`` where NCCL's is not asked for and there are no FFN workers; ``drafts_ahead`` has the methods of
drafting with which iterations are decided ahead. A configuration names one by ``engine.framework`` and, unless it is
the newest, ``engine.version``; whatever it states itself stays. Where a default does not go with what is stated
(`vidur_pd.config.engine_conditions`), the configuration gets what the engine does then; what SGLang computes is in
`vidur_pd.config.sglang_defaults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from boundary.yaml_text import read_yaml_mapping
from vidur_pd.config import engine_conditions as conditions
from vidur_pd.config import sglang_defaults

FOLDER: Final = Path(__file__).parent / "data" / "engines"
DEFAULT_FRAMEWORK: Final = "vllm"
DEEPEP_KERNELS: Final = {"prefill": "deepep_normal", "decode": "deepep_low_latency"}
"""``engine.expert_dispatch`` of engines that run DeepEP, which they do where two batches take turns."""

Tree = dict[str, Any]


def known_frameworks() -> tuple[str, ...]:
    """Frameworks of which a profile is there."""
    return tuple(sorted({path.stem.partition("-")[0] for path in FOLDER.glob("*.yaml")}))


def known_versions(framework: str) -> tuple[str, ...]:
    """Versions of a framework, the newest last."""
    found = [path.stem.partition("-")[2] for path in FOLDER.glob(f"{framework}-*.yaml")]
    return tuple(sorted(found, key=lambda version: [int(part) for part in version.split(".")]))


@cache
def profile(framework: str, version: str) -> Mapping[str, Any]:
    """The profile's tree."""
    return read_yaml_mapping(FOLDER / f"{framework}-{version}.yaml", "an engine profile")


def with_sections(engine: Tree, found: Mapping[str, Any]) -> Tree:
    """Stated fields of ``engine``; those that are sections have a profile's defaults where they say nothing."""
    sections = {key: value for key, value in found["engine"].items() if isinstance(value, Mapping)}
    return {
        key: {**sections[key], **value} if key in sections and isinstance(value, Mapping) else value
        for key, value in engine.items()
    }


def complete(tree: Mapping[str, Any]) -> Tree:
    """A configuration's tree with its engine's defaults, where it says nothing.

    A pool gets those fields in which its framework, GPU, partition or drafts make a difference. Left as it is where
    there is no such profile, or a section is no mapping: validation says so.
    """
    engine = _section(tree.get("engine"))
    if engine is None:
        return dict(tree)
    common = _named(engine)
    if common is None:
        return {**tree, "engine": {"framework": DEFAULT_FRAMEWORK, **engine}}
    pools = _pools(tree.get("cluster"))
    completed = dict(tree) | {"engine": _defaults(common, engine, tree, {}) | with_sections(engine, common)}
    for section in ("network", "kv_transfer"):
        given = _section(tree.get(section))
        if given is not None:
            completed[section] = {**common[section], **_of_routing(tree, section), **given}
            if section == "network" and "collectives" not in given:
                completed[section]["collectives"] = conditions.measured_collectives(
                    common[section]["collectives"],
                    {gpu for pool in pools for gpu in _gpus(pool, tree)},
                    is_used=any(part.get("tp", 1) != 1 for pool in pools for part in (pool, _ffn(pool))),
                )
    if pools:
        own = [_completed_pool(pool, completed["engine"], engine, tree) for pool in pools]
        completed["cluster"] = {**tree["cluster"], "pools": own}
    return completed


def _gpus(pool: Mapping[str, Any], tree: Mapping[str, Any]) -> set[str]:
    """Of a pool, and of its FFN workers."""
    own = pool.get("hardware") or tree.get("hardware")
    return {str(own), str(_ffn(pool).get("hardware") or own)}


def _ffn(pool: Mapping[str, Any]) -> Mapping[str, Any]:
    found = pool.get("ffn")
    return found if isinstance(found, Mapping) else {}


def _pools(cluster: Any) -> list[Mapping[str, Any]]:
    """Pools of a cluster; none if one of them is no mapping."""
    found = cluster.get("pools") if isinstance(cluster, Mapping) else None
    pools = found if isinstance(found, list | tuple) else ()
    return list(pools) if all(isinstance(pool, Mapping) for pool in pools) else []


def _of_routing(tree: Mapping[str, Any], section: str) -> Tree:
    """Splitwise delivers the prefill's token at once, whatever the engine's own connector does."""
    routing = tree.get("routing")
    is_splitwise = isinstance(routing, Mapping) and routing.get("policy") == "splitwise"
    return {"first_token": "prefill"} if is_splitwise and section == "kv_transfer" else {}


def _completed_pool(pool: Mapping[str, Any], completed: Tree, engine: Tree, tree: Mapping[str, Any]) -> Tree:
    """A pool with those defaults of its own engine that are not the common ones.

    ``completed``: the common engine; ``engine``: what is stated of it.
    """
    own = _section(pool.get("engine"))
    if own is None:
        return dict(pool)
    stated = {key: value for key, value in engine.items() if value is not None}
    if own.get("framework"):
        stated.pop("version", None)
    stated |= {key: value for key, value in own.items() if value is not None}
    found = _named(stated)
    if found is None:
        return dict(pool)
    defaults = _defaults(found, stated, tree, pool)
    different = {key: value for key, value in defaults.items() if key not in stated and value != completed.get(key)}
    return {**pool, "engine": different | with_sections(own, found)} if different or own else dict(pool)


def _defaults(found: Mapping[str, Any], stated: Tree, tree: Mapping[str, Any], pool: Mapping[str, Any]) -> Tree:
    """Fields of ``engine`` by a profile, for what is not stated; ``pool``: its own, if these are for one."""
    fields: Tree = {"framework": found["framework"], "version": found["version"], **found["engine"]}
    gpu = str(pool.get("hardware") or tree.get("hardware"))
    fields |= conditions.by_gpu_memory(found.get("by_gpu_memory", ()), gpu)
    fields |= conditions.on_gpus(found.get("on_gpus", {}), gpu)
    ffn = _ffn(pool)
    if not ffn:
        collectives = (_section(tree.get("network")) or {}).get("collectives")
        fields |= conditions.with_own_all_reduce(found.get("with_own_all_reduce", {}), gpu, collectives)
    with_experts, gpu_of_experts = ffn or pool, str(ffn.get("hardware") or gpu)
    fields |= conditions.with_whole_experts(found.get("with_whole_experts", {}), gpu_of_experts, with_experts)
    fields |= conditions.with_divided_experts(found.get("with_divided_experts", {}), gpu, pool)
    fields["chunked_prefill"] |= (stated.get("policy") or fields["policy"]) != fields["policy"]
    if fields["chunked_prefill"] and stated.get("chunked_prefill", True) is False:
        longest = conditions.max_model_len(stated.get("max_model_len"), str(tree.get("model")))
        fields["max_batched_tokens"] = max(fields["max_batched_tokens"], longest)
    if conditions.has_two_batches(stated):
        fields["expert_dispatch"] = DEEPEP_KERNELS
    if found["framework"] == "sglang":
        fields |= sglang_defaults.with_divided_attention(fields, stated, pool)
    resolved = fields | stated
    conditions.warn_of_estimated_norms(resolved, pool.get("tp", 1))
    fields["max_seqs"] = _least(fields["max_seqs"], resolved["max_batched_tokens"])
    if found["framework"] == "sglang":
        fields |= sglang_defaults.static_share(resolved, stated.get("max_seqs"), pool, gpu, str(tree.get("model")))
        fields |= sglang_defaults.prompt_graphs(resolved, pool, str(tree.get("model")))
    with_drafts = found.get("drafts_ahead", ())
    if not conditions.can_plan_ahead(found["engine"]["policy"], resolved, pool, tree.get("routing"), with_drafts):
        fields["async_scheduling"] = False
    if not (_caches_prefixes(str(resolved["policy"])) and conditions.has_prefix_hits(str(tree.get("model")))):
        fields["prefix_caching"] = False
    return fields


def _caches_prefixes(policy: str) -> bool:
    """Whether a policy is one's own or an engine's: those of simulators (Vidur, Splitwise) know no prefix caching."""
    return ":" in policy or any(
        policy == profile(framework, version)["engine"]["policy"]
        for framework in known_frameworks()
        for version in known_versions(framework)
    )


def _least(default: int, bound: Any) -> int:
    """Requests of an iteration: a default is never above its tokens (vLLM's `EngineArgs`)."""
    return min(default, bound) if isinstance(bound, int) and bound > 0 else default


def _named(engine: Tree) -> Mapping[str, Any] | None:
    framework = str(engine.get("framework") or DEFAULT_FRAMEWORK)
    versions = known_versions(framework)
    version = str(engine.get("version") or (versions[-1] if versions else ""))
    return profile(framework, version) if version in versions else None


def _section(given: Any) -> Tree | None:
    """A section's tree; ``None`` for one that has been validated already, or is none."""
    if given is None:
        return {}
    return dict(given) if isinstance(given, Mapping) else None
