"""Runs a plan: prepares each kernel, checks it, times it, stores the row; within a time budget, resumable.

A kernel whose result differs from the reference beyond its tolerance is refused, and so is, from then on, every shape
of that kernel: a fast wrong kernel must not enter a table.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from aicb.kernels.point import Point, encode_lengths
from aicb.profiling.cost import flops, moved_bytes, operand_sets
from aicb.profiling.environment import device_facts, software_facts
from aicb.profiling.kernel_library import Kernel, Library, poison, seed_of
from aicb.profiling.store import Row, RowFile, write_table
from aicb.profiling.timing import CpuTimer, CudaTimer, Replayed, Spread, Timer

logger = logging.getLogger(__name__)

_CACHE_LIMIT_BYTES = 60 << 30
"""Cached device memory beyond which the allocator is asked to release."""


class WrongKernel(RuntimeError):
    """A kernel's result differs from the reference by more than its tolerance."""


class ContextLost(RuntimeError):
    """A kernel broke the CUDA context; the point is noted, and a resumed run leaves it out."""


@dataclass(slots=True)
class Report:
    """Results of a run; printed at its end and stored with the table."""

    measured: Counter[str] = field(default_factory=Counter)
    """By kernel."""
    failed: Counter[str] = field(default_factory=Counter)
    """By kernel and first line of the error."""
    missing: dict[str, str] = field(default_factory=dict)
    """Library → why it cannot be used."""
    unserved: Counter[str] = field(default_factory=Counter)
    """Points no library took, by operation."""
    left: int = 0
    """Points not reached within the budget."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run."""

    device: str
    budget_s: float
    check_share: float
    """Part of the points whose results are compared with a reference; the first of each kernel always is."""
    resume: bool = False
    seed: int = 0
    run: str = "profile"


