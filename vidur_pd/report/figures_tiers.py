"""Tiers of KV in the report: what each gave to requests, and what that was worth."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from vidur_pd.metrics.summary import TierSummary
from vidur_pd.report.text import digits, duration, meaning_html, table_html

GB = 1e9
MEANING = (
    "Tokens that the prefix caches did not have, and a tier did. Requests have waited for their loads while others "
    "ran, or run meanwhile where these are layer-wise; computing is what these tokens would have taken, each request "
    "alone. Loads of several tiers count in each."
)


def tier_table(tiers: Sequence[TierSummary]) -> Markup:
    rows = [
        [
            tier.kind,
            f"{tier.caches:,}",
            f"{tier.loads:,}",
            f"{tier.loaded_tokens:,}",
            digits(tier.loaded_bytes / GB),
            duration(tier.load_s),
            duration(tier.recompute_s),
            digits(tier.stored_bytes / GB),
            f"{tier.evicted_chunks:,}",
            digits(tier.held_bytes / GB),
            f"{tier.failed_loads:,}",
        ]
        for tier in tiers
    ]
    loaded = ("Loads", "Tokens loaded", "GB loaded", "Waited", "Computing")
    kept = ("GB stored", "Chunks evicted", "GB held", "Loads failed")
    return table_html(("Tier", "Caches", *loaded, *kept), rows, text_columns=1) + meaning_html(MEANING)
