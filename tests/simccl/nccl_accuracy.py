"""Closed-form times against measured ones: ``python -m tests.simccl.nccl_accuracy``.

Measured by nccl-tests on one node of 2, 4 and 8 A100, H100 or B200 (aiconfigurator tables, half precision, NCCL 2.27 to
2.29, read from ``shared`` beside the repository), and on 2 and 4 H200 by ``scripts/measure_nccl.py`` (NCCL 2.28.9, CUDA
graphs, algorithm and protocol forced; the table is part of the package). Repeated points count with their median.

Corrections are fitted to every second size (1 KiB, 4 KiB, … 256 MiB) and scored on the others (2 KiB, … 512 MiB).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from simccl import time_table
from simccl.calibrate.fitting import fit_calibration
from simccl.calibrate.nccl_tests import Measurement, read_measurements
from simccl.collective import Collective
from simccl.communicator.gpus import gpu_named
from simccl.communicator.shape import CommunicatorShape
from simccl.planning.calibration import Calibrated, calibration_for
from simccl.planning.choice import pair_times
from simccl.planning.cost_model import algorithm_costs

MEASUREMENTS: Final = Path(__file__).parents[3] / "shared" / "data" / "nccl"
SYSTEMS: Final = {"a100": "a100_sxm_nccl.csv", "h100": "h100_sxm_nccl.csv", "b200": "b200_sxm_nccl.csv"}
FIRST_BYTES, LAST_BYTES = 1 << 10, 512 << 20


@lru_cache
def measured(gpu: str) -> tuple[Measurement, ...]:
    """Points of 1 KiB to 512 MiB; on H200 those with forced algorithm, and the point-to-point operations."""
    if gpu == "h200":
        table = Path(str(resources.files("simccl") / "data" / "h200" / "nccl.csv"))
        every = read_measurements([table])
        return tuple(m for m in every if m.algorithm is not None or not m.op.has_ring)
    rows = pd.read_csv(MEASUREMENTS / SYSTEMS[gpu], dtype={"table": str})
    rows = rows[(rows.dtype == "half") & (rows.table != "2.23") & (rows.message_bytes >= FIRST_BYTES)]
    keys = ["op", "num_gpus", "message_bytes"]
    points = rows.groupby(keys, as_index=False).latency_us.median()
    points["op"] = points.op.replace("alltoall", "all_to_all")
    return tuple(
        Measurement(Collective(row.op), int(row.num_gpus), 1, int(row.message_bytes), float(row.latency_us))
        for row in points.itertuples()
    )


def is_fitted(measurement: Measurement) -> bool:
    """Whether a point is in the half that corrections are fitted to: 4ᵏ bytes."""
    return measurement.size_bytes.bit_length() % 2 == 1


def predicted_us(points: Iterable[Measurement], gpu: str, calibration: Calibrated) -> list[float]:
    """Times of the model, of the forced algorithm and protocol where the measurement has one."""
    found = []
    for m in points:
        if m.algorithm is None or m.protocol is None:
            table = time_table([m.op], [m.size_bytes], [m.ranks], [m.nodes], gpu, calibration=calibration)
            found.append(float(table.time_us[0]))
            continue
        known = gpu_named(gpu)
        at = CommunicatorShape(known, m.ranks, m.nodes, m.ranks // m.nodes, known.nic_gbytes_per_s)
        costs = algorithm_costs(m.op, at, m.algorithm)
        assert costs is not None
        size = np.array([m.size_bytes])
        times = pair_times(m.op, size, costs, m.protocol, at, calibration_for(gpu, calibration))
        found.append(float(times.time_us[0]))
    return found


@lru_cache
def errors(gpu: str) -> pd.DataFrame:
    """One row per measured point: op, ranks, size, pair, ``is_fitted``, and relative errors of both models."""
    points = measured(gpu)
    fitted = fit_calibration([m for m in points if is_fitted(m)], gpu_named(gpu), "every second size")
    truth = np.array([m.time_us for m in points])
    return pd.DataFrame(
        {
            "gpu": gpu,
            "op": [str(m.op) for m in points],
            "ranks": [m.ranks for m in points],
            "bytes": [m.size_bytes for m in points],
            "pair": [f"{m.algorithm or 'chosen'} {m.protocol or ''}".strip() for m in points],
            "is_fitted": [is_fitted(m) for m in points],
            "calibrated": np.array(predicted_us(points, gpu, fitted)) / truth - 1,
            "uncalibrated": np.array(predicted_us(points, gpu, "none")) / truth - 1,
        }
    )


def summary(points: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Median and 90th percentile of the absolute error in %, of the half that was not fitted."""
    held_out = points[~points.is_fitted]
    columns = {"points": held_out.groupby(by).size()}
    for model in ("calibrated", "uncalibrated"):
        grouped = held_out.assign(error=100 * held_out[model].abs()).groupby(by).error
        columns[f"{model} median"], columns[f"{model} p90"] = grouped.median(), grouped.quantile(0.9)
    return pd.DataFrame(columns).round(1)


def main() -> None:
    tables = pd.concat([errors(gpu) for gpu in SYSTEMS]) if MEASUREMENTS.is_dir() else pd.DataFrame()
    print("Held-out sizes, absolute error in %\n")
    if len(tables):
        print(summary(tables.assign(all="A100, H100, B200"), ["all"]).to_string(), "\n")
        print(summary(tables, ["gpu", "op"]).to_string(), "\n")
        print(summary(tables, ["gpu", "op", "ranks"]).to_string(), "\n")
        small = tables[tables.bytes < 1 << 20]
        print(summary(small.assign(all="below 1 MiB"), ["all"]).to_string(), "\n")
    own = errors("h200")
    print(summary(own.assign(all="H200, forced algorithm and protocol"), ["all"]).to_string(), "\n")
    print(summary(own, ["gpu", "op", "pair"]).to_string())


if __name__ == "__main__":
    main()
