"""Result folders handed to ``vidur-pd report``: a run's own files, damaged."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tests.fuzz.case import Case, Special
from tests.fuzz.kinds.configurations import PLAIN
from tests.fuzz.mutation import as_csv, as_json, as_yaml, cells_of, document, mutated, mutated_cells

READ: Final = (
    "summary.json",
    "requests.csv",
    "config.yaml",
    "iterations.parquet",
    "links.parquet",
    "attribution.parquet",
)


@cache
def results() -> dict[str, bytes]:
    """The files of a small run that a report is made from."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "c.yaml"
        configuration.write_bytes(as_yaml(PLAIN, random.Random(0)))
        command = [sys.executable, "-m", "vidur_pd", "run", str(configuration), "-o", f"{folder}/out", "--quiet"]
        subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[3])
        return {name: (Path(folder) / "out" / name).read_bytes() for name in READ}


def generate(rng: random.Random) -> Case:
    """A report of one folder, or of two."""
    files: dict[str, bytes | Special] = {f"out/{name}": content for name, content in results().items()}
    damaged = rng.choice(("summary.json", "summary.json", "requests.csv", "requests.csv", *READ[2:]))
    content = results()[damaged]

    def written() -> bytes:
        match damaged:
            case "summary.json":
                return as_json(mutated(json.loads(content), rng), rng)
            case "requests.csv":
                return as_csv(mutated_cells(cells_of(content.decode(), ","), rng), rng)
            case "config.yaml":
                return as_yaml(mutated(PLAIN, rng), rng)
        return document(rng, lambda: content)

    files[f"out/{damaged}"] = document(rng, written)
    if rng.random() < 0.03:
        files[f"out/{damaged}"] = rng.choice(list(Special))
    if rng.random() < 0.05:
        del files[f"out/{rng.choice(READ)}"]
    if rng.random() < 0.2:
        files |= {f"other/{name}": whole for name, whole in results().items()}
        return Case(("vidur-pd", "report", "other", "out", "-o", "c.html"), files, ("c.html",))
    return Case(("vidur-pd", "report", "out"), files, ("out",))
