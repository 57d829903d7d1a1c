"""What faults did to a run: the ``faults`` section of ``summary.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vidur_pd.config import SloConfig
from vidur_pd.faults.plan import Fault
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.metrics.slo_loss import slo_loss_minutes
from vidur_pd.metrics.tally import RequestTally


@dataclass(frozen=True, slots=True)
class Recovered:
    """How often recovery acted."""

    recomputed: int
    """Times that a request began again with the tokens its user had."""
    retried: int
    """Times that a request began again from nothing."""
    rerouted: int
    """Times that a request got another decode instance while its prefill instance had its KV."""
    failed: int
    """Requests that failed."""
    transfers_retried: int
    """KV transfers that were cut and sent again."""

    @property
    def has_acted(self) -> bool:
        return any((self.recomputed, self.retried, self.rerouted, self.failed, self.transfers_retried))


def fault_summary(
    faults: Sequence[Fault], recovered: Recovered, tally: RequestTally, slo: SloConfig
) -> dict[str, Any] | None:
    """Events, what recovery did, and SLO-loss minutes; ``None`` for a run in which nothing failed."""
    if not faults and not recovered.has_acted:
        return None
    return {
        "events": [
            {
                "kind": fault.kind,
                "target": fault.target,
                "at_s": to_seconds(fault.begin_ps),
                "until_s": None if fault.until_ps is None else to_seconds(fault.until_ps),
            }
            for fault in sorted(faults, key=lambda fault: fault.begin_ps)
        ],
        "requests": {
            "recomputed": recovered.recomputed,
            "retried": recovered.retried,
            "rerouted": recovered.rerouted,
            "failed": recovered.failed,
        },
        "transfers_retried": recovered.transfers_retried,
        "slo_loss_minutes": slo_loss_minutes(tally, slo, faults),
    }
