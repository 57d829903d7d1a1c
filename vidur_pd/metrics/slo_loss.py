"""SLO-loss minutes: for how long users would have noticed, and how much of it is the work of faults.

Time is cut into windows of ``slo.window_s`` from the first arrival on; a request belongs to the window in which it
arrives. A window with arrivals is lost if the share of them that completed and met all objectives is below
``slo.attainment``; it then counts with its whole length. A request that was rejected or failed has met nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vidur_pd.cluster.faults.plan import Fault
from vidur_pd.config import SloConfig
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.summary import SloLoss
from vidur_pd.metrics.tally import RequestTally

PS_PER_MINUTE = 60 * PS_PER_S
PARTS = ("before_faults", "during_faults", "after_faults")
FOR_EVER = np.iinfo(np.int64).max


def slo_loss_minutes(tally: RequestTally, slo: SloConfig, faults: Sequence[Fault]) -> SloLoss:
    """Lost minutes in all; of windows that end before the first fault begins, that overlap a fault, and of the others.

    ``beyond_fault_free`` is what exceeds the rate of loss before the first fault, carried on over all windows; ``None``
    where no window with arrivals ends before it. ``worst_attainment`` is the smallest share of a window.
    """
    width_ps = round(slo.window_s * PS_PER_S)
    first_ps = int(tally.arrived_ps.min())
    number, place, arrivals = np.unique(
        (tally.arrived_ps - first_ps) // width_ps, return_inverse=True, return_counts=True
    )
    shares = np.bincount(place, weights=tally.is_served(slo), minlength=len(number)) / arrivals
    begins_ps = first_ps + number * width_ps
    parts = _parts(begins_ps, begins_ps + width_ps, faults)
    windows = {name: shares[parts == part] < slo.attainment for part, name in enumerate(PARTS)}
    lost = {part: int(np.count_nonzero(is_lost)) for part, is_lost in windows.items()}
    before = windows["before_faults"]
    expected = lost["before_faults"] / len(before) * len(number) if len(before) else None
    minutes = width_ps / PS_PER_MINUTE
    return SloLoss(
        total=sum(lost.values()) * minutes,
        **{part: count * minutes for part, count in lost.items()},
        beyond_fault_free=None if expected is None else max(0.0, sum(lost.values()) - expected) * minutes,
        worst_attainment=float(shares.min()),
        window_s=slo.window_s,
        objective=slo.attainment,
    )


def _parts(begins_ps: NDArray[np.int64], ends_ps: NDArray[np.int64], faults: Sequence[Fault]) -> NDArray[np.int64]:
    """[windows] place in `PARTS` of windows with these begins and ends."""
    ordered = sorted(faults, key=lambda fault: fault.begin_ps)
    fault_begins_ps = np.array([fault.begin_ps for fault in ordered], dtype=np.int64)
    untils_ps = np.array([FOR_EVER if fault.until_ps is None else fault.until_ps for fault in ordered], dtype=np.int64)
    begun = np.searchsorted(fault_begins_ps, ends_ps, side="left")  # faults that begin before the end of each window
    latest_ps = np.concatenate(([0], np.maximum.accumulate(untils_ps)))[begun]  # the last end of these
    is_hit = (begun > 0) & (latest_ps > begins_ps)
    return np.where(is_hit, 1, np.where(begun > 0, 2, 0))
