"""Engine profiles: what a serving engine of one version does where its user says nothing.

A profile is a YAML file in ``vidur_pd/data/engines``. Its ``engine``, ``network`` and ``kv_transfer`` are defaults of
the sections of these names. A configuration names one by ``engine.framework`` and, unless it is the newest,
``engine.version``; whatever it states itself stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from boundary.yaml_text import read_yaml_mapping

FOLDER: Final = Path(__file__).parents[1] / "data" / "engines"
DEFAULT_FRAMEWORK: Final = "vllm"

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


def engine_defaults(found: Mapping[str, Any]) -> Tree:
    """Fields of ``engine`` by a profile."""
    return {"framework": found["framework"], "version": found["version"], **found["engine"]}


def with_sections(engine: Tree, found: Mapping[str, Any]) -> Tree:
    """Stated fields of ``engine``; those that are sections have a profile's defaults where they say nothing."""
    sections = {key: value for key, value in found["engine"].items() if isinstance(value, Mapping)}
    return {
        key: {**sections[key], **value} if key in sections and isinstance(value, Mapping) else value
        for key, value in engine.items()
    }


def complete(tree: Mapping[str, Any]) -> Tree:
    """A configuration's tree with its engine's defaults, where it says nothing.

    A pool that names a framework of its own gets that profile's fields. Left as it is where there is no such profile,
    or a section is no mapping: validation says so.
    """
    engine = _section(tree.get("engine"))
    if engine is None:
        return dict(tree)
    common = _named(engine)
    if common is None:
        return {**tree, "engine": {"framework": DEFAULT_FRAMEWORK, **engine}}
    completed = dict(tree) | {"engine": engine_defaults(common) | with_sections(engine, common)}
    for section in ("network", "kv_transfer"):
        given = _section(tree.get(section))
        if given is not None:
            completed[section] = {**common.get(section, {}), **given}
    cluster = tree.get("cluster")
    if isinstance(cluster, Mapping) and isinstance(pools := cluster.get("pools"), list | tuple):
        completed["cluster"] = {**cluster, "pools": [_completed_pool(pool, engine) for pool in pools]}
    return completed


def _completed_pool(pool: Any, common: Tree) -> Any:
    own = _section(pool.get("engine")) if isinstance(pool, Mapping) else None
    if not own:
        return pool
    stated = {key: value for key, value in common.items() if value is not None}
    if own.get("framework"):
        stated.pop("version", None)
    found = _named(stated | own)
    if found is None:
        return pool
    if own.get("framework") or own.get("version"):
        own = {**engine_defaults(found), **stated, **own}
    return {**pool, "engine": with_sections(own, found)}


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
