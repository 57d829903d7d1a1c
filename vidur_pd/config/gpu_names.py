"""Names of GPUs in a configuration's tree as they are listed, whatever the case of their letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aicb import canonical_gpu


def with_listed_gpus(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with ``hardware: H200`` as ``h200``, in pools and their FFN workers as well; what is no name stays."""
    named = _with_listed_gpu(tree)
    cluster = tree.get("cluster")
    pools = cluster.get("pools") if isinstance(cluster, Mapping) else None
    if isinstance(cluster, Mapping) and isinstance(pools, list | tuple):
        own = [_of_pool(pool) if isinstance(pool, Mapping) else pool for pool in pools]
        named["cluster"] = {**cluster, "pools": own}
    return named


def _of_pool(pool: Mapping[str, Any]) -> dict[str, Any]:
    named, ffn = _with_listed_gpu(pool), pool.get("ffn")
    return {**named, "ffn": _with_listed_gpu(ffn)} if isinstance(ffn, Mapping) else named


def _with_listed_gpu(section: Mapping[str, Any]) -> dict[str, Any]:
    name = section.get("hardware")
    return {**section, "hardware": canonical_gpu(name)} if isinstance(name, str) else dict(section)
