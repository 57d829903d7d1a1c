"""Distributions of prompt and output lengths."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vidur_pd.config.lengths import (
    FixedLengths,
    Lengths,
    LogNormalLengths,
    LogNormalTokens,
    QuantileLengths,
    QuantileTokens,
    UniformLengths,
    ZipfLengths,
)
from vidur_pd.workload.workload import MAX_TOKENS

Tokens = NDArray[np.int64]

NORMAL_P90 = 1.2815515655446004
"""The 90th percentile of the standard normal distribution (its quantile function at 0.9)."""


def sample_lengths(lengths: Lengths, requests: int, rng: Callable[[str], np.random.Generator]) -> tuple[Tokens, Tokens]:
    """Prompt and output tokens of ``requests`` requests, each at least 1.

    Prompts and outputs come from streams of their own ("prefill_lengths", "decode_lengths"), so changing one
    distribution leaves the draws of the other alone; laws of the total draw from "lengths".
    """
    match lengths:
        case FixedLengths(prefill=prefill, decode=decode):
            return np.full(requests, prefill, dtype=np.int64), np.full(requests, decode, dtype=np.int64)
        case UniformLengths(min=low, max=high, prefill_to_decode=ratio):
            return _divide(rng("lengths").integers(low, high, size=requests, endpoint=True), ratio)
        case ZipfLengths(prefill_to_decode=ratio):
            return _divide(_zipf(lengths, requests, rng("lengths")), ratio)
        case LogNormalLengths(prefill=prompt, decode=output):
            first, second = _normals(lengths.correlation, requests, rng)
            return lognormal_at(prompt, first), lognormal_at(output, second)
        case QuantileLengths(prefill=prompt, decode=output) if lengths.correlation is not None:
            first, second = _normals(lengths.correlation, requests, rng)
            return tokens_at(prompt, _normal_shares(first)), tokens_at(output, _normal_shares(second))
        case QuantileLengths(prefill=prompt, decode=output):
            return (
                tokens_at(prompt, rng("prefill_lengths").random(requests)),
                tokens_at(output, rng("decode_lengths").random(requests)),
            )


def sample_lognormal(tokens: LogNormalTokens, count: int, random: np.random.Generator) -> Tokens:
    """``count`` draws, rounded to whole tokens and limited to min…max (the limits collect what lies beyond)."""
    return lognormal_at(tokens, random.standard_normal(count))


def sample_tokens(tokens: LogNormalTokens | QuantileTokens | int, count: int, random: np.random.Generator) -> Tokens:
    """``count`` draws of a token count."""
    match tokens:
        case LogNormalTokens():
            return sample_lognormal(tokens, count, random)
        case QuantileTokens():
            return tokens_at(tokens, random.random(count))
        case _:
            return np.full(count, tokens, dtype=np.int64)


def lognormal_at(tokens: LogNormalTokens, normals: NDArray[np.float64]) -> Tokens:
    """Token counts for draws of the standard normal distribution."""
    mu, sigma = lognormal_parameters(tokens)
    # The exponent is limited where the result is limited anyway, so that no draw overflows.
    draws = np.exp(np.minimum(mu + sigma * normals, math.log(MAX_TOKENS)))
    return np.clip(np.rint(draws), tokens.min, tokens.max or MAX_TOKENS).astype(np.int64)


def _normals(
    correlation: float | None, requests: int, rng: Callable[[str], np.random.Generator]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Standard normal draws of prompts and outputs."""
    first = rng("prefill_lengths").standard_normal(requests)
    second = rng("decode_lengths").standard_normal(requests)
    if correlation is None:
        return first, second
    return first, correlation * first + math.sqrt(1 - correlation**2) * second


def _normal_shares(normals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares of the standard normal distribution below these values."""
    from scipy.special import ndtr

    return np.asarray(ndtr(normals))


def lognormal_parameters(tokens: LogNormalTokens) -> tuple[float, float]:
    """(mu, sigma) of the logarithm, from whichever pair was given.

    mean = exp(mu + sigma²/2), median = exp(mu), cv² = exp(sigma²) − 1, p90 = exp(mu + 1.2816·sigma). Limits are
    applied after the draw, so a distribution that they cut has another mean than the one given.
    """
    match tokens:
        case LogNormalTokens(mu=float(mu), sigma=float(sigma)):
            return mu, sigma
        case LogNormalTokens(mean=float(mean), cv=float(cv)):
            variance = math.log1p(cv * cv)
            return math.log(mean) - variance / 2, math.sqrt(variance)
        case LogNormalTokens(mean=float(mean), median=float(median)):
            return math.log(median), math.sqrt(2 * math.log(mean / median))
        case LogNormalTokens(median=float(median), p90=float(p90)):
            return math.log(median), math.log(p90 / median) / NORMAL_P90
    raise AssertionError("the configuration admits no other pair")


def zipf_ranks(items: int, theta: float, count: int, random: np.random.Generator) -> Tokens:
    """``count`` ranks in 0…items − 1, rank ``k`` with probability proportional to ``(k + 1)**-theta``."""
    cumulative = np.cumsum(np.arange(1, items + 1, dtype=np.float64) ** -theta)
    return np.searchsorted(cumulative / cumulative[-1], random.random(count), side="right").astype(np.int64)


def _zipf(lengths: ZipfLengths, requests: int, random: np.random.Generator) -> Tokens:
    items = lengths.max - lengths.min + 1
    ranks = zipf_ranks(items, lengths.theta, requests, random)
    if lengths.scramble:
        ranks = random.permutation(items)[ranks]
    return lengths.min + ranks


def _divide(total: Tokens, prefill_to_decode: float) -> tuple[Tokens, Tokens]:
    """Splits totals as Vidur does: output = ⌈total / (1 + ratio)⌉, and at least one token stays with the prompt."""
    decode = np.minimum(np.ceil(total / (1 + prefill_to_decode)).astype(np.int64), total - 1)
    return total - decode, decode


def tokens_at(tokens: QuantileTokens, shares: NDArray[np.float64]) -> Tokens:
    """Token counts below which these shares of the requests lie."""
    probabilities = [probability for probability, _ in tokens.quantiles]
    logarithms = [math.log(value) for _, value in tokens.quantiles]
    return np.rint(np.exp(np.interp(shares, probabilities, logarithms))).astype(np.int64)
