"""Figures of an engine that runs somewhere, and of its simulation; measurements that come with the repository."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from vidur_pd.commands.validation.engine import Comparison

__all__ = ["FOLDER", "Comparison", "read_measurement"]

FOLDER = Path(__file__).resolve().parents[1] / "data" / "engine"


def read_measurement(name: str) -> dict[str, Any]:
    """What ``tests/data/engine/NAME.json.gz`` holds."""
    with gzip.open(FOLDER / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found
