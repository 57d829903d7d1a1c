"""What a configuration may say about the workload."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from boundary.fields import (
    Count,
    Exponent,
    NonNegativeFloat,
    NotBool,
    PositiveFloat,
    PositiveSeconds,
    Probability,
    Rate,
    Ratio,
    Seconds,
    Section,
    Seed,
)

RequestCount = Annotated[Count, Field(le=20_000_000)]
"""Requests of a workload; each takes about 100 bytes before it arrives."""
TraceFormat = Literal["csv", "vidur", "vidur_lengths", "azure", "burstgpt", "mooncake", "qwen_bailian"]


# Arrivals ---------------------------------------------------------------------------------------------------


class PoissonArrivals(Section):
    """Independent exponential gaps, never clipped, so that the offered rate is ``qps``."""

    kind: Literal["poisson"]
    qps: Rate


class GammaArrivals(Section):
    """Independent gamma gaps: ``cv`` above 1 is burstier than Poisson, below 1 smoother."""

    kind: Literal["gamma"]
    qps: Rate
    cv: Annotated[PositiveFloat, Field(ge=1e-3, le=1e3)]
    """Standard deviation of the gaps over their mean; vLLM's ``burstiness`` is 1/cv²."""


class ConstantArrivals(Section):
    """Equal gaps: request ``i`` arrives at ``i / qps``."""

    kind: Literal["constant"]
    qps: Rate


class StaticArrivals(Section):
    """Every request is there at time zero."""

    kind: Literal["static"]


class RampArrivals(Section):
    """Exponential gaps whose rate goes from ``from_qps`` (first request) to ``to_qps`` (last one)."""

    kind: Literal["ramp"]
    from_qps: Rate
    to_qps: Rate
    shape: Literal["linear", "exponential"] = "linear"
    """Interpolation of the rate over the request index."""


Arrivals = Annotated[
    PoissonArrivals | GammaArrivals | ConstantArrivals | StaticArrivals | RampArrivals, Field(discriminator="kind")
]


# Lengths ----------------------------------------------------------------------------------------------------


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
    """Prompt and output log-normal, drawn separately."""

    kind: Literal["lognormal"]
    prefill: LogNormalTokens
    decode: LogNormalTokens


class QuantileLengths(Section):
    """Prompt and output from percentiles, drawn separately."""

    kind: Literal["quantiles"]
    prefill: QuantileTokens
    decode: QuantileTokens


Lengths = Annotated[
    FixedLengths | UniformLengths | ZipfLengths | LogNormalLengths | QuantileLengths, Field(discriminator="kind")
]


# Shared prefixes --------------------------------------------------------------------------------------------


class SharedPrefixes(Section):
    """Conversations that start from one of a few system prompts; turn k's prompt contains all earlier turns.

    With this section, prompt lengths drawn from ``lengths`` are what a turn *adds* (the model: `prefixes.py`).
    """

    system_prompts: Annotated[Count, Field(le=1_000_000)] = 1
    system_tokens: LogNormalTokens | Count = 512
    """Length of each system prompt: fixed, or drawn once per system prompt."""
    popularity_theta: Exponent = 0.0
    """Zipf exponent of the system prompts' popularity; 0 makes them equally popular."""
    turns: Annotated[float, NotBool, Field(ge=1, le=1e12)] = 1.0
    """Mean number of turns of a conversation (geometric)."""
    think_time_s: Seconds = 30.0
    """Mean time from the arrival of a turn until the next may arrive: the answer is produced and read in it."""
    min_think_time_s: Seconds = 0.0
    """The shortest such time; the rest is exponential."""
    max_prompt_tokens: Count | None = None
    """A conversation ends rather than grow beyond this; a longer single turn is trimmed to it."""
    hash_block_tokens: Count = 512

    @model_validator(mode="after")
    def _fits_together(self) -> SharedPrefixes:
        if self.min_think_time_s > self.think_time_s:
            raise ValueError(
                f"min_think_time_s: found {self.min_think_time_s:g}, "
                f"expected at most think_time_s = {self.think_time_s:g}"
            )
        tokens = self.system_tokens
        longest = tokens if isinstance(tokens, int) else tokens.max
        if self.max_prompt_tokens is not None and (longest is None or longest >= self.max_prompt_tokens):
            found = "no max" if longest is None else longest
            raise ValueError(
                f"system_tokens: found {found}, expected less than max_prompt_tokens = {self.max_prompt_tokens}"
            )
        return self


# Workloads --------------------------------------------------------------------------------------------------


class TimeWindow(Section):
    """A part of a trace, in seconds after its first arrival; the start of the window becomes time zero."""

    start_s: Seconds = 0.0
    end_s: PositiveSeconds | None = None
    """The first instant that is left out; ``None`` goes to the end of the trace."""

    @model_validator(mode="after")
    def _is_ordered(self) -> TimeWindow:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s: found {self.end_s:g}, expected more than start_s = {self.start_s:g}")
        return self


class TraceWorkload(Section):
    """Requests read from a file. What is done to them is done in the order of these fields."""

    kind: Literal["trace"]
    path: Path
    """Relative to the configuration file; ``.gz`` is read as it is."""
    format: Literal["auto"] | TraceFormat = "auto"
    skip_zero_output: bool = False
    """Leaves out, and counts, rows without output; they are refused otherwise."""
    hash_block_tokens: Count | None = None
    """Tokens per hash id, where they differ from what the format says."""
    window: TimeWindow | None = None
    limit: RequestCount | None = None
    """Takes at most this many requests."""
    requests: RequestCount | None = None
    """Takes exactly this many requests; a shorter trace is refused."""
    arrivals: Arrivals | None = None
    """Replaces the arrival times; traces of lengths only need it."""
    jitter_s: Seconds = 0.0
    """Delays each arrival by a uniform time below this: spreads time stamps that come in groups."""
    time_scale: Ratio = 1.0
    """Multiplies arrival times: 0.5 doubles the load."""
    prefill_scale: Ratio = 1.0
    decode_scale: Ratio = 1.0
    max_tokens: Annotated[Count, Field(ge=2)] | None = None
    """Longest prompt + output; longer requests are trimmed and counted."""
    trim: Literal["prefill", "proportional"] = "prefill"
    """What ``max_tokens`` shortens: the prompt, or both prompt and output."""

    @model_validator(mode="after")
    def _fits_together(self) -> TraceWorkload:
        if self.limit is not None and self.requests is not None:
            raise ValueError("requests: found together with limit, expected one of them")
        for name, given in (("window", self.window is not None), ("jitter_s", self.jitter_s > 0)):
            if given and self.arrivals is not None:
                raise ValueError(f"{name}: found together with arrivals, expected one of them")
        return self


class SyntheticWorkload(Section):
    """Requests drawn from distributions."""

    kind: Literal["synthetic"]
    requests: RequestCount
    arrivals: Arrivals
    lengths: Lengths
    prefixes: SharedPrefixes | None = None


class MixWorkload(Section):
    """Several workloads at the same time, merged by arrival; they share no prefix with each other."""

    kind: Literal["mix"]
    parts: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")],
            Annotated[TraceWorkload | SyntheticWorkload, Field(discriminator="kind")],
        ],
        Field(min_length=1),
    ]
    """By name; a request's id becomes ``name-id``."""


WorkloadConfig = Annotated[TraceWorkload | SyntheticWorkload | MixWorkload, Field(discriminator="kind")]
"""The ``workload`` section of a configuration."""


class WorkloadFile(Section):
    """A workload and the seed it is drawn with, as a file of its own or as part of a simulation's configuration."""

    seed: Seed = 0
    workload: WorkloadConfig
