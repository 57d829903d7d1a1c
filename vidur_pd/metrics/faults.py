"""What faults did to a run: the ``faults`` section of ``summary.json``."""

from __future__ import annotations

from collections.abc import Sequence

from vidur_pd.cluster.faults.plan import Fault
from vidur_pd.config import SloConfig
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.metrics.slo_loss import slo_loss_minutes
from vidur_pd.metrics.summary import FaultEvent, FaultSummary, RecoveredRequests
from vidur_pd.metrics.tally import RequestTally


def fault_summary(
    faults: Sequence[Fault],
    recovered: RecoveredRequests,
    transfers_retried: int,
    tally: RequestTally,
    slo: SloConfig,
) -> FaultSummary | None:
    """Events, what recovery did, and SLO-loss minutes; ``None`` for a run in which nothing failed."""
    if not faults and recovered == RecoveredRequests() and not transfers_retried:
        return None
    return FaultSummary(
        events=tuple(
            FaultEvent(
                kind=fault.kind,
                target=fault.target,
                at_s=to_seconds(fault.begin_ps),
                until_s=None if fault.until_ps is None else to_seconds(fault.until_ps),
            )
            for fault in sorted(faults, key=lambda fault: fault.begin_ps)
        ),
        requests=recovered,
        transfers_retried=transfers_retried,
        slo_loss_minutes=slo_loss_minutes(tally, slo, faults),
    )
