"""What iterations have done, from the core's log, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aicb import Phase
from vidur_pd import _core
from vidur_pd.metrics.columns import values_of
from vidur_pd.metrics.iteration_columns import ITERATION_COLUMNS, IterationRows
from vidur_pd.metrics.quantities import PS_PER_S

PHASES = tuple(phase.value for phase in Phase if phase is not Phase.COMMUNICATION)
"""Phases of compute time, in the order of the core."""

Columns = dict[str, NDArray[Any]]
"""[iterations] by name."""


@dataclass(frozen=True, slots=True, eq=False)
class IterationRun:
    """Consecutive iterations of one instance with one composition; one entry per iteration in the arrays."""

    number: int
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
    def busy_at_arrival_ps(self) -> NDArray[np.int64]:
        """[instances] of iterations that had ended when the last request arrived."""
        return self._core.busy_at_arrival_ps

    @property
    def attention_ps(self) -> NDArray[np.int64]:
        """[instances] what attention workers have computed where FFN workers are apart."""
        return self._core.attention_ps

    @property
    def ffn_ps(self) -> NDArray[np.int64]:
        """[instances] what FFN workers have computed."""
        return self._core.ffn_ps

    @property
    def computing_ps(self) -> NDArray[np.int64]:
        """[instances]"""
        return self._core.computing_ps

    @property
    def activity(self) -> list[dict[str, NDArray[Any]]]:
        """[kinds] sums over the iterations of each (`vidur_pd.metrics.utilisation.KINDS`): [instances] by name."""
        summed = []
        for columns in self.activity_by_size:
            names = [name for name in columns if name not in ("instance", "size")]
            totals = {name: np.zeros(len(self.busy_ps), dtype=columns[name].dtype) for name in names}
            for name, total in totals.items():
                np.add.at(total, columns["instance"], columns[name])
            summed.append(totals)
        return summed

    @property
    def activity_by_size(self) -> list[dict[str, NDArray[Any]]]:
        """[kinds] the same by size, half octaves of new tokens: [rows] of an ``instance`` and a ``size`` by name."""
        return self._core.activity

    def members(self) -> dict[str, NDArray[np.int64]]:
        """Who took part in each run of iterations, with what: what the core has kept since the last call."""
        return self._core.take_members()

    def kv_share(self, instances: list[int], makespan_s: float) -> tuple[float | None, float | None]:
        """Mean over the makespan and peak of the used share of the KV blocks of identical instances; ``None`` for no
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
        numbers = (table[name].tolist() for name in ("number", "instance", "start_ps"))
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
        return values_of(ITERATION_COLUMNS, IterationRows(runs, PHASES, self.instances, self._kv_blocks))
