"""Links over time as a table, CSV or Parquet.

A row is one link over one interval (``start_ps`` to ``end_ps``): ``utilisation`` and ``paused_share`` are shares of the
interval, ``pauses`` (frames obeyed) and ``marks`` (ECN) counts within it, ``queue_bytes`` what waits at its end. A
packet counts where its transmission begins, so that a short interval can show a utilisation of more than 1 by a packet.
Nothing is sampled while nothing is under way: the interval after a rest reaches back to its beginning.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from netsim.backends.packet.backend import TimeSeries
from netsim.formats.simai_pfc import interfaces
from netsim.topology import LinkKind, Topology
from netsim.units import BITS_PER_BYTE, PS_PER_S

Columns = dict[str, NDArray[np.generic]]

_SHARE_DIGITS = 6
"""Decimals of shares in CSV."""


def series_columns(series: TimeSeries, topology: Topology) -> Columns:
    """[rows] columns of all links that ever carry anything, by interval and then by link."""
    used = np.flatnonzero(series.wire_bytes[-1] > 0) if len(series.at_ps) else np.zeros(0, dtype=np.int64)
    duration_ps = np.diff(series.at_ps)
    per_interval = np.maximum(duration_ps, 1)[:, np.newaxis]
    bits = np.diff(series.wire_bytes[:, used], axis=0) * BITS_PER_BYTE
    capacity_bits = topology.capacity_bps[used] / PS_PER_S * per_interval
    link = np.tile(used, len(duration_ps))
    names = np.array(topology.node_name, dtype=object)
    kinds = np.array([kind.name.lower() for kind in LinkKind], dtype=object)
    return {
        "start_ps": np.repeat(series.at_ps[:-1], len(used)),
        "end_ps": np.repeat(series.at_ps[1:], len(used)),
        "link": link,
        "src": names[topology.link_src[link]],
        "dst": names[topology.link_dst[link]],
        "kind": kinds[topology.link_kind[link]],
        "utilisation": (bits / capacity_bits).ravel(),
        "queue_bytes": series.queued_bytes[1:, used].ravel(),
        "paused_share": (np.diff(series.paused_ps[:, used], axis=0) / per_interval).ravel(),
        "pauses": np.diff(series.pauses[:, used], axis=0).ravel(),
        "marks": np.diff(series.marks[:, used], axis=0).ravel(),
    }


def series_csv(columns: Columns) -> str:
    import pandas as pd

    return str(pd.DataFrame(columns).to_csv(index=False, lineterminator="\n", float_format=f"%.{_SHARE_DIGITS}f"))


def series_parquet(columns: Columns) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()


def bandwidth_csv(series: TimeSeries, topology: Topology) -> str:
    """SimAI's bandwidth monitor: ``time, node_id, port_id, bandwidth``, in ns from the interval's end and Gbit/s.

    Rows of all links that ever carry anything; ports are the interfaces of `netsim.formats.simai_pfc`.
    """
    columns = series_columns(series, topology)
    link = columns["link"].astype(np.int64)
    gbps = columns["utilisation"].astype(np.float64) * topology.capacity_bps[link] / 1e9
    rows = zip(
        columns["end_ps"].tolist(),
        topology.link_src[link].tolist(),
        interfaces(topology)[link].tolist(),
        gbps.tolist(),
        strict=True,
    )
    lines = [f"{end_ps / 1000:.3f}, {node}, {port}, {rate:.3f}\n" for end_ps, node, port, rate in rows]
    return "time, node_id, port_id, bandwidth\n" + "".join(lines)
