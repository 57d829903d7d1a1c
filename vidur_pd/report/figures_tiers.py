"""Tiers of KV in the report: what each gave to requests, and what that was worth."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from vidur_pd.metrics.summary import TierSummary
from vidur_pd.report.text import digits, duration, meaning_html, table_html

GB = 1e9
MEANING = (
    "Loads bring tokens to GPUs that the prefix caches did not have, and a tier did. Prefetches bring chunks of a "
    "lower tier to CPU memory while requests queue; their loads then count as CPU memory's. Loading is the time of "
    "loads, summed: requests waited for it while others ran, or ran meanwhile where loads are layer-wise. Recomputing "
    "is what these tokens would have taken, each request alone. Loads of several tiers count in each."
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
            f"{tier.prefetched_chunks:,}",
            digits(tier.stored_bytes / GB),
            f"{tier.evicted_chunks:,}",
            digits(tier.held_bytes / GB),
            f"{tier.failed_loads:,}",
        ]
        for tier in tiers
    ]
    loaded = ("Loads", "Tokens loaded", "GB loaded", "Loading", "Recomputing")
    kept = ("Chunks prefetched", "GB stored", "Chunks evicted", "GB held", "Loads failed")
    return table_html(("Tier", "Caches", *loaded, *kept), rows, text_columns=1) + meaning_html(MEANING)
