#!/usr/bin/env python3
"""Compares layers whose shared expert runs on a stream of its own with what is made of its parts.

    python -m tests.validation.shared_expert_stream

Decodes of Qwen3-Next-80B-A3B (one rank of TP 2) and DeepSeek-V3 inside vLLM 0.24.0 on an H200, once with a stream for
the shared expert and once without (``tests/data/engine/vllm-h200-layers.json.gz``). From the second are taken the
shared expert's kernels and all others between the norm after attention and the next one; `aicb.iteration.overlap` makes
of them what the first should take. ``INTERFERENCE`` is fitted to these points: their median.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from aicb.iteration.overlap import SHARED_EXPERT_OPERATORS, StreamWork, bound_ps, side_by_side_ps
from aicb.measurements.gpu import get_gpu
from aicb.model.catalog import load_model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.lists import expert_operators, token_operators
from aicb.operators.operator import Operator
from tests.validation.engine_steps import Engine, Ran, engine

H200, PS_PER_US = get_gpu("h200"), 1e6
ENGINES = {"qwen3-next-80b-a3b-tp2": "bf16", "deepseek-v3-tp1": "fp8"}
"""Those that were run both ways, with the format of their weights."""


@dataclass(frozen=True)
class Together:
    """Medians over the layers of a step, in us."""

    engine: str
    requests: int
    measured_us: float
    """From the norm after attention to the next norm, the shared expert on a stream of its own."""
    others_us: float
    """Without it: all kernels but the shared expert's."""
    shared_us: float
    others_bound_us: float
    shared_bound_us: float

    @property
    def simulated_us(self) -> float:
        main, second = (
            StreamWork(round(time_us * PS_PER_US), round(bound_us * PS_PER_US))
            for time_us, bound_us in (
                (self.others_us, self.others_bound_us),
                (self.shared_us, self.shared_bound_us),
            )
        )
        return side_by_side_ps(main, second) / PS_PER_US

    @property
    def interference(self) -> float:
        """Of the shared expert's time beyond its roofline, the part that is not hidden."""
        added_us = self.measured_us - self.others_us - self.shared_bound_us
        return added_us / (self.shared_us - self.shared_bound_us)


def compare() -> Iterator[Together]:
    for name, weights in ENGINES.items():
        ran, alone = engine(name), engine(f"{name}-one-stream")
        for requests in ran.decodes:
            together, apart = (list(_layers(each.decodes[requests])) for each in (ran, alone))
            shared = [sum(kernel.time_us for kernel in _shared(layer)) for layer in apart]
            others = [sum(kernel.time_us for kernel in layer) - own for layer, own in zip(apart, shared, strict=True)]
            bounds = _bounds_us(ran, weights, requests)
            yield Together(name, requests, median(map(_span_us, together)), median(others), median(shared), *bounds)


def _span_us(layer: list[Ran]) -> float:
    return max(kernel.start_us + kernel.time_us for kernel in layer) - layer[0].start_us


def _layers(kernels: list[Ran]) -> Iterator[list[Ran]]:
    """What each layer with experts runs between the norm after attention and the next norm."""
    layer: list[Ran] | None = None
    for kernel in kernels:
        if "moe_forward_shared" in kernel.name:
            layer = []
        elif layer is not None and kernel.name.startswith("triton_red"):
            yield layer
            layer = None
        elif layer is not None:
            layer.append(kernel)


def _shared(layer: list[Ran]) -> list[Ran]:
    """The shared expert's, where all are on one stream: after the router's product, before experts are chosen."""
    chosen = next(place for place, kernel in enumerate(layer) if "topk" in kernel.name.lower())
    assert sum("silu_slice" in kernel.name for kernel in layer[1:chosen]) == 1
    return layer[1:chosen]


def _bounds_us(ran: Engine, weights: str, requests: int) -> tuple[float, float]:
    """Rooflines of the routed experts and of the shared one."""
    parallel = (load_model(ran.model), Partition(tp=ran.tp), Precision(weights))  # type: ignore[arg-type]
    experts = expert_operators(*parallel, tokens=requests, group_tokens=requests, is_decode=True)
    tokens = token_operators(*parallel, tokens=requests)
    shared = [each for each in tokens if each.name in SHARED_EXPERT_OPERATORS]
    return _bound_us(experts), _bound_us(shared)


def _bound_us(operators: list[Operator]) -> float:
    """Of one layer."""
    layers = max(each.count for each in operators)
    return bound_ps(operators, H200) / layers / PS_PER_US


def main() -> None:
    rows = list(compare())
    for row in rows:
        error = row.simulated_us / row.measured_us - 1
        print(
            f"{row.engine:24s} {row.requests:4d} requests: {row.others_us:7.1f} us, shared {row.shared_us:5.1f}, "
            f"both {row.measured_us:7.1f}, simulated {row.simulated_us:7.1f} ({error:+.1%}), "
            f"hidden {row.others_us + row.shared_us - row.measured_us:5.1f}, interference {row.interference:+.2f}"
        )
    print(f"median interference {median(row.interference for row in rows):.2f}")


if __name__ == "__main__":
    main()
