"""What the summary says of classes of requests."""

from __future__ import annotations

import numpy as np

from vidur_pd.config import SloConfig
from vidur_pd.metrics.quantities import distribution, to_seconds
from vidur_pd.metrics.requests import NEVER, seconds
from vidur_pd.metrics.summary import ClassSlo, ClassSummary
from vidur_pd.metrics.tally import RequestTally, objectives_of


def class_summaries(tally: RequestTally, slo: SloConfig) -> tuple[ClassSummary, ...] | None:
    """Each class of the workload, in its order; ``None`` without any."""
    return tuple(_summary(tally, slo, name) for name in tally.class_names) or None


def _summary(tally: RequestTally, slo: SloConfig, name: str) -> ClassSummary:
    is_own, makespan_s = tally.is_of_class(name), to_seconds(tally.makespan_ps)
    own = is_own[tally.is_completed]  # [completed requests]
    requests, met = int(np.count_nonzero(is_own)), int(np.count_nonzero(tally.is_served(slo) & is_own))
    tpot_ps = tally.tpot_ps[own]
    objectives = objectives_of(slo, name)
    return ClassSummary(
        name=name,
        requests=requests,
        completed=int(np.count_nonzero(own)),
        ttft_s=distribution(seconds(tally.ttft_ps[own])),
        tpot_s=distribution(seconds(tpot_ps[tpot_ps != NEVER])),
        e2e_s=distribution(seconds(tally.e2e_ps[own])),
        slo=ClassSlo(ttft_s=objectives.ttft_s, tpot_s=objectives.tpot_s, e2e_s=objectives.e2e_s),
        goodput=met / makespan_s if makespan_s > 0 else None,
        goodput_share=met / requests if requests else None,
    )
