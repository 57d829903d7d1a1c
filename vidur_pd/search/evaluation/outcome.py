"""What an evaluation of a point found: plain figures that a study keeps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from vidur_pd.metrics.summary import TargetSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One point at one fidelity."""

    is_met: bool
    margin: float
    """Smallest margin of the targets; below 0 what the worst is missed by."""
    gpus: int
    cost_per_hour: float | None = None
    rate_per_s: float = 0.0
    """Requests that arrived per second in the mean, at the capacity where that is looked for."""
    output_tokens_mean: float = 0.0
    """Of a request of the workload."""
    output_tokens_per_s: float | None = None
    """Under load, after the warm-up."""
    e2e_mean_s: float | None = None
    stays: float | None = None
    """How long arrivals last, in stays of requests (`SteadyPart.stays`)."""
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p90_s: float | None = None
    targets: tuple[TargetSummary, ...] = ()
    limited_by: str = ""
    """What the worst target waits for."""
    is_overload: bool = False
    """Waiting grew to the end."""
    stopped_early: bool = False
    """The SLO was missed before the end, whatever was still to come: other figures are missing."""
    failure: str = ""
    """Why there are no figures at all."""
    seed: int = 0
    runs: int = 1
    """Simulations that it took."""
    cpu_s: float = field(default=0.0, compare=False)

    def dump(self) -> str:
        """As text; `load` reads it."""
        return json.dumps(asdict(self))

    @staticmethod
    def load(text: str) -> Outcome:
        tree = json.loads(text)
        return Outcome(**{**tree, "targets": tuple(TargetSummary(**each) for each in tree["targets"])})


def worst_margin(targets: tuple[TargetSummary, ...]) -> float:
    """The smallest margin; −10 where a target is infinitely far away."""
    margins = [-10.0 if each.margin is None and each.requests else each.margin or 0.0 for each in targets]
    return min(margins, default=0.0)
