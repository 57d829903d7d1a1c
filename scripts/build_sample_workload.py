#!/usr/bin/env python3
"""Builds the sample workload shipped in ``vidur_pd/workload/data``, and the page that says what it is.

    python scripts/build_sample_workload.py [OUTPUT_DIRECTORY]

Everything is drawn from ``sample_conversations.yaml`` there (whose parameters reproduce published statistics of two
traces) with the seed stated in it. No row of a trace is used. The result is the same, byte for byte, every time.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from vidur_pd.config.workload import MixWorkload, WorkloadFile
from vidur_pd.workload import Workload, generator, load_workload
from vidur_pd.workload.statistics import WorkloadStatistics, describe_workload
from vidur_pd.workload.transform import picked
from vidur_pd.workload.writing import write_trace

DATA = Path(__file__).resolve().parent.parent / "vidur_pd" / "workload" / "data"
NAME = "sample_conversations"

PS_PER_MS = 10**9
"""Arrivals are rounded to milliseconds: finer digits would depend on the last bit of a machine's logarithm."""


@dataclass(frozen=True, slots=True)
class Published:
    """Statistics of a trace that are public; ``None`` where none is used."""

    prefill_mean: int
    prefill_p50: int | None
    prefill_p90: int | None
    prefill_max: int | None
    decode_mean: int
    decode_p50: int | None
    decode_max: int | None


PUBLISHED = {
    # Azure Public Dataset, AzureLLMInferenceTrace_conv (2023): mean, percentiles and maximum of its columns.
    "chat": Published(1155, 1020, 2734, 14050, 211, 129, 1000),
    # Mooncake (FAST 2025), conversation trace: mean input and output length.
    "documents": Published(12035, None, None, None, 343, None, None),
}
PUBLISHED_REUSE = "36.6 % counted over the ids of the Mooncake conversation trace; its paper states 40 %"


def build(directory: Path) -> None:
    """Writes the workload and its page into ``directory``."""
    tree = yaml.safe_load((DATA / f"{NAME}.yaml").read_text(encoding="utf-8"))
    config = WorkloadFile.model_validate(tree)
    assert isinstance(config.workload, MixWorkload)
    drawn = load_workload(config.workload, base_dir=DATA, rng=lambda name: generator(config.seed, name))
    sample = replace(drawn, arrived_ps=np.rint(drawn.arrived_ps / PS_PER_MS).astype(np.int64) * PS_PER_MS)
    write_trace(sample, directory / f"{NAME}.csv")
    (directory / f"{NAME}.md").write_text(_page(sample, config) + "\n", encoding="utf-8")


def _page(sample: Workload, config: WorkloadFile) -> str:
    whole = describe_workload(sample)
    return "\n\n".join(
        [
            "# sample_conversations.csv",
            _paragraph(
                f"{whole.requests:,} requests of a conversation service: {whole.span_s:.0f} s, "
                f"{whole.rate_qps:.2f} requests/s, Poisson arrivals (CV of the gaps {whole.gap_cv:.2f}). Columns: "
                "`request_id`, `arrived_at_s` (s), `prefill_tokens`, `decode_tokens`, and `hash_ids`: one id per 512 "
                "prompt tokens, the last block may be partial; equal ids are equal text after equal text. "
                "`time_scale` changes the load."
            ),
            _paragraph(
                f"Drawn by this project's generator from `sample_conversations.yaml` (seed {config.seed}, arrivals "
                "rounded to 1 ms); `python scripts/build_sample_workload.py` rebuilds it byte for byte. The parameters "
                "were chosen so that the result resembles published statistics of two traces; no row of a trace was "
                "used. It is a mix of two independent kinds of conversations:"
            ),
            _list(
                "`chat-*`: short turns, resembling the conversation trace of the Azure LLM inference traces 2023 "
                "(Azure Public Dataset; Patel et al., Splitwise, ISCA 2024);",
                "`documents-*`: long texts, resembling the conversation trace of Mooncake (Qin et al., FAST 2025).",
            ),
            _table(sample, whole),
            _paragraph(
                "Texts and answers are log-normal; so are system prompts, whose popularity follows a Zipf law. The "
                "number of turns is geometric; think times are a shortest one plus an exponential. A prompt holds the "
                "system prompt and all earlier turns."
            ),
            "## Where it differs from the traces",
            _list(
                "The Azure prompt lengths have several peaks, those here one: with the 90th percentile in place, the "
                "median comes out lower and the mean higher.",
                "Arrivals are Poisson: neither the 3 s groups of the Mooncake time stamps nor daily cycles.",
                "Prompts are limited to the longest of each trace (14,050 and 126,195 tokens), so that all fit a "
                "context of 128 Ki tokens with their output.",
                f"Prefix reuse (perfect cache): {PUBLISHED_REUSE}. Here it comes from earlier turns and system prompts "
                "alone; shared documents and retries are not modelled.",
            ),
        ]
    )


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _list(*items: str) -> str:
    return "\n".join(
        textwrap.fill(item, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False) for item in items
    )


def _table(sample: Workload, whole: WorkloadStatistics) -> str:
    header = (
        "| | requests | prompt mean | p50 | p90 | p99 | max | output mean | p50 | p90 | max | reuse |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    rows = []
    for part, published in PUBLISHED.items():
        rows.append(_sample_row(f"`{part}`", describe_workload(_part(sample, part))))
        prompt = (published.prefill_mean, published.prefill_p50, published.prefill_p90, None, published.prefill_max)
        output = (published.decode_mean, published.decode_p50, None, published.decode_max)
        cells = ["–" if value is None else f"{value:,}" for value in (*prompt, *output)]
        rows.append(f"| published | | {' | '.join(cells)} | |")
    rows.append(_sample_row("whole", whole))
    return "\n".join([header, *rows])


def _sample_row(label: str, statistics: WorkloadStatistics) -> str:
    prompt, output = statistics.prefill_tokens, statistics.decode_tokens
    values = (
        *(prompt.mean, prompt.p50, prompt.p90, prompt.p99, prompt.max),
        *(output.mean, output.p50, output.p90, output.max),
    )
    cells = " | ".join(f"{value:,.0f}" for value in values)
    return f"| {label} | {statistics.requests:,} | {cells} | {statistics.perfect_cache_hit_share:.1%} |"


def _part(sample: Workload, name: str) -> Workload:
    """The requests of one part of the mix."""
    has_prefix = [request_id.startswith(f"{name}-") for request_id in sample.request_ids]
    return picked(sample, np.flatnonzero(has_prefix))


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
