"""How far latencies may be off, and where the host is in them, in words: for the console and for reports."""

from __future__ import annotations

from vidur_pd.metrics.summary import Summary
from vidur_pd.metrics.verdict.limits import percent

MUCH_HOST = 0.1
"""Share of busy time from which exposed host time is printed: as much as the error of measured kernels. Our choice."""


def host_waits(summary: Summary) -> list[str]:
    """Of which kinds of iterations much is exposed host time, and how much."""
    return [
        f"{percent(share)} of the time of {kind} ({pool.name})"
        for pool in summary.pools
        for kind, share in (("prompts", pool.prompts_host_share), ("decodes", pool.decodes_host_share))
        if share is not None and share >= MUCH_HOST
    ]


def model_errors(summary: Summary) -> str:
    """By what latencies may be off, as far as what their times rest on tells; empty where none is known."""
    of = summary.model_error
    errors = ((name, error) for name, error in (("TTFT", of.ttft), ("TPOT", of.tpot)) if error is not None)
    return ", ".join(f"{name} ± {percent(error)}" for name, error in errors)
