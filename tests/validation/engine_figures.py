"""Figures of an engine that runs somewhere, and of its simulation; measurements that come with the repository."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "data" / "engine"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure."""

    name: str
    measured_ms: float
    simulated_ms: float

    @property
    def error(self) -> float:
        """Relative; positive where the simulation is slower."""
        return self.simulated_ms / self.measured_ms - 1.0


def read_measurement(name: str) -> dict[str, Any]:
    """What ``tests/data/engine/NAME.json.gz`` holds."""
    with gzip.open(FOLDER / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found
