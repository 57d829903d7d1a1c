"""What the outcomes of a search say beyond the best one: the Pareto front, and which choices matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata

from vidur_pd.search.search import Evaluated, SearchResult


def tokens_per_user(evaluated: Evaluated) -> float | None:
    """Output tokens per second that a user sees: 1 / TPOT p50."""
    tpot_s = evaluated.last().tpot_p50_s
    return 1 / tpot_s if tpot_s else None


def tokens_per_gpu(evaluated: Evaluated) -> float | None:
    """Output tokens per second under load, per GPU."""
    outcome = evaluated.last()
    return None if outcome.output_tokens_per_s is None else outcome.output_tokens_per_s / outcome.gpus


def pareto_front(evaluated: Sequence[Evaluated]) -> list[Evaluated]:
    """Points that meet the SLO and that no other one beats in both, tokens per user and per GPU; by the former,
    rising."""
    known = [
        (user, gpu, each)
        for each in evaluated
        if each.last().is_met and (user := tokens_per_user(each)) and (gpu := tokens_per_gpu(each))
    ]
    front: list[Evaluated] = []
    most = 0.0
    for _, gpu, each in sorted(known, key=lambda item: (-item[0], -item[1])):
        if gpu > most:
            front.append(each)
            most = gpu
    return front[::-1]


def importance(result: SearchResult) -> dict[str, float]:
    """Share of the differences in rank between points that each choice explains by itself, the largest first.

    The sum of squares between the choices of a dimension over the total one (η²), of ranks at the cheapest fidelity,
    where all points that were run have been. Points were not drawn at random, and what choices do together is in none
    of the shares.
    """
    objective = result.space.file.objective
    scores = np.array([objective.score(each.outcomes[0]) for each in result.evaluated])
    if len(scores) < 3 or np.ptp(scores) == 0:
        return {}
    ranks = rankdata(scores)
    total = float(((ranks - ranks.mean()) ** 2).sum())
    found = {}
    for dimension, field in enumerate(result.space.dimensions):
        places = np.array([each.candidate.point[dimension] for each in result.evaluated])
        groups = [ranks[places == place] for place in np.unique(places)]
        between = sum(len(group) * (group.mean() - ranks.mean()) ** 2 for group in groups)
        if len(groups) > 1:
            found[field] = float(between) / total
    return dict(sorted(found.items(), key=lambda item: -item[1]))
