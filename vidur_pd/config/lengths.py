"""What a configuration may say about lengths of prompts and outputs."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from boundary.fields import Count, Exponent, NonNegativeFloat, NotBool, PositiveFloat, Probability, Ratio, Section


class TokenRange(Section):
    """Limits of a token count; what is drawn outside is set to the limit."""

    min: Count = 1
    max: Count | None = None

    @model_validator(mode="after")
    def _is_ordered(self) -> TokenRange:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max: found {self.max}, expected at least min = {self.min}")
        return self


class LogNormalTokens(TokenRange):
    """A log-normal token count, given by exactly one pair: mu, sigma | mean, cv | mean, median | median, p90."""

    mu: Annotated[float, NotBool, Field(ge=-50, le=50)] | None = None
    """Mean of the logarithm."""
    sigma: Annotated[NonNegativeFloat, Field(le=1e3)] | None = None
    """Standard deviation of the logarithm."""
    mean: PositiveFloat | None = None
    cv: Annotated[NonNegativeFloat, Field(le=1e3)] | None = None
    """Standard deviation over mean."""
    median: PositiveFloat | None = None
    p90: PositiveFloat | None = None

    @model_validator(mode="after")
    def _is_one_pair(self) -> LogNormalTokens:
        names = ("mu", "sigma", "mean", "cv", "median", "p90")
        given = tuple(name for name in names if getattr(self, name) is not None)
        pairs = (("mu", "sigma"), ("mean", "cv"), ("mean", "median"), ("median", "p90"))
        if given not in pairs:
            found = ", ".join(given) or "nothing"
            raise ValueError(f"found {found}, expected one pair of {' | '.join(', '.join(pair) for pair in pairs)}")
        if self.median is not None:
            upper, name = (self.mean, "mean") if self.mean is not None else (self.p90, "p90")
            if upper is not None and upper < self.median:
                raise ValueError(f"{name}: found {upper:g}, expected at least the median {self.median:g}")
        return self


class QuantileTokens(Section):
    """A token count from published percentiles, log-linear between them."""

    quantiles: Annotated[tuple[tuple[Probability, Count], ...], Field(min_length=2, max_length=100_000)]
    """(probability, tokens), from probability 0 to 1, neither falling."""

    @model_validator(mode="after")
    def _is_a_distribution(self) -> QuantileTokens:
        probabilities = [probability for probability, _ in self.quantiles]
        tokens = [count for _, count in self.quantiles]
        if probabilities[0] != 0 or probabilities[-1] != 1:
            raise ValueError(f"quantiles: found {probabilities[0]:g} to {probabilities[-1]:g}, expected 0 to 1")
        if any(b <= a for a, b in pairwise(probabilities)):
            raise ValueError("quantiles: found falling or equal probabilities, expected rising ones")
        if any(b < a for a, b in pairwise(tokens)):
            raise ValueError("quantiles: found falling token counts, expected non-decreasing ones")
        return self


class EarlyEnd(Section):
    """Requests whose user goes away: fewer tokens come out than were asked for."""

    share: Annotated[float, NotBool, Field(gt=0, le=1)]
    """Of the requests."""
    after_tokens: LogNormalTokens | QuantileTokens | Count
    """Output tokens after which one ends; what was asked for, if that is less."""


Correlation = Annotated[float, NotBool, Field(ge=-1, le=1)]
"""Of the normal variables behind prompt and output (a Gaussian copula): 2·sin(π/6 · rank correlation)."""


class FixedLengths(Section):
    """Lengths that are equal for all requests."""

    kind: Literal["fixed"]
    prefill: Count
    decode: Count


class UniformLengths(Section):
    """Prompt + output uniform in min…max, divided by the ratio (Vidur's form)."""

    kind: Literal["uniform"]
    min: Annotated[Count, Field(ge=2)]
    max: Annotated[Count, Field(ge=2)]
    prefill_to_decode: Ratio

    @model_validator(mode="after")
    def _is_ordered(self) -> UniformLengths:
        if self.max < self.min:
            raise ValueError(f"max: found {self.max}, expected at least min = {self.min}")
        return self


class ZipfLengths(Section):
    """Prompt + output from a Zipf law over min…max, divided by the ratio (Vidur's form).

    Rank ``k`` has probability proportional to ``k**-theta``. Rank 1 is ``min``, rank 2 ``min + 1`` and so on;
    ``scramble`` deals the ranks out over the range at random instead.
    """

    kind: Literal["zipf"]
    min: Annotated[Count, Field(ge=2)]
    max: Annotated[Count, Field(ge=2)]
    theta: Exponent
    scramble: bool = False
    prefill_to_decode: Ratio

    @model_validator(mode="after")
    def _is_a_range(self) -> ZipfLengths:
        if self.max < self.min:
            raise ValueError(f"max: found {self.max}, expected at least min = {self.min}")
        if self.max - self.min >= 10_000_000:
            raise ValueError(f"max: found {self.max}, expected at most min + 9999999 (the law is tabulated)")
        return self


class LogNormalLengths(Section):
    """Prompt and output log-normal, drawn separately or with a correlation."""

    kind: Literal["lognormal"]
    prefill: LogNormalTokens
    decode: LogNormalTokens
    correlation: Correlation | None = None


class QuantileLengths(Section):
    """Prompt and output from percentiles, drawn separately or with a correlation."""

    kind: Literal["quantiles"]
    prefill: QuantileTokens
    decode: QuantileTokens
    correlation: Correlation | None = None


Lengths = Annotated[
    FixedLengths | UniformLengths | ZipfLengths | LogNormalLengths | QuantileLengths, Field(discriminator="kind")
]
