"""What iterations have done, from the core's log, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aicb import Phase
from vidur_pd import _core
from vidur_pd.metrics.columns import TEXT, Column, values_of
from vidur_pd.metrics.quantities import PS_PER_S

COMPUTE_PHASES = tuple(phase for phase in Phase if phase is not Phase.COMMUNICATION)
"""Order of the core's phases."""

Columns = dict[str, NDArray[Any]]
"""[iterations] by name."""


@dataclass(frozen=True, slots=True, eq=False)
class IterationRun:
    """Consecutive iterations of one instance with one composition; one entry per iteration in the arrays."""

    instance: int
    start_ps: int
    ends_ps: NDArray[np.int64]
    compute_ps: NDArray[np.int64]
    communication_ps: NDArray[np.int64]
    requests: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    running: int
    kv_blocks: int
    """Held when it has ended."""


class IterationLog:
    """All iterations of a simulation and every gap between consecutive tokens of a request."""

    def __init__(
        self, core: _core.IterationLog, instances: tuple[tuple[str, str], ...], kv_blocks: tuple[int, ...]
    ) -> None:
        """``instances``: (name, pool) by index; ``kv_blocks`` of each."""
        self.instances = instances
        self._kv_blocks = kv_blocks
        self._core = core

    @property
    def iterations(self) -> int:
        return self._core.iterations

    @property
    def compute_ps(self) -> int:
        return self._core.compute_ps

    @property
    def communication_ps(self) -> int:
        return self._core.communication_ps

    @property
    def idle_communication_ps(self) -> int:
        """What the same iterations would communicate on an idle fabric."""
        return self._core.idle_communication_ps

    @property
    def estimated_ps(self) -> int:
        """Part of ``compute_ps`` that rests on flagged estimates."""
        return self._core.estimated_ps

    @property
    def busy_ps(self) -> NDArray[np.int64]:
        """[instances]"""
        return self._core.busy_ps

    @property
    def computing_ps(self) -> NDArray[np.int64]:
        """[instances]"""
        return self._core.computing_ps

    def kv_share(self, instances: list[int], makespan_s: float) -> tuple[float | None, float | None]:
        """Mean over the makespan and peak of the used share of the KV blocks of alike instances; ``None`` for no
        makespan."""
        if not makespan_s:
            return None, None
        blocks = self._kv_blocks[instances[0]]
        held_s = sum(self._core.kv_block_seconds(index) for index in instances)
        peak = max(self._core.kv_peak(index) for index in instances)
        return held_s / (makespan_s * blocks * len(instances)), peak / blocks

    def gaps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(seconds, counts) of all gaps, rising."""
        gap_ps, counts = self._core.gap_counts.counts()
        return gap_ps / PS_PER_S, counts

    @property
    def runs(self) -> list[IterationRun]:
        """Runs in the order of their ends; none where the simulation did not keep them."""
        return list(self._each_run())

    def _each_run(self) -> Iterator[IterationRun]:
        table = self._table
        ends = np.cumsum(table["steps"])[:-1]
        arrays = (np.split(table[name], ends) for name in ("ends_ps", "compute_ps", "communication_ps"))
        names = ("requests", "prefill_tokens", "decode_tokens", "waiting", "running", "kv_blocks_last")
        numbers = (table[name].tolist() for name in ("instance", "start_ps"))
        figures = (table[name].tolist() for name in names)
        if len(table["steps"]):
            for row in zip(*numbers, *arrays, *figures, strict=True):
                yield IterationRun(*row)

    @cached_property
    def _table(self) -> dict[str, Any]:
        return self._core.take_runs()

    def columns(self) -> Columns:
        """Columns of ``iterations.parquet``."""
        return self._columns(self._table)

    def take_columns(self) -> Columns:
        """The same of what has been kept since the last call, and of nothing that `columns` will have."""
        return self._columns(self._core.take_runs())

    def _columns(self, runs: dict[str, Any]) -> Columns:
        return values_of(ITERATION_COLUMNS, IterationRows(runs, self.instances, self._kv_blocks))


@dataclass(frozen=True, slots=True, eq=False)
class IterationRows:
    """One row per iteration, from the core's table of runs."""

    runs: dict[str, Any]
    """[runs] and [iterations] by name, as the core hands them over."""
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

    def phase_ps(self, phase: Phase) -> NDArray[np.int64]:
        part_ps = np.repeat(self.runs["phase_ps"][COMPUTE_PHASES.index(phase)], self.runs["steps"])
        if phase is not Phase.ATTENTION:
            return part_ps
        compute_ps = self.runs["compute_ps"]  # later iterations of a run differ in attention alone
        return np.asarray(part_ps + compute_ps - np.repeat(compute_ps[self.first], self.runs["steps"]))


def _of_runs(name: str, unit: str, meaning: str, *, in_report: bool = True) -> Column[IterationRows]:
    return Column(name, unit, lambda rows: rows.spread(name), meaning, in_report=in_report)


def _time(name: str, times_ps: Callable[[IterationRows], NDArray[np.int64]], meaning: str) -> Column[IterationRows]:
    return Column(name, "s", lambda rows: times_ps(rows) / PS_PER_S, meaning)


def _phase(phase: Phase) -> Column[IterationRows]:
    return _time(
        f"{phase.value}_s", lambda rows: rows.phase_ps(phase), f"part of it in {phase.value.replace('_', ' ')}"
    )


ITERATION_COLUMNS: Final[tuple[Column[IterationRows], ...]] = (
    Column(
        "instance", TEXT, lambda rows: rows.of_instance(tuple(name for name, _ in rows.instances), object), "instance"
    ),
    Column("pool", TEXT, lambda rows: rows.of_instance(tuple(pool for _, pool in rows.instances), object), "its pool"),
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
    replace(
        _time(
            "idle_communication_s",
            lambda rows: rows.spread("idle_communication_ps"),
            "communication on an idle fabric",
        ),
        in_report=False,
    ),
    _time("host_s", lambda rows: rows.spread("host_ps"), "exposed host time"),
    *(_phase(phase) for phase in COMPUTE_PHASES),
    replace(
        _time("estimated_s", lambda rows: rows.spread("estimated_ps"), "compute time that rests on flagged estimates"),
        in_report=False,
    ),
)
"""Columns of ``iterations.parquet``: rows are ordered by end time within each instance."""


def _between(first: NDArray[np.int64], last: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """[iterations] from the first value of each run to its last, in equal steps."""
    step = np.arange(int(steps.sum())) - np.repeat(np.cumsum(steps) - steps, steps)
    rise = (last - first) / np.maximum(steps - 1, 1)
    used: NDArray[np.int64] = np.floor(np.repeat(first, steps) + step * np.repeat(rise, steps)).astype(np.int64)
    return used