def run_plan(
    points: Sequence[Point],
    libraries: Sequence[Library],
    directory: Path,
    settings: Settings,
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Measures points in shuffled order, small ``priority`` first, and writes rows and table to ``directory``.

    ``progress`` is called after each point with the points done, all points, and the operation.

    Raises:
        InputError: the directory holds results and ``settings.resume`` is false.
        ContextLost: a kernel broke the device's context; what was measured before is stored.
    """
    began = time.monotonic()
    file, report = RowFile(directory), Report()
    stored = file.start(resume=settings.resume)
    rows = [row for row in stored if "failure" not in row]
    session = 1 + max((int(row.get("session", 0)) for row in rows), default=-1)
    done = {(row["key"], row["library"]) for row in stored}
    usable = _usable(libraries, report)
    timer: Timer = CudaTimer() if settings.device == "cuda" else CpuTimer()
    jobs = _jobs(points, usable, report, settings.seed)
    todo = [job for job in jobs if (job[0].key, type(job[1]).__name__) not in done]
    bench = _Bench(timer, settings, report)
    if isinstance(timer, CudaTimer):
        rows += _host_rows(timer, file, settings, session, report)
    for index, (point, library) in enumerate(todo):
        if time.monotonic() - began > settings.budget_s:
            report.left = len(todo) - index
            break
        name: dict[str, str] = {"key": point.key, "library": type(library).__name__}
        try:
            row = bench.measure(point, library)
        except ContextLost as error:
            file.append({**name, "failure": str(error)})
            raise
        if row is not None:
            row.update(**name, run=settings.run, session=session)
            file.append(row)
            rows.append(row)
        if progress is not None:
            progress(index + 1, len(todo), point.op)
    report.seconds = time.monotonic() - began
    write_table(directory, rows, _provenance(usable, report, settings))
    return report


def _usable(libraries: Sequence[Library], report: Report) -> list[Library]:
    usable = []
    for library in libraries:
        reason = library.missing()
        if reason is None:
            usable.append(library)
        else:
            report.missing[type(library).__name__] = reason
            logger.info("skipped %s: %s", type(library).__name__, reason)
    return usable


def _jobs(
    points: Sequence[Point], libraries: Sequence[Library], report: Report, seed: int
) -> list[tuple[Point, Library]]:
    """Each point with each library that takes it, shuffled within equal priority."""
    jobs = []
    for point in points:
        takers = [library for library in libraries if library.refusal(point) is None]
        if not takers:
            report.unserved[f"{point.op} {point.dtype}".strip()] += 1
        jobs += [(point, library) for library in takers]
    random.Random(seed).shuffle(jobs)
    return sorted(jobs, key=lambda job: job[0].priority)


class _Bench:
    """Checks and times one kernel at a time."""

    def __init__(self, timer: Timer, settings: Settings, report: Report):
        self._timer, self._settings, self._report = timer, settings, report
        self._seen: set[str] = set()
        self._refused: set[str] = set()

    def measure(self, point: Point, library: Library) -> Row | None:
        """The row of a point; ``None`` where it failed or was refused, which is counted."""
        name = f"{type(library).__name__} {point.op}"
        if name in self._refused:
            return None
        try:
            row = self._row(point, library)
            self._release()
            return row
        except WrongKernel as error:
            self._refused.add(name)
            self._fail(f"{name} {point.key[:80]}", error)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            self._fail(name, error)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError) as error:
            if "CUDA error" in str(error) or "illegal memory" in str(error):
                raise ContextLost(f"{name}: {point.key}: {error}".splitlines()[0]) from error
            self._fail(name, error)
        return None

    def _fail(self, name: str, error: BaseException) -> None:
        line = (str(error).splitlines() or [""])[0][:160]
        self._report.failed[f"{name}: {type(error).__name__}: {line}"] += 1
        logger.warning("%s: %s", name, line)

    def _row(self, point: Point, library: Library) -> Row:
        seed = seed_of(point)
        torch.manual_seed(seed)
        kernel = library.kernel(point)
        is_checked = kernel.label not in self._seen or seed % 1000 < 1000 * self._settings.check_share
        self._seen.add(kernel.label)
        cold, warm, errors = self._times_of(kernel, is_checked=is_checked and kernel.error is not None)
        clocks = self._timer.clocks()
        others = [library.kernel(point) for _ in range(operand_sets(point) - 1)]
        rotated = self._timer.replayed([k.run for k in (kernel, *others)], cold.median_us) if others else warm
        self._report.measured[kernel.label] += 1
        row = _shape_row(point, kernel.label)
        row.update(_times(cold, warm.spread), flops=flops(point), bytes=moved_bytes(point), **clocks)
        row.update(_replay_columns(warm, rotated), operand_sets=1 + len(others))
        if errors:
            row.update(error=max(errors), tolerance=kernel.tolerance)
        if kernel.settings:
            row["settings"] = json.dumps(kernel.settings)
        return row

    def _times_of(self, kernel: Kernel, *, is_checked: bool) -> tuple[Spread, Replayed, list[float]]:
        """Cold and warm times, and the errors of a first call and of a first replay into poisoned outputs.

        Raises:
            WrongKernel: an error exceeds the tolerance.
        """
        errors: list[float] = []

        def check() -> None:
            if is_checked:
                assert kernel.error is not None
                errors.append(kernel.error())
                if not errors[-1] <= kernel.tolerance:
                    raise WrongKernel(f"{kernel.label}: error {errors[-1]:.3g} above {kernel.tolerance:.3g}")

        if is_checked:
            poison(kernel.outputs)
            kernel.run()
            check()
        cold = self._timer.cold(kernel.run)
        if is_checked:
            poison(kernel.outputs)
        return cold, self._timer.replayed([kernel.run], cold.median_us, check), errors

    def _release(self) -> None:
        if self._settings.device == "cuda" and torch.cuda.memory_reserved() > _CACHE_LIMIT_BYTES:
            torch.cuda.empty_cache()


def _shape_row(point: Point, label: str) -> Row:
    row: Row = {"op": point.op, "kernel": label, "dtype": point.dtype, "tag": point.tag, **dict(point.shape)}
    row["distribution"] = point.distribution
    for name in ("lengths", "queries"):
        values = getattr(point, name)
        if values:
            row[name] = encode_lengths(values)
    return row


def _times(cold: Spread, warm: Spread | None) -> dict[str, float]:
    times = {
        "cold_us": cold.median_us,
        "cold_p10_us": cold.p10_us,
        "cold_p90_us": cold.p90_us,
        "samples": cold.count,
    }
    if warm is not None:
        times |= {
            "graph_us": warm.median_us,
            "graph_p10_us": warm.p10_us,
            "graph_p90_us": warm.p90_us,
            "graph_samples": warm.count,
        }
    return {name: round(value, 4) for name, value in times.items()}


def _replay_columns(warm: Replayed, rotated: Replayed) -> dict[str, float]:
    """Columns of the replays other than the warm one."""
    columns = {
        "rotated_us": rotated.spread.median_us,
        "rotated_p10_us": rotated.spread.p10_us,
        "rotated_p90_us": rotated.spread.p90_us,
        "rotated_samples": rotated.spread.count,
    }
    if warm.clock_mhz is not None and rotated.clock_mhz is not None:
        columns |= {"graph_clock_mhz": warm.clock_mhz, "rotated_clock_mhz": rotated.clock_mhz}
    return {name: round(value, 4) for name, value in columns.items()}


def _host_rows(timer: CudaTimer, file: RowFile, settings: Settings, session: int, report: Report) -> list[Row]:
    """Launch costs, measured once in every session: floors differ between hosts."""
    from aicb.profiling.host import launch_costs

    rows: list[Row] = []
    for point, label, cold, warm in launch_costs(timer):
        row = _shape_row(point, label)
        row.update(_times(cold, warm), key=f"{point.key}|{session}", library="host", run=settings.run, session=session)
        file.append(row)
        rows.append(row)
        report.measured[label] += 1
    return rows


def _provenance(libraries: Sequence[Library], report: Report, settings: Settings) -> dict[str, object]:
    return {
        "environment": {**device_facts(settings.device), **software_facts()},
        "libraries": [library.version() for library in libraries],
        "missing_libraries": report.missing,
        "failures": dict(report.failed),
        "points_no_library_took": dict(report.unserved),
        "timing": {
            "cold_us": "CUDA events around one call, L2 flushed by a memset of 6 x L2 before each sample, median",
            "graph_us": "replays of a CUDA graph of about 2 ms with the same operands, L2 warm, per call, median",
            "rotated_us": "the same with operand sets of 2.5 x L2 in turns, where weights or caches would be cold",
            "clocks": "graph_clock_mhz, rotated_clock_mhz: cycles over nanoseconds counted on the SMs during replays",
            "order": "shuffled within equal priority",
        },
        "check_share": settings.check_share,
    }
