"""vLLM's own scheduler from an unpacked wheel, without a GPU, compiled parts or what the wheel depends on.

The modules that decide are the wheel's; all others that they import are stand-ins whose names are empty classes.
Nothing of them is in this repository.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from tests.validation.stand_ins import StandIn, StandInFinder

REAL: Final = frozenset(
    f"vllm.{name}"
    for name in (
        "utils.math_utils",
        "v1.core.block_pool",
        "v1.core.encoder_cache_manager",
        "v1.core.kv_cache_coordinator",
        "v1.core.kv_cache_manager",
        "v1.core.kv_cache_utils",
        "v1.core.sched.async_scheduler",
        "v1.core.sched.interface",
        "v1.core.sched.output",
        "v1.core.sched.request_queue",
        "v1.core.sched.scheduler",
        "v1.core.sched.utils",
        "v1.core.single_type_kv_cache_manager",
        "v1.kv_cache_interface",
        "v1.kv_cache_spec_registry",
        "v1.request",
    )
)
"""Modules that are the wheel's."""
THEIRS: Final = ("vllm", "torch")


MEMBERS: Final = {"__init__": lambda self, *_, **fields: vars(self).update(fields)}
"""Of stand-ins of classes: they keep what they are made with."""


class _Finder(StandInFinder):
    def __init__(self, folder: Path) -> None:
        super().__init__(THEIRS, MEMBERS)
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in REAL:
            return importlib.util.spec_from_file_location(name, self._folder / (name.replace(".", "/") + ".py"))
        return super().find_spec(name, path, target)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name, MEMBERS, **_answers().get(spec.name, {}))


def _silent(*_: Any, **__: Any) -> None: ...


def _logger(_: str) -> SimpleNamespace:
    return SimpleNamespace(**dict.fromkeys(("debug", "info", "info_once", "warning", "warning_once"), _silent))


class _NoPublisher:
    @staticmethod
    def create(*_: Any) -> None: ...


class PrefillStats:
    """Tokens that a request hit when the scheduler last looked for them."""

    hit_tokens = 0

    def set(self, *, num_local_cached_tokens: int, **_: int) -> None:
        self.hit_tokens = num_local_cached_tokens


def _answers() -> dict[str, dict[str, Any]]:
    """Names of stand-ins that have to answer."""
    no_inputs = SimpleNamespace(supports_multimodal_inputs=lambda _: False)
    no_structure = SimpleNamespace(from_sampling_params=lambda _: None)
    return {
        "vllm.logger": {"init_logger": _logger},
        "vllm.distributed.kv_events": {"EventPublisherFactory": _NoPublisher},
        "vllm.multimodal": {"MULTIMODAL_REGISTRY": no_inputs},
        "vllm.platforms": {"current_platform": SimpleNamespace(register_custom_kv_cache_specs=_silent)},
        "vllm.utils": {"length_from_prompt_token_ids_or_embeds": lambda tokens, _: len(tokens)},
        "vllm.v1.metrics.stats": {"PrefillStats": PrefillStats},
        "vllm.v1.structured_output.request": {"StructuredOutputRequest": no_structure},
        "vllm.v1.utils": {
            "ConstantList": lambda tokens: tokens,
            "record_function_or_nullcontext": lambda _: nullcontext(),
        },
    }


def _hash(content: Any) -> bytes:
    return hashlib.sha256(repr(content).encode()).digest()


@dataclass(frozen=True)
class Source:
    """The modules that a comparison uses."""

    scheduler: Any
    asynchronous: Any
    request: Any
    kv: Any
    """``vllm.v1.core.kv_cache_utils``."""
    interface: Any
    """``vllm.v1.kv_cache_interface``."""

    def hasher(self, block_tokens: int) -> Any:
        """Keys of the full blocks of a request."""
        return self.kv.get_request_block_hasher(block_tokens, _hash)


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    finder = _Finder(folder)
    kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in THEIRS}
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] in THEIRS]:
            del sys.modules[name]
        sys.modules.update(kept)


def load(folder: Path) -> Source:
    """vLLM's modules in an unpacked wheel. Raises: ImportError, where they are not there or ask for more."""
    if not (folder / "vllm/v1/core/sched/scheduler.py").is_file():
        raise ImportError(f"{folder}: no unpacked wheel of vLLM")
    with _importing(folder):
        found = Source(
            *(
                importlib.import_module(f"vllm.v1.{name}")
                for name in (
                    "core.sched.scheduler",
                    "core.sched.async_scheduler",
                    "request",
                    "core.kv_cache_utils",
                    "kv_cache_interface",
                )
            )
        )
        importlib.import_module("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(None)
    found.kv.init_none_hash(_hash)
    return found
