"""Rows of ``links.parquet``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vidur_pd.metrics.columns import KEY, TEXT, Column
from vidur_pd.metrics.quantities import PS_PER_S


@dataclass(frozen=True, slots=True, eq=False)
class LinkRows:
    """One row for every (traffic, window, link) that carried something."""

    link: NDArray[np.int64]
    src: NDArray[np.object_]
    dst: NDArray[np.object_]
    kind: NDArray[np.object_]
    capacity_bps: NDArray[np.int64]
    traffic: NDArray[np.object_]
    measure: NDArray[np.object_]
    start_ps: NDArray[np.int64]
    until_ps: NDArray[np.int64]
    carried_bytes: NDArray[np.float64]
    burst_use: NDArray[np.float64]
    capacity_bytes: NDArray[np.float64]


def _time(name: str, times_ps: Callable[[LinkRows], Any], meaning: str) -> Column[LinkRows]:
    return Column(name, "s", lambda rows: times_ps(rows) / PS_PER_S, meaning)


def _of_rows(name: str, unit: str, meaning: str) -> Column[LinkRows]:
    return Column(name, unit, attrgetter(name), meaning)


LINK_COLUMNS: Final[tuple[Column[LinkRows], ...]] = (
    _of_rows("link", KEY, "number of the link in the topology"),
    _of_rows("src", TEXT, "node that it leaves"),
    _of_rows("dst", TEXT, "node that it enters"),
    _of_rows("kind", TEXT, "nvlink, nic, fabric, …"),
    _of_rows("capacity_bps", "bit/s", "capacity without faults"),
    _of_rows("traffic", TEXT, "`kv` or `collective`"),
    _of_rows("measure", TEXT, "`use`: carried with all other traffic; `offered`: timed as if it was alone"),
    _time("window_start_s", lambda rows: rows.start_ps, "begin of the window"),
    _time("window_end_s", lambda rows: rows.until_ps, "end of the window, or of the run"),
    _of_rows("carried_bytes", "bytes", "bytes of this traffic in the window"),
    _of_rows("capacity_bytes", "bytes", "bytes that it could have carried, with faults"),
    _of_rows(
        "burst_use",
        "share",
        "of its capacity, by all traffic in the fullest 15.6 ms of the window; above 1 only where some is `offered`",
    ),
)
"""Columns of ``links.parquet``."""
