"""Small spaces, and a stand-in for simulations that says what a point comes to by arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vidur_pd.execution.promise.promise import Promise
from vidur_pd.search.evaluation.evaluation import Task
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.screening import Candidate, Screening
from vidur_pd.search.space.space import Point, Space, make_space

BASE: dict[str, Any] = {
    "model": "qwen3-8b",
    "hardware": "h200",
    "workload": {
        "kind": "synthetic",
        "requests": 120,
        "arrivals": {"kind": "poisson", "qps": 20},
        "lengths": {"kind": "fixed", "prefill": 1000, "decode": 20},
    },
    "cluster": {"topology": {"kind": "single_switch"}, "pools": [{"name": "server", "role": "mixed"}]},
    "slo": {"ttft": {"p90": 0.5}, "tpot": {"p90": 0.05}},
    "output": {"iterations": False, "links": False},
}


def space(choices: Mapping[str, Sequence[Any]] | None = None, **fields: Any) -> Space:
    tree = {"base": BASE, "choices": choices or {"cluster.pools.server.instances": [1, 2, 3]}, "objective": "min_gpus"}
    return make_space({**tree, **fields}, Path(), "space.yaml")


class Arithmetic:
    """Workers whose outcomes are a function of the point and the fidelity."""

    def __init__(self, outcome: Callable[[Point, int], Outcome]) -> None:
        self._outcome = outcome
        self.ran: list[tuple[Point, int]] = []

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in reversed(tasks):  # in another order than they were given
            self.ran.append((task.point, task.fidelity))
            yield task, self._outcome(task.point, task.fidelity)

    def close(self) -> None:
        pass


def screened(
    found: Space,
    gpus: Callable[[Point], int],
    promise: Callable[[Point], Promise],
    price: Callable[[Point], float | None] = lambda _: None,
    output_tokens: float = 0.0,
) -> Screening:
    """All points are candidates."""
    candidates = [
        Candidate(point, gpus(point), price(point), promise(point), output_tokens) for point in found.points()
    ]
    ranked = sorted(candidates, key=lambda each: (each.rank(found.file.objective), each.point))
    return Screening(tuple(ranked), ())
