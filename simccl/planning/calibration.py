"""Calibrations: the corrections of NCCL's cost model that were fitted to measurements of one GPU type.

One correction (`simccl.nccl.correction`) per GPU type, ranks, nodes, operation, algorithm and protocol; other rank
counts of one node take the nearest. Between nodes those algorithms that a calibration names take the corrections of one
node. What was not measured keeps NCCL's constants. NCCL's choice is left as it is; where a measurement does not say
which pair ran, the model does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from importlib import resources
from math import log
from pathlib import Path
from typing import Any, Literal

from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.output_files import write_atomically
from boundary.text_files import read_text
from simccl.algorithms.registry import name_of
from simccl.collective import MAX_RANKS, Algorithm, Collective, Protocol
from simccl.communicator.gpus import gpu_named
from simccl.nccl.correction import Correction, check_correction


@dataclass(frozen=True, slots=True)
class Case:
    """Case that one correction is for."""

    op: Collective
    ranks: int
    nodes: int
    algorithm: Algorithm
    protocol: Protocol

    def label(self) -> tuple[str, ...]:
        """The words of the case, for messages."""
        return self.op, self.algorithm, self.protocol, f"{self.ranks} ranks", f"{self.nodes} nodes"

    def inside_a_node(self) -> Case:
        """The same among the GPUs of one of its nodes, where NVLS takes the place of its tree."""
        algorithm = Algorithm.NVLS if self.algorithm == Algorithm.NVLS_TREE else self.algorithm
        return replace(self, ranks=self.ranks // self.nodes, nodes=1, algorithm=algorithm)

    def distance(self, other: Case) -> float:
        """Distance of two cases that differ in ranks and nodes only; infinite where one has a single node."""
        if (self.op, self.algorithm, self.protocol) != (other.op, other.algorithm, other.protocol):
            return float("inf")
        if (self.nodes == 1) != (other.nodes == 1):
            return float("inf")
        return abs(log(self.ranks / other.ranks)) + abs(log(self.nodes / other.nodes))


@dataclass(frozen=True, slots=True)
class Fit:
    """A correction with how well it holds."""

    correction: Correction
    points: int
    median_error: float
    """Median absolute relative error on the points it was fitted to."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The corrections of one GPU type."""

    gpu: str
    source: str
    """Measurements: by whom, with which versions."""
    fits: Mapping[Case, Fit]
    also: Calibration | None = None
    """Calibration that has cases of exactly these ranks which were not measured here."""
    between_nodes: frozenset[Algorithm] = frozenset()
    """Algorithms that are corrected between nodes as inside one, where no measurement has several nodes."""

    def correction(self, case: Case) -> Correction | None:
        """The correction of the case, of the nearest number of ranks, or None where nothing near was measured."""
        measured = self._measured(case)
        if measured is None and case.ranks > case.nodes > 1 and case.algorithm in self.between_nodes:
            return self._measured(case.inside_a_node())
        return measured

    def _measured(self, case: Case) -> Correction | None:
        for calibration in (self, self.also):
            if calibration is not None and case in calibration.fits:
                return calibration.fits[case].correction
        nearest = min(self.fits, key=case.distance, default=None)
        if nearest is None or case.distance(nearest) == float("inf"):
            return None if self.also is None else self.also._measured(case)
        return self.fits[nearest].correction


Calibrated = Calibration | Literal["shipped", "none"]
"""Corrections that apply: those of a calibration to its GPU type, those that come with the package, or none."""


def calibration_for(gpu: str, wanted: Calibrated) -> Calibration | None:
    """The calibration that applies to a GPU type; one of another type gives way to the shipped one."""
    if isinstance(wanted, Calibration) and wanted.gpu == gpu:
        return wanted
    return None if wanted == "none" else shipped_calibration(gpu)


@lru_cache(maxsize=32)
def shipped_calibration(gpu: str) -> Calibration | None:
    """The calibration that comes with this package, None where there is none for the GPU type."""
    file = resources.files("simccl") / "data" / gpu / "calibration.json"
    return _parsed(f"data/{gpu}/calibration.json", file.read_text(encoding="utf-8")) if file.is_file() else None


def read_calibration(source: Path) -> Calibration:
    """A file that `write_calibration` wrote.

    Raises:
        InputError: naming the file and the field.
    """
    return _parsed(str(source), read_text(source, "a calibration that simccl calibrate wrote"))


def write_calibration(calibration: Calibration, destination: Path) -> None:
    """Writes JSON, one line per case."""
    cases = sorted(calibration.fits.items(), key=lambda item: item[0].label())
    head: dict[str, str | list[str]] = {"gpu": calibration.gpu, "source": calibration.source}
    if calibration.also is not None:
        head["also"] = calibration.also.gpu
    if calibration.between_nodes:
        head["between_nodes"] = sorted(calibration.between_nodes)
    lines = [json.dumps(asdict(case) | _rounded(fit)) for case, fit in cases]
    body = ",\n  ".join(lines)
    members = ",\n ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items())
    text = f'{{\n {members},\n "fits": [\n  {body}\n ]\n}}\n'
    write_atomically(destination, text)


def _rounded(fit: Fit) -> dict[str, float]:
    values = asdict(fit.correction) | {"points": fit.points, "median_error": fit.median_error}
    return {
        name: float(f"{value:.4g}") if name != "points" else value
        for name, value in values.items()
        if value != float("inf")
    }


def _parsed(place: str, text: str) -> Calibration:
    expected = "a calibration that simccl calibrate wrote"
    data = parse_json(text, place, expected)
    try:
        fits = dict(_fit(row, f"{place} fits[{number}]") for number, row in enumerate(data["fits"]))
        also = shipped_calibration(gpu_named(data["also"]).name) if "also" in data else None
        between_nodes = frozenset(name_of(name) for name in data.get("between_nodes", []))
        return Calibration(str(data["gpu"]), str(data["source"]), fits, also, between_nodes)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{place}: found no field {error}, expected {expected}") from None
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise InputError(f"{place}: found {error}, expected {expected}") from None


def _fit(row: Mapping[str, Any], where: str) -> tuple[Case, Fit]:
    """One case and what was fitted to it."""
    case = Case(
        Collective(row["op"]),
        int(row["ranks"]),
        int(row["nodes"]),
        name_of(row["algorithm"]),
        Protocol(row["protocol"]),
    )
    if not 1 <= case.nodes <= case.ranks <= MAX_RANKS:
        raise InputError(f"{where}: found {case.ranks} ranks on {case.nodes} nodes, expected at most {MAX_RANKS} ranks")
    names = (field.name for field in fields(Correction))
    correction = Correction(**{name: float(row[name]) for name in names if name in row})
    check_correction(correction, where)
    return case, Fit(correction, int(row["points"]), float(row["median_error"]))
