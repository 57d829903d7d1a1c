"""What a configuration may say about what prompts have in common: system prompts and earlier turns."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from boundary.fields import Count, Exponent, NotBool, Seconds, Section
from vidur_pd.config.lengths import LogNormalTokens


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
