"""Where the time of communication comes from: priced on an idle fabric, stretched by a rule, or simulated as flows."""

from __future__ import annotations

from vidur_pd.execution.coupling.plan import CouplingPlan, Treatment
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.quantities import to_seconds
from vidur_pd.metrics.summary import CommunicationSummary
from vidur_pd.metrics.tally import RequestTally


def communication_sources(plan: CouplingPlan, log: IterationLog, tally: RequestTally) -> CommunicationSummary:
    """Seconds of communication by source, and the share of each source in all of them.

    Collectives count what they add to the iterations of all instances; with two-batch overlap that is what compute does
    not hide. KV transfers count first byte to last byte, summed over requests. ``contention_s`` is what collectives
    take beyond their time on an idle fabric; in the couplings with a load on links it is what the rule has added, in
    `exact` it follows from the network (and includes the error of the idle price).
    """
    transfers_ps = tally.transfers_ps
    contention_ps = log.communication_ps - log.idle_communication_ps
    if plan.collectives is Treatment.SIMULATED:
        sources = {Treatment.SIMULATED: log.communication_ps}
    else:
        sources = {Treatment.PRICED: log.idle_communication_ps, Treatment.SLOWED_DOWN: contention_ps}
    total_ps = log.communication_ps + transfers_ps
    by_source = {source: sources.get(source, 0) for source in Treatment}
    by_source[plan.transfers] += transfers_ps
    return CommunicationSummary(
        collectives_s=to_seconds(log.communication_ps),
        contention_s=to_seconds(contention_ps),
        kv_transfers_s=to_seconds(transfers_ps),
        collectives=plan.collectives.value,
        kv_transfers=plan.transfers.value,
        shares={source.value: part / total_ps if total_ps else 0.0 for source, part in by_source.items()},
    )
