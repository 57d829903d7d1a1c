"""What a cluster serves while requests arrive: load and latencies without warm-up and drain.

Over the whole run the end counts, in which the cluster empties: the fewer requests a workload has, the more that hides
of what the cluster can do. The window begins after a warm-up, the median end-to-end latency (by then half of those that
came first have left) but at most half of the time in which requests arrive, and ends with the last arrival.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config import SloConfig
from vidur_pd.metrics.quantities import PS_PER_S, distribution
from vidur_pd.metrics.requests import NEVER
from vidur_pd.metrics.summary import UnderLoad
from vidur_pd.metrics.tally import RequestTally

Moments = NDArray[np.float64]


def under_load(tally: RequestTally, slo: SloConfig) -> UnderLoad | None:
    """Rates in the window; ``None`` where all requests arrive at once, or none completed.

    Prompts count when the first token is there, output tokens evenly from the first to the last; of completed requests,
    as in ``throughput``. Offered is all that arrives. Latencies are those of requests that arrive in the window.
    """
    arrived = tally.arrived_ps / PS_PER_S
    done = tally.is_completed
    first_s, until_s = float(arrived.min()), float(arrived.max())
    if until_s == first_s or not done.any():
        return None
    e2e, ttft = tally.e2e_ps / PS_PER_S, tally.ttft_ps / PS_PER_S
    from_s = first_s + min(float(np.median(e2e)), (until_s - first_s) / 2)
    began, ended = arrived[done] + ttft, arrived[done] + e2e
    length_s = until_s - from_s

    def inside(moments: Moments) -> NDArray[np.bool_]:
        return (moments > from_s) & (moments <= until_s)

    met = tally.is_served(slo)[done]
    gaps = tally.output_tokens_each - 1
    overlap = np.clip(np.minimum(ended, until_s) - np.maximum(began, from_s), 0, None)
    share = np.divide(overlap, ended - began, out=np.zeros_like(overlap), where=ended > began)
    output = np.count_nonzero(inside(began)) + float(np.dot(gaps, share))
    offered, tpot_ps = inside(arrived), tally.tpot_ps
    steady = offered[done]
    return UnderLoad(
        from_s=from_s,
        until_s=until_s,
        arrivals_per_s=np.count_nonzero(offered) / length_s,
        offered_input_tokens_per_s=float(tally.offered_input_tokens[offered].sum()) / length_s,
        offered_output_tokens_per_s=float(tally.offered_output_tokens[offered].sum()) / length_s,
        ttft_s=distribution(ttft[steady]),
        tpot_s=distribution(tpot_ps[steady & (tpot_ps != NEVER)] / PS_PER_S),
        e2e_s=distribution(e2e[steady]),
        requests_per_s=np.count_nonzero(inside(ended)) / length_s,
        input_tokens_per_s=float(tally.input_tokens_each[inside(began)].sum()) / length_s,
        output_tokens_per_s=output / length_s,
        goodput=np.count_nonzero(inside(ended) & met) / length_s,
    )
