"""Closed-form times against nccl-tests on one node: ``python -m tests.simccl.nccl_accuracy``.

The measurements (aiconfigurator tables, half precision, 512 B to 512 MiB, 2, 4 and 8 GPUs) are read from ``shared``
beside the repository. NCCL uses NVLS for all_reduce on an NVSwitch from about 2 MiB up, which is not modelled here: the
all_reduce rows compare the best ring with whatever NCCL ran.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pandas as pd

from simccl import time_table

MEASUREMENTS: Final = Path(__file__).parents[3] / "shared" / "data" / "nccl"
SYSTEMS: Final = {"h100": "h100_sxm_nccl.csv", "a100": "a100_sxm_nccl.csv", "b200": "b200_sxm_nccl.csv"}


def errors(gpu: str) -> pd.DataFrame:
    """One row per measured point of the GPU type, with ``error`` = predicted / measured − 1.

    Repeated passes and tables of one point are averaged; only half precision, of NCCL 2.27 and later.
    """
    rows = pd.read_csv(MEASUREMENTS / SYSTEMS[gpu])
    rows = rows[(rows.dtype == "half") & (rows.table != 2.23) & (rows.table != "2.23")]
    keys = ["op", "num_gpus", "message_bytes"]
    points = rows.groupby(keys, as_index=False).latency_us.mean()
    points["op"] = points.op.replace("alltoall", "all_to_all")
    points["gpu"] = gpu
    ones = [1] * len(points)
    predicted = time_table(points.op.tolist(), points.message_bytes.tolist(), points.num_gpus.tolist(), ones, gpu)
    points["error"] = predicted.time_us / points.latency_us - 1
    return points


def summary() -> pd.DataFrame:
    """Median and 90th percentile of the absolute error, and the median signed error, per GPU, op and GPU count."""
    points = pd.concat([errors(gpu) for gpu in SYSTEMS])
    groups = points.groupby(["gpu", "op", "num_gpus"]).error
    return pd.DataFrame(
        {
            "points": groups.size(),
            "median_abs_%": groups.apply(lambda e: 100 * e.abs().median()),
            "p90_abs_%": groups.apply(lambda e: 100 * e.abs().quantile(0.9)),
            "median_%": groups.median() * 100,
        }
    ).round(1)


if __name__ == "__main__":
    print(summary().to_string())
