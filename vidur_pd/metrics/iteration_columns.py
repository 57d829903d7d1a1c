"""Rows of ``iterations.parquet``, from the core's table of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.columns import KEY, TEXT, Column
from vidur_pd.metrics.quantities import PS_PER_S


def _between(first: NDArray[np.int64], last: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """[iterations] from the first value of each run to its last, in equal steps."""
    step = np.arange(int(steps.sum())) - np.repeat(np.cumsum(steps) - steps, steps)
    rise = (last - first) / np.maximum(steps - 1, 1)
    used: NDArray[np.int64] = np.floor(np.repeat(first, steps) + step * np.repeat(rise, steps)).astype(np.int64)
    return used


@dataclass(frozen=True, slots=True, eq=False)
class IterationRows:
    """One row per iteration, from the core's table of runs."""

    runs: dict[str, Any]
    """[runs] and [iterations] by name, as the core hands them over."""
    phases: tuple[str, ...]
    """Names of ``phase_ps``."""
    instances: tuple[tuple[str, str], ...]
    """(name, pool) by index."""
    kv_blocks: tuple[int, ...]
    """[instances]"""

    def spread(self, name: str) -> NDArray[np.int64]:
        """[iterations] a column of runs."""
        return np.repeat(self.runs[name], self.runs["steps"])

    def of_instance(self, values: tuple[Any, ...], kind: type[Any]) -> NDArray[Any]:
        """[iterations] what instances have."""
        return np.array(values, dtype=kind)[self.spread("instance")]

    @property
    def first(self) -> NDArray[np.int64]:
        """[runs] row of the first iteration."""
        steps = self.runs["steps"]
        return np.asarray(np.cumsum(steps) - steps)

    @property
    def start_ps(self) -> NDArray[np.int64]:
        ends_ps = self.runs["ends_ps"]
        start_ps = np.concatenate((np.zeros(min(len(ends_ps), 1), dtype=np.int64), ends_ps[:-1]))
        start_ps[self.first] = self.runs["start_ps"]
        return start_ps

    def phase_ps(self, phase: str) -> NDArray[np.int64]:
        part_ps: NDArray[np.int64] = np.repeat(self.runs["phase_ps"][self.phases.index(phase)], self.runs["steps"])
        if phase != "attention":
            return part_ps
        device_ps = self.runs["compute_ps"] - self.runs["host_ps"]
        # of the device, later iterations of a run differ in attention alone
        return np.asarray(part_ps + device_ps - np.repeat(device_ps[self.first], self.runs["steps"]))


def _of_runs(
    name: str, unit: str, meaning: str, *, of: str | None = None, in_report: bool = True
) -> Column[IterationRows]:
    return Column(name, unit, lambda rows: rows.spread(of or name), meaning, in_report=in_report)


def _time(
    name: str, times_ps: Callable[[IterationRows], NDArray[np.int64]], meaning: str, *, in_report: bool = True
) -> Column[IterationRows]:
    return Column(name, "s", lambda rows: times_ps(rows) / PS_PER_S, meaning, in_report=in_report)


def _phase(phase: str, meaning: str) -> Column[IterationRows]:
    return _time(f"{phase}_s", lambda rows: rows.phase_ps(phase), meaning)


ITERATION_COLUMNS: Final[tuple[Column[IterationRows], ...]] = (
    Column(
        "instance", TEXT, lambda rows: rows.of_instance(tuple(name for name, _ in rows.instances), object), "instance"
    ),
    Column("pool", TEXT, lambda rows: rows.of_instance(tuple(pool for _, pool in rows.instances), object), "its pool"),
    _of_runs("batch", KEY, "number of its batch, equal for decodes of the same requests", of="number", in_report=False),
    _time("start_s", lambda rows: rows.start_ps, "begin of the iteration"),
    _time("end_s", lambda rows: rows.runs["ends_ps"], "its end, with pipeline stages that of the last"),
    _of_runs("requests", "", "requests in its batches, of all ranks", in_report=False),
    _of_runs("prefill_tokens", "tokens", "prompt tokens"),
    _of_runs("decode_tokens", "tokens", "tokens of decodes"),
    _of_runs("waiting", "", "requests that wait on the instance at its end"),
    _of_runs("running", "", "requests that run on the instance at its end"),
    Column(
        "kv_blocks_used",
        "blocks",
        lambda rows: _between(rows.runs["kv_blocks_first"], rows.runs["kv_blocks_last"], rows.runs["steps"]),
        "KV blocks that requests and transfers hold",
    ),
    Column(
        "kv_blocks_total",
        "blocks",
        lambda rows: rows.of_instance(rows.kv_blocks, np.int64),
        "KV blocks of the instance",
    ),
    _time("compute_s", lambda rows: rows.runs["compute_ps"], "compute time, summed over pipeline stages"),
    _time("communication_s", lambda rows: rows.runs["communication_ps"], "exposed communication"),
    _time(
        "idle_communication_s",
        lambda rows: rows.spread("idle_communication_ps"),
        "communication on an idle fabric, and waits for layers from tiers",
        in_report=False,
    ),
    _time("host_s", lambda rows: rows.runs["host_ps"], "exposed host time"),
    _phase("attention", "part of the compute time in attention"),
    _phase("dense", "part of it in dense layers"),
    _phase("experts", "part of it in routed experts"),
    _phase("head", "part of it in embedding, head and sampling"),
    _phase("norm_and_small", "part of it in norms and small kernels"),
    _time(
        "estimated_s",
        lambda rows: rows.spread("estimated_ps"),
        "compute time that rests on flagged estimates",
        in_report=False,
    ),
)
"""Columns of ``iterations.parquet``: rows are ordered by end time within each instance."""
