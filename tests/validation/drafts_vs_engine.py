#!/usr/bin/env python3
"""Compares the simulator with vLLM 0.24.0 engines that draft, on one H200 each, measured after it was frozen.

    python -m tests.validation.drafts_vs_engine

DeepSeek-V3 cut to 8 layers, fp8, with its multi-token-prediction layer and one or three drafts, Qwen3-8B with an EAGLE
head and two drafts, and with Qwen3-0.6B and three (``tests/data/engine``, by ``aicb profile engine``): prompts alone,
steady decodes, Poisson loads; drafts are kept at random with a probability. Blind at ``01a58e58``; what drafting takes
on a host was then taken from stamps of their host's loads (`aicb.iteration.drafting_host`), no time of tokens.
"""

from __future__ import annotations

import sys
from functools import cache

from tests.validation.engine_figures import FOLDER
from vidur_pd.commands.validation.engine import HOSTS, Row, compare_hosts, mean_errors
from vidur_pd.commands.validation.measured_engine import read_engine

ENGINES = ("deepseek-v3-l8-mtp1", "deepseek-v3-l8-mtp3", "qwen3-8b-eagle2", "qwen3-8b-draft3")
"""Model, what drafts, and drafts of a step."""


@cache
def compared(engine: str) -> tuple[Row, ...]:
    """All figures of one, on its own host, on that at the speed of the phase, and on the default."""
    return tuple(compare_hosts(read_engine(FOLDER / f"vllm-h200-tp1-{engine}.json.gz")))


@cache
def errors(engine: str) -> dict[str, Row]:
    """Means of absolute errors by kind."""
    return {row["kind"]: row for row in mean_errors(compared(engine))}


def main() -> int:
    for engine in ENGINES:
        print(f"\n{engine:28}{'ms':>9}" + "".join(f"{host:>11}" for host in HOSTS))
        for row in compared(engine):
            print(f"{row['what']:28}{row['measured_ms']:9.2f}{_errors(row)}")
        for kind, row in errors(engine).items():
            print(f"{kind + ', mean':28}{'':9}{_errors(row)}")
    return 0


def _errors(row: Row) -> str:
    found = (row[f"{host}_error"] for host in HOSTS)
    return "".join(f"{'-' if error is None else f'{error:+.1%}':>11}" for error in found)


if __name__ == "__main__":
    sys.exit(main())
