"""Tables as the report reads them, from rows that a test writes down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vidur_pd.report.table import Table, Words


def words_of(texts: Sequence[object]) -> Words:
    names, codes = np.unique([str(text) for text in texts], return_inverse=True)
    return Words(codes.astype(np.int8), tuple(names.tolist()))


def table_of(columns: Mapping[str, ArrayLike], words: Sequence[str]) -> Table:
    """Columns by name, of which some are words and the others numbers."""
    numbers = {name: np.array(values, dtype=float) for name, values in columns.items() if name not in words}
    return Table(numbers, {name: words_of(list(np.asarray(columns[name]))) for name in words})


def table_of_rows(rows: Sequence[Mapping[str, Any]], words: Sequence[str]) -> Table:
    return table_of({name: [row[name] for row in rows] for name in rows[0]}, words)


LINK_WORDS = ("link", "src", "dst", "kind", "traffic", "measure")


def links_of(rows: Sequence[tuple[str, str, str, float, float, float]]) -> Table:
    """Rows of (link, kind, traffic, window start, window end, bytes) on links of 8 Gbit/s: 10⁹ bytes fill a second."""
    return table_of_rows(
        [
            {
                "link": link,
                "src": link,
                "dst": "b",
                "kind": kind,
                "traffic": traffic,
                "measure": "use",
                "capacity_bps": 8e9,
                "window_start_s": start_s,
                "window_end_s": end_s,
                "carried_bytes": carried_bytes,
                "capacity_bytes": 10**9 * (end_s - start_s),
                "burst_use": np.nan,
            }
            for link, kind, traffic, start_s, end_s, carried_bytes in rows
        ],
        LINK_WORDS,
    )
