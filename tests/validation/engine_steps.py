"""Kernels of whole steps inside vLLM 0.24.0 on one H200 (``tests/data/engine/vllm-h200-layers.json.gz``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from tests.validation.engine_figures import read_measurement


class Ran(NamedTuple):
    """A kernel of a step."""

    name: str
    stream: int
    """1: that of shared experts."""
    start_us: float
    time_us: float


@dataclass(frozen=True)
class Engine:
    """One rank of a TP group, of a model cut to a few layers."""

    model: str
    tp: int
    decodes: dict[int, list[Ran]]
    """By number of requests, medians of some steps in the order of their starts."""


@lru_cache
def engine(name: str) -> Engine:
    """``name``: model and TP, as ``deepseek-v3-tp8``; ``-one-stream`` without a second one."""
    found = _measurement()["engines"][name]
    names = _measurement()["names"]
    decodes = {
        int(requests): [Ran(names[name], *rest) for name, *rest in step["kernels"]]
        for requests, step in found["decode"].items()
    }
    return Engine(found["model"], found["tp"], decodes)


@lru_cache
def _measurement() -> dict[str, Any]:
    return read_measurement("vllm-h200-layers")
