"""What a configuration may say about what prompts have in common: system prompts and earlier turns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from boundary.fields import Count, Exponent, NotBool, Seconds, Section
from vidur_pd.config.arrivals import ConstantTime, ThinkTime
from vidur_pd.config.lengths import LogNormalTokens, QuantileTokens

MeanTurns = Annotated[float, NotBool, Field(ge=1, le=1e12)]


class SystemPrompts(Section):
    """Texts of which every conversation begins with one."""

    system_prompts: Annotated[Count, Field(le=1_000_000)] = 1
    system_tokens: LogNormalTokens | Count = 512
    """Length of each system prompt: fixed, or drawn once per system prompt."""
    popularity_theta: Exponent = 0.0
    """Zipf exponent of the system prompts' popularity; 0 makes them equally popular."""


class SharedPrefixes(SystemPrompts):
    """Conversations that start from one of a few system prompts; turn k's prompt contains all earlier turns.

    With this section, prompt lengths drawn from ``lengths`` are what a turn *adds* (the model: `prefixes.py`).
    """

    turns: MeanTurns = 1.0
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
        _check_room(self, self.max_prompt_tokens)
        return self


class FixedTurns(Section):
    """The same number of turns in all sessions."""

    kind: Literal["fixed"]
    turns: Count


class GeometricTurns(Section):
    """After each turn a session goes on with probability 1 − 1/mean."""

    kind: Literal["geometric"]
    mean: MeanTurns


class QuantileTurns(QuantileTokens):
    """A number of turns from percentiles, log-linear between them."""

    kind: Literal["quantiles"]


Turns = Annotated[FixedTurns | GeometricTurns | QuantileTurns, Field(discriminator="kind")]


class TurnTiming(Section):
    """When the turns of a session are sent, its first one aside."""

    next_turn: Literal["after_answer", "at_time"] = "after_answer"
    """``after_answer``: a think time after the end of the turn before. ``at_time``: at a time that is known before:
    that of the trace, or a think time after the turn before was sent."""
    think_time: ThinkTime = ConstantTime(kind="constant", s=0)


class DrawnSessions(SystemPrompts, TurnTiming):
    """Sessions of turns; a turn's prompt contains the prompts and answers of all turns before it.

    ``arrivals`` say when sessions begin, ``requests`` counts turns, and prompt lengths drawn from ``lengths`` are what
    a turn adds (the model: `workload/sessions.py`).
    """

    turns: Turns
    max_prompt_tokens: Count | None = None
    """A session ends rather than grow beyond this; a longer first turn is trimmed to it."""
    hash_block_tokens: Count = 16

    @model_validator(mode="after")
    def _fits_together(self) -> DrawnSessions:
        _check_room(self, self.max_prompt_tokens)
        return self


def _check_room(system: SystemPrompts, max_prompt_tokens: int | None) -> None:
    """Every system prompt leaves room for a turn."""
    tokens = system.system_tokens
    longest = tokens if isinstance(tokens, int) else tokens.max
    if max_prompt_tokens is not None and (longest is None or longest >= max_prompt_tokens):
        found = "no max" if longest is None else longest
        raise ValueError(f"system_tokens: found {found}, expected less than max_prompt_tokens = {max_prompt_tokens}")
