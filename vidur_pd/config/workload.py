"""What a configuration may say about the workload."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from boundary.fields import Count, Number, PositiveSeconds, Ratio, Seconds, Section, Seed
from vidur_pd.config.arrivals import Arrivals, ClosedArrivals
from vidur_pd.config.lengths import EarlyEnd, Lengths
from vidur_pd.config.rates import StatedRate
from vidur_pd.config.request_classes import RequestClasses, check_shares
from vidur_pd.config.sessions import DrawnSessions, SharedPrefixes, TurnTiming

RequestCount = Annotated[Count, Field(le=20_000_000)]
"""Requests of a workload; each takes about 100 bytes before it arrives."""
TraceFormat = Literal["csv", "vidur", "vidur_lengths", "azure", "burstgpt", "mooncake", "qwen_bailian", "bench"]


TraceColumn = Literal[
    "arrived_at_s", "prefill_tokens", "decode_tokens", "request_id", "session", "turn", "class", "priority", "hash_ids"
]
TimeUnit = Literal["s", "ms", "us", "date_time"]


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


class _AtRate(Section):
    """A workload whose arrivals may be brought to a rate."""

    rate: StatedRate | None = None
    """Mean rate of arrivals, as ``10/s``: all arrival times are scaled by one factor, after all else is done."""


class TraceWorkload(_AtRate):
    """Requests read from a file. What is done to them is done in the order of these fields."""

    kind: Literal["trace"]
    path: Path
    """Relative to the configuration file; ``.gz`` is read as it is."""
    format: Literal["auto"] | TraceFormat = "auto"
    columns: dict[TraceColumn, Annotated[str, Field(min_length=1)]] | None = None
    """Of a CSV file, or keys of JSON lines, of one's own, by the names that format ``csv`` has: ``{arrived_at_s: ts,
    prefill_tokens: n_in, decode_tokens: n_out}``."""
    time_unit: TimeUnit = "s"
    """Of its ``arrived_at_s``; ``date_time``: as 2026-11-26 08:15:00.5."""
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
    shared_prefix_tokens: Annotated[Number, Field(le=10_000_000)] = 0
    """Put before every prompt, as a system prompt that all share; a trace whose prompts name their own prefixes is
    refused."""
    session_history: bool = False
    """Prompts of a session begin with what was said in it: the prompt of the turn before, and its answer where they are
    as long as both. For traces with ``session`` whose prompts do not name what they share (``hash_ids``)."""
    trim: Literal["prefill", "proportional"] = "prefill"
    """What ``max_tokens`` shortens: the prompt, or both prompt and output."""
    sessions: TurnTiming | None = None
    """Turns of a conversation, where the trace says which rows are, follow one another as said here."""

    @model_validator(mode="after")
    def _fits_together(self) -> TraceWorkload:
        if self.limit is not None and self.requests is not None:
            raise ValueError("requests: found together with limit, expected one of them")
        if self.rate is not None and self.time_scale != 1:
            raise ValueError("rate: found together with time_scale, expected one of them")
        for name, given in (("window", self.window is not None), ("jitter_s", self.jitter_s > 0)):
            if given and self.arrivals is not None:
                raise ValueError(f"{name}: found together with arrivals, expected one of them")
        if self.columns is not None and self.format not in ("auto", "csv"):
            raise ValueError(f"columns: found with format {self.format}, expected it with csv")
        if self.time_unit != "s" and self.columns is None:
            raise ValueError(f"time_unit: found {self.time_unit} without columns, expected both")
        _check_timing(self.arrivals, self.sessions)
        return self


class SyntheticWorkload(_AtRate):
    """Requests drawn from distributions."""

    kind: Literal["synthetic"]
    requests: RequestCount
    arrivals: Arrivals
    lengths: Lengths
    prefixes: SharedPrefixes | None = None
    sessions: DrawnSessions | None = None
    classes: RequestClasses | None = None
    early_end: EarlyEnd | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> SyntheticWorkload:
        if self.prefixes is not None and self.sessions is not None:
            raise ValueError("sessions: found together with prefixes, expected one of them")
        if self.prefixes is not None and isinstance(self.arrivals, ClosedArrivals):
            raise ValueError("prefixes: found with closed arrivals, expected sessions (its turns wait for answers)")
        if self.classes is not None:
            check_shares(self.classes)
        _check_timing(self.arrivals, self.sessions)
        return self


def _check_timing(arrivals: Arrivals | None, sessions: TurnTiming | None) -> None:
    """What is known before cannot wait for what is not."""
    if isinstance(arrivals, ClosedArrivals) and sessions is not None and sessions.next_turn == "at_time":
        raise ValueError("sessions.next_turn: found at_time with closed arrivals, expected after_answer")


class ServeGenWorkload(_AtRate):
    """Requests of the clients that a folder of ServeGen describes."""

    kind: Literal["servegen"]
    path: Path
    """Folder with ``chunk-i-trace.csv`` and ``chunk-i-dataset.json``, relative to the configuration file."""
    window: TimeWindow | None = None
    """In seconds of the clients' own time."""
    limit: RequestCount | None = None
    """Takes at most this many requests."""


class MixWorkload(_AtRate):
    """Several workloads at the same time, merged by arrival; they share no prefix with each other."""

    kind: Literal["mix"]
    parts: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")],
            Annotated[TraceWorkload | SyntheticWorkload | ServeGenWorkload, Field(discriminator="kind")],
        ],
        Field(min_length=1),
    ]
    """By name; a request's id becomes ``name-id``."""


WorkloadConfig = Annotated[
    TraceWorkload | SyntheticWorkload | ServeGenWorkload | MixWorkload, Field(discriminator="kind")
]
"""The ``workload`` section of a configuration."""


class WorkloadFile(Section):
    """A workload and the seed it is drawn with, as a file of its own or as part of a simulation's configuration."""

    seed: Seed = 0
    workload: WorkloadConfig
