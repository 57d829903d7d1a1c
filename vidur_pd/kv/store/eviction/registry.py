"""Eviction policies by name."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from vidur_pd.config.kv_cache import NAMED_EVICTIONS
from vidur_pd.config.own_classes import load_class
from vidur_pd.kv.store.eviction.policy import Eviction


def eviction_class(field: str, name: str) -> type[Eviction]:
    """The class of a policy. Raises: InputError, where there is none of that name."""
    if name in NAMED_EVICTIONS:
        module = import_module(f"vidur_pd.kv.store.eviction.{name}")
        return cast(type[Eviction], getattr(module, NAMED_EVICTIONS[name]))
    return load_class(field, name, Eviction)
