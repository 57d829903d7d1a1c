"""SLO-loss minutes: for how long users would have noticed, and how much of it is the work of faults.

Time is cut into windows of ``slo.window_s`` from the first arrival on; a request belongs to the window in which it
arrives. A window with arrivals is lost if the share of them that completed and met all objectives is below
``slo.attainment``; it then counts with its whole length. A request that was rejected or failed has met nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vidur_pd.config import SloConfig
from vidur_pd.faults.plan import Fault
from vidur_pd.metrics.quantities import PS_PER_S
from vidur_pd.metrics.tally import RequestTally

PS_PER_MINUTE = 60 * PS_PER_S


def slo_loss_minutes(tally: RequestTally, slo: SloConfig, faults: Sequence[Fault]) -> dict[str, Any]:
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
    attained = dict(zip(number.tolist(), shares.tolist(), strict=True))
    windows: dict[str, list[bool]] = {"before_faults": [], "during_faults": [], "after_faults": []}
    for window, share in attained.items():
        begin_ps = first_ps + window * width_ps
        windows[_part(begin_ps, begin_ps + width_ps, faults)].append(share < slo.attainment)
    lost = {part: sum(flags) for part, flags in windows.items()}
    before = windows["before_faults"]
    expected = lost["before_faults"] / len(before) * len(attained) if before else None
    minutes = width_ps / PS_PER_MINUTE
    return {
        "total": sum(lost.values()) * minutes,
        **{part: count * minutes for part, count in lost.items()},
        "beyond_fault_free": None if expected is None else max(0.0, sum(lost.values()) - expected) * minutes,
        "worst_attainment": min(attained.values()),
        "window_s": slo.window_s,
        "objective": slo.attainment,
    }


def _part(begin_ps: int, end_ps: int, faults: Sequence[Fault]) -> str:
    if all(end_ps <= fault.begin_ps for fault in faults):
        return "before_faults"
    is_hit = any(fault.begin_ps < end_ps and (fault.until_ps is None or begin_ps < fault.until_ps) for fault in faults)
    return "during_faults" if is_hit else "after_faults"
