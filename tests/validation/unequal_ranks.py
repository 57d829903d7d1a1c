#!/usr/bin/env python3
"""Compares gathers and scatters of two ranks with different numbers of tokens with vLLM's, on two H200s.

    python -m tests.validation.unequal_ranks

vLLM 0.24.0 broadcasts and reduces there (``tests/data/network/h200-unequal-ranks.json``). Corrections of NCCL's model
were fitted to gathers and scatters of equal ranks on another machine; broadcasts and reduces have NCCL's constants. The
ratio of speeds by which one of them is chosen is from the rows in which the second rank has one token.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import simccl
from aicb import Partition, Precision, expert_operators, load_model
from aicb.operators.dispatch import ExpertDispatch
from aicb.operators.operator import Communication
from tests.validation.engine_figures import Comparison

FILE = Path(__file__).resolve().parents[1] / "data" / "network" / "h200-unequal-ranks.json"
MODEL = "qwen3-30b-a3b"
"""Tokens of 4 KB, as measured."""


@dataclass(frozen=True, slots=True)
class Row(Comparison):
    """Of a collective (``name``), with the tokens of both ranks that it carries."""

    most: int
    fewest: int


def compare() -> list[Row]:
    """All rows, tokens there and results back."""
    rows = []
    for most, fewest, gather_us, scatter_us in json.loads(FILE.read_text())["rows"]:
        for what, measured_us in zip(_communications(most, most + fewest), (gather_us, scatter_us), strict=True):
            times = simccl.time_table([what.op], [what.size_bytes], [2], [1], "h200")
            rows.append(Row(what.op, measured_us / 1e3, float(times.time_us[0]) / 1e3, most, fewest))
    return rows


def _communications(own: int, group: int) -> list[Communication]:
    gathers = ExpertDispatch("all_gather", "all_gather")
    operators = expert_operators(
        load_model(MODEL),
        Partition(dp=2, ep=2),
        Precision("bf16"),
        tokens=own,
        group_tokens=group,
        is_decode=False,
        dispatch=gathers,
    )
    return [op.kernel for op in operators if isinstance(op.kernel, Communication)]


def main() -> int:
    """Prints all comparisons."""
    for row in compare():
        times = f"{row.measured_ms * 1e3:8.2f} us  simulated {row.simulated_ms * 1e3:8.2f} us"
        print(f"{row.most:6d} and {row.fewest:5d} tokens  {row.name:14s} {times}  {row.error:+6.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
