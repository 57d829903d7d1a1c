"""Division of one pool into prefill and decode instances, by vidur-alibabacloud's ``pd_node_ratio``."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any, Final

from boundary.quoting import quoted

FIELD: Final = "pd_node_ratio"


def divided(pool: Any) -> list[Any]:
    """A pool of a configuration's tree, or the two that it stands for.

    ``pd_node_ratio`` is the share of the instances that prefill: the first ones, as there. With 1 there is no division
    and all do both. Raises: ValueError, for a ratio that gives no whole number of instances.
    """
    if not isinstance(pool, Mapping) or pool.get(FIELD) is None:
        return [pool]
    name, ratio, instances = (pool.get(field) for field in ("name", FIELD, "instances"))
    instances = 1 if instances is None else instances
    place = f"pools.{name}"
    if pool.get("role") is not None:
        raise ValueError(f"{place}.role: found {quoted(pool['role'])}, expected none with {FIELD}, which sets it")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
        raise ValueError(f"{place}.{FIELD}: found {quoted(ratio)}, expected a share of the instances, above 0 up to 1")
    rest = {field: value for field, value in pool.items() if field != FIELD}
    if ratio == 1 or isinstance(instances, bool) or not isinstance(instances, int):
        return [{**rest, "role": "mixed"}]
    prefill = round(instances * ratio)
    if not isclose(prefill, instances * ratio, rel_tol=1e-9) or not 0 < prefill < instances:
        raise ValueError(
            f"{place}.{FIELD}: found {ratio:g} of {instances} instances, which is {instances * ratio:g}, expected a "
            "whole number of both kinds, at least 1 each"
        )
    return [
        {**rest, "name": f"{name}-prefill", "role": "prefill", "instances": prefill},
        {**rest, "name": f"{name}-decode", "role": "decode", "instances": instances - prefill},
    ]
