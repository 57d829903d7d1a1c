"""SGLang's own scheduling classes from an unpacked wheel, without a GPU and without what the wheel depends on.

The modules that decide are the wheel's; all others that they import are stand-ins whose names are empty classes. A
tensor is a list. Only what decisions need is set: no overlap, no priorities, one full-attention cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from tests.validation.stand_ins import StandIn, StandInFinder

REAL: Final = frozenset(
    f"sglang.srt.{name}"
    for name in (
        "environ",
        "managers.schedule_policy",
        "managers.scheduler_components.new_token_ratio_tracker",
        "mem_cache.base_prefix_cache",
        "mem_cache.cache_init_params",
        "mem_cache.common",
        "mem_cache.evict_policy",
        "mem_cache.events",
        "mem_cache.prefill_budget",
        "mem_cache.radix_cache",
        "mem_cache.utils",
    )
)
"""Modules that are the wheel's."""


class Tensor(list[Any]):
    """As much of a one-dimensional tensor as the cache uses."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return Tensor(found) if isinstance(place, slice) else found

    def clone(self) -> Tensor:
        return Tensor(self)

    def to(self, **_: Any) -> Tensor:
        return Tensor(self)


@dataclass
class Settings:
    """What SGLang's modules ask their environment for."""

    conservativeness: float
    schedule_policy: str
    eviction_policy: str


settings = Settings(1.0, "fcfs", "lru")


THEIRS: Final = ("sglang", "torch", "triton")
MEMBERS: Final = {"__getattr__": lambda self, name: None}
"""Of stand-ins of classes: their objects have every attribute."""


def _stand_in(name: str, **names: Any) -> StandIn:
    return StandIn(name, MEMBERS, **names)


def _answering(**answers: Any) -> Callable[..., SimpleNamespace]:
    return lambda *_: SimpleNamespace(**answers)


def _torch() -> ModuleType:
    return _stand_in(
        "torch",
        Tensor=Tensor,
        tensor=lambda values, **_: Tensor(values),
        empty=lambda size, **_: Tensor([0] * (size[0] if isinstance(size, tuple) else size)),
        cat=lambda parts: Tensor(value for part in parts for value in part),
        iinfo=_answering(max=2**63 - 1),
        device=str,
        int64=int,
        bool=bool,
        distributed=_stand_in("torch.distributed"),
    )


def _stand_ins() -> dict[str, ModuleType]:
    """Those whose names have to answer."""
    context = _stand_in(
        "sglang.srt.runtime_context",
        get_schedule=lambda: SimpleNamespace(
            schedule_policy=settings.schedule_policy, schedule_conservativeness=settings.conservativeness
        ),
        get_disagg=_answering(disaggregation_mode="null"),
        get_memory=lambda: SimpleNamespace(radix_eviction_policy=settings.eviction_policy),
        get_exec=_answering(features=SimpleNamespace(enable_encoder_swa_bounded_replay=False)),
        get_context=_answering(is_config_namespace_published=lambda _: False),
    )
    common = _stand_in("sglang.srt.utils.common", ceil_align=lambda value, page: -(-value // page) * page)
    made = (
        context,
        common,
        _stand_in(
            "sglang.srt.utils",
            common=common,
            get_bool_env_var=lambda *_: False,
            is_hip=lambda: False,
            is_gfx95_supported=lambda: False,
        ),
        _stand_in("sglang.srt.mem_cache.allocator.page_interleave", page_interleave_shard_size=lambda _: 1),
        _stand_in("sglang.srt.managers.schedule_batch", split_cached_prefix_by_tier=lambda **_: (0, 0, 0)),
        _stand_in("sglang.srt.disaggregation.kv_events"),
        _torch(),
    )
    return {module.__name__: module for module in made}


@dataclass
class Source:
    """The classes that a comparison uses."""

    modules: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        for module in self.modules.values():
            if name in vars(module):
                return vars(module)[name]
        raise AttributeError(name)


def load(folder: Path) -> Source:
    """SGLang's modules in an unpacked wheel. Raises: ImportError, where they are not there or ask for more."""
    if not (folder / "sglang/srt/managers/schedule_policy.py").is_file():
        raise ImportError(f"{folder}: no unpacked wheel of SGLang")
    finder = StandInFinder(THEIRS, MEMBERS)
    before = set(sys.modules)
    sys.modules.update(_stand_ins())
    sys.meta_path.insert(0, finder)
    try:
        return Source({name: _run(name, folder) for name in sorted(REAL, key=_rank)})
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            with suppress(KeyError):
                if name.split(".")[0] in THEIRS:
                    del sys.modules[name]


_ORDER: Final = ("environ", "evict_policy", "mem_cache.utils", "events", "base_prefix_cache", "cache_init_params")


def _rank(name: str) -> tuple[int, str]:
    """Modules come after those of them that they import."""
    early = next((place for place, part in enumerate(_ORDER) if name.endswith(part)), len(_ORDER))
    late = ("radix_cache", "common", "prefill_budget", "new_token_ratio_tracker", "schedule_policy")
    return early, str(next((place for place, part in enumerate(late) if name.endswith(part)), 0))


def _run(name: str, folder: Path) -> ModuleType:
    path = folder / (name.replace(".", "/") + ".py")
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module
