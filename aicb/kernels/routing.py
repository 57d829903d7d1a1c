"""Rows of each expert under balanced and skewed routing, deterministic in the seed.

Every distribution gives each token ``k`` distinct experts, so no expert has more rows than there are tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

DISTRIBUTIONS = ("balanced", "multinomial", "zipf0.5", "zipf1.0", "power_law1.2")

POWER_LAW_LEAST = 1.0
POWER_LAW_LARGEST_SHARE = 0.8
"""Support [1, 0.8 · tokens] of the power law of aiconfigurator (collector of MoE tables, 095f58a)."""


def expert_rows(distribution: str, experts: int, tokens: int, k: int, seed: int = 0) -> NDArray[np.int64]:
    """[experts] rows of each expert; they add up to ``tokens · k``.

    ``balanced`` spreads them evenly, the remainder over evenly spaced experts. ``multinomial`` draws k distinct experts
    per token with equal chance, ``zipf<s>`` with chance ∝ rank^−s. ``power_law<α>`` draws the popularity of each expert
    from a bounded power law. Ranks of popularity are permuted over the experts.

    Raises:
        InputError: unknown distribution, or k exceeds the experts.
    """
    if not 1 <= k <= experts:
        raise InputError(f"experts per token: found {k}, expected 1 to {experts}")
    if distribution == "balanced":
        return _balanced(experts, tokens * k)
    rng = np.random.default_rng([seed, experts, tokens, k])
    if distribution == "multinomial":
        popularity = np.ones(experts)
    elif distribution.startswith("zipf"):
        popularity = rng.permutation(np.arange(1, experts + 1) ** -float(distribution[4:]))
    elif distribution.startswith("power_law"):
        popularity = _power_law(float(distribution[9:]), experts, tokens, rng)
    else:
        raise InputError(f"distribution: found {distribution!r}, expected one of {', '.join(DISTRIBUTIONS)}")
    return _draw(popularity / popularity.sum(), tokens, k, rng)


def busiest_rank(rows: NDArray[np.int64], ep: int) -> NDArray[np.int64]:
    """[experts / ep] rows of the rank with the most; experts are split in order."""
    ranks = rows.reshape(ep, -1)
    return np.asarray(ranks[int(ranks.sum(axis=1).argmax())])


def _balanced(experts: int, total: int) -> NDArray[np.int64]:
    edges = np.arange(experts + 1, dtype=np.int64) * total // experts
    return np.diff(edges)


def _power_law(alpha: float, experts: int, tokens: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Inverse transform of a density ∝ x^−α on its support."""
    low, high = POWER_LAW_LEAST, max(POWER_LAW_LARGEST_SHARE * tokens, 2.0 * POWER_LAW_LEAST)
    u = rng.random(experts)
    power = 1.0 - alpha
    return np.asarray((low**power + (high**power - low**power) * u) ** (1.0 / power))


def _draw(share: NDArray[np.float64], tokens: int, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """k distinct experts per token: the k largest of log share + Gumbel noise, i.e. sampling without replacement."""
    rows = np.zeros(len(share), dtype=np.int64)
    for start in range(0, tokens, 4096):
        count = min(4096, tokens - start)
        scores = np.log(share) + rng.gumbel(size=(count, len(share)))
        chosen = np.argpartition(scores, -k, axis=1)[:, -k:]
        rows += np.bincount(chosen.ravel(), minlength=len(share))
    return rows


def kv_lengths(distribution: str, batch: int, mean: int, seed: int = 0) -> tuple[int, ...]:
    """KV lengths of a batch with (about) this mean: equal, uniform, lognormal or one_long.

    ``uniform`` on [1, 2·mean]; ``lognormal`` with σ = 1; ``one_long``: one sequence of eight times the length of each
    of the others.

    Raises:
        InputError: unknown distribution.
    """
    rng = np.random.default_rng([seed, batch, mean])
    match distribution:
        case "equal":
            lengths = np.full(batch, mean)
        case "uniform":
            lengths = rng.integers(1, 2 * mean + 1, batch)
        case "lognormal":
            lengths = np.maximum(rng.lognormal(np.log(mean) - 0.5, 1.0, batch).astype(np.int64), 1)
        case "one_long":
            short = max(mean * batch // (batch + 7), 1)
            lengths = np.full(batch, short)
            lengths[batch // 2] = 8 * short
        case _:
            raise InputError(f"distribution: found {distribution!r}, expected equal, uniform, lognormal or one_long")
    return tuple(int(length) for length in lengths)
