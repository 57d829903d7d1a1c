"""Records of iterations and of the gaps between tokens, kept as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb import Phase
from vidur_pd.metrics.kv_use import KvUse
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.scheduling import GapCounts

COMPUTE_PHASES = tuple(phase for phase in Phase if phase is not Phase.COMMUNICATION)


@dataclass(frozen=True, slots=True, eq=False)
class IterationRun:
    """Consecutive iterations of one instance with one composition; one entry per iteration in the arrays."""

    instance: int
    start_ps: int
    ends_ps: NDArray[np.int64]
    compute_ps: NDArray[np.int64]
    communication_ps: NDArray[np.int64]
    idle_communication_ps: int
    """What each of them would communicate on an idle fabric."""
    host_ps: int
    phase_ps: tuple[int, ...]
    """Parts of the first iteration's compute time, in the order of ``COMPUTE_PHASES``; later iterations of a run
    differ from it in attention alone."""
    estimated_ps: int
    """Part of the first iteration's compute time that rests on flagged estimates."""
    estimated_operators: tuple[str, ...]
    requests: int
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    running: int
    kv_blocks_used: tuple[int, int]
    """Held during the first and during the last iteration, those held for transfers included; it grows evenly."""
    kv_blocks_total: int


class IterationLog:
    """All iterations of a simulation and every gap between consecutive tokens of a request."""

    def __init__(self, instances: tuple[tuple[str, str], ...], *, keeps_runs: bool = True) -> None:
        """``instances``: (name, pool) by index. Without ``keeps_runs`` only sums and gaps remain of iterations."""
        self.instances = instances
        self._keeps_runs = keeps_runs
        self.runs: list[IterationRun] = []
        self.kv_use = KvUse(len(instances))
        self.gap_counts = GapCounts()
        """Gaps between consecutive tokens of a request, but for those within runs."""
        self._run_gap_ps: list[NDArray[np.int64]] = []
        self._run_gap_count: list[int] = []
        self.iterations = 0
        self.busy_ps = np.zeros(len(instances), dtype=np.int64)
        self.computing_ps = np.zeros(len(instances), dtype=np.int64)
        self.compute_ps = 0
        self.communication_ps = 0
        self.idle_communication_ps = 0
        self.estimated_ps = 0
        self._estimated: set[tuple[str, str]] = set()

    def add(self, run: IterationRun) -> None:
        if self._keeps_runs:
            self.runs.append(run)
        self.iterations += len(run.ends_ps)
        self.busy_ps[run.instance] += int(run.compute_ps.sum() + run.communication_ps.sum())
        self.computing_ps[run.instance] += int(run.compute_ps.sum())
        self.compute_ps += int(run.compute_ps.sum())
        self.communication_ps += int(run.communication_ps.sum())
        self.idle_communication_ps += run.idle_communication_ps * len(run.ends_ps)
        self.estimated_ps += run.estimated_ps * len(run.ends_ps)
        pool = self.instances[run.instance][1]
        self._estimated.update((pool, operator) for operator in run.estimated_operators)

    def add_equal_gaps(self, gaps_ps: NDArray[np.int64], requests: int) -> None:
        """Gaps each of which was seen by so many requests."""
        self._run_gap_ps.append(gaps_ps)
        self._run_gap_count.append(requests)

    def gaps(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """(seconds, counts) of all gaps."""
        lengths = np.array([len(gaps) for gaps in self._run_gap_ps], dtype=np.int64)
        single_ps, single = self.gap_counts.counts()
        gap_ps = self._joined([single_ps, *self._run_gap_ps])
        return gap_ps / PS_PER_S, self._joined([single, self._spread(self._run_gap_count, lengths)])

    def estimated_operators(self) -> list[dict[str, str]]:
        """Operators priced by flagged estimates at least once, by pool."""
        return [{"pool": pool, "operator": operator} for pool, operator in sorted(self._estimated)]

    def columns(self) -> dict[str, NDArray[np.generic] | list[str]]:
        """Columns of ``iterations.parquet``, one entry per iteration, ordered by end time within each instance."""
        lengths = np.array([len(run.ends_ps) for run in self.runs], dtype=np.int64)
        names, pools = zip(*self.instances, strict=True)
        index = self._spread([run.instance for run in self.runs], lengths)
        compute = self._joined([run.compute_ps for run in self.runs])
        first_compute = self._spread([int(run.compute_ps[0]) for run in self.runs], lengths)
        columns: dict[str, NDArray[np.generic] | list[str]] = {
            "instance": np.array(names, dtype=object)[index],
            "pool": np.array(pools, dtype=object)[index],
            "start_s": self._joined([np.concatenate(([run.start_ps], run.ends_ps[:-1])) for run in self.runs])
            / PS_PER_S,
            "end_s": self._joined([run.ends_ps for run in self.runs]) / PS_PER_S,
        }
        for field in ("requests", "prefill_tokens", "decode_tokens", "waiting", "running"):
            columns[field] = self._spread([getattr(run, field) for run in self.runs], lengths)
        columns["kv_blocks_used"] = self._joined(
            [np.linspace(*run.kv_blocks_used, len(run.ends_ps)).astype(np.int64) for run in self.runs]
        )
        columns["kv_blocks_total"] = self._spread([run.kv_blocks_total for run in self.runs], lengths)
        columns["compute_s"] = compute / PS_PER_S
        columns["communication_s"] = self._joined([run.communication_ps for run in self.runs]) / PS_PER_S
        idle = self._spread([run.idle_communication_ps for run in self.runs], lengths)
        columns["idle_communication_s"] = idle / PS_PER_S
        columns["host_s"] = self._spread([run.host_ps for run in self.runs], lengths) / PS_PER_S
        for position, phase in enumerate(COMPUTE_PHASES):
            part = self._spread([run.phase_ps[position] for run in self.runs], lengths)
            if phase is Phase.ATTENTION:
                part = part + compute - first_compute
            columns[f"{phase.value}_s"] = part / PS_PER_S
        columns["estimated_s"] = self._spread([run.estimated_ps for run in self.runs], lengths) / PS_PER_S
        return columns

    @staticmethod
    def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    @staticmethod
    def _spread(values: list[int], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.repeat(np.array(values, dtype=np.int64), lengths)
