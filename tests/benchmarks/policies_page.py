#!/usr/bin/env python3
"""What papers claim of scheduling policies, and what the simulator finds: writes docs/policies.md.

    python -m tests.benchmarks.policies_page docs/policies.md

One to two minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

from tests.benchmarks.compare_policies import (
    ARRANGED_RATES,
    ARRANGEMENTS,
    ENGINES,
    KV_BLOCKS,
    LONGEST_TOKENS,
    LOOSE,
    RATES,
    STRICT,
    Figures,
    under_arrangement,
    under_policy,
)

Cases = dict[tuple[str, float], Figures]
"""By name of the policy or arrangement, and arrivals per second."""
Columns = Sequence[tuple[str, Callable[[Figures], str]]]

COMMON: Final[Columns] = (
    ("TTFT p99 [s]", lambda found: f"{found.ttft_p99_s:.2f}"),
    ("TPOT mean [ms]", lambda found: f"{found.tpot_mean_ms:.1f}"),
    ("TPOT p99 [ms]", lambda found: f"{found.tpot_p99_ms:.1f}"),
    ("longest stall [ms]", lambda found: f"{found.longest_stall_ms:.0f}"),
    ("requests/s", lambda found: f"{found.requests_per_s:.2f}"),
)
OF_POLICIES: Final[Columns] = (
    *COMMON,
    ("KV reserved [tokens]", lambda found: f"{found.reserved_tokens:,.0f}"),
    ("of it in use", lambda found: f"{100 * found.used_share:.0f} %"),
)
OF_ARRANGEMENTS: Final[Columns] = (
    *COMMON,
    ("meets strict objectives", lambda found: f"{100 * found.strict:.1f} %"),
    ("loose ones", lambda found: f"{100 * found.loose:.1f} %"),
)


def table(found: Cases, columns: Columns, label: str) -> list[str]:
    header = ["arrivals/s", label, *(name for name, _ in columns)]
    rows = [[f"{rate:g}", name, *(text(each) for _, text in columns)] for (name, rate), each in found.items()]
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def claim(text: str, finding: str, *, holds: bool) -> str:
    verdict = "Confirmed" if holds else "Not confirmed"
    return fill(f"- {text} **{verdict}**: {finding}", 118, subsequent_indent="  ", break_on_hyphens=False)


def of_policies(found: Cases) -> list[str]:
    """Claims about one GPU, at the second load where nothing else is said."""
    rate, top = RATES[1], RATES[-1]
    v0, sarathi, orca, v1 = (found[name, rate] for name in ("vllm_v0", "sarathi", "orca", "vllm_v1"))
    orca_top, sarathi_top = found["orca", top], found["sarathi", top]
    return [
        claim(
            "Prefill first stalls decodes (Sarathi-Serve, section 3).",
            f"at {rate:g} requests/s a decode under `vllm_v0` waits up to {v0.longest_stall_ms:.0f} ms for its next "
            f"token, {v0.longest_stall_ms / sarathi.longest_stall_ms:.1f} times as long as under `sarathi` "
            f"({sarathi.longest_stall_ms:.0f} ms).",
            holds=v0.longest_stall_ms > 3 * sarathi.longest_stall_ms,
        ),
        claim(
            "Chunks that never leave out a decode bound every gap (Sarathi-Serve).",
            f"the longest is {sarathi.longest_stall_ms:.0f} ms under `sarathi`, {v1.longest_stall_ms:.0f} under "
            f"`vllm_v1` with chunks of 2,048 and {orca.longest_stall_ms:.0f} under `orca`.",
            holds=sarathi.longest_stall_ms < min(v1.longest_stall_ms, orca.longest_stall_ms),
        ),
        claim(
            "They improve the tail of TPOT too.",
            f"its p99 is {sarathi.tpot_p99_ms:.1f} ms under `sarathi`, {v0.tpot_p99_ms:.1f} under `vllm_v0`, "
            f"{v1.tpot_p99_ms:.1f} under `vllm_v1`, {orca.tpot_p99_ms:.1f} under `orca`: TPOT is a mean "
            f"over a request, "
            f"and small chunks lengthen many iterations a little. TTFT p99 is {sarathi.ttft_p99_s:.2f} "
            f"s under `sarathi`, "
            f"{v0.ttft_p99_s:.2f} s under `vllm_v0`.",
            holds=sarathi.tpot_p99_ms < min(v0.tpot_p99_ms, v1.tpot_p99_ms),
        ),
        claim(
            "Of memory reserved for the longest sequence little is in use (PagedAttention: 20 to 38 %).",
            f"of what `orca` reserves, {LONGEST_TOKENS:,} tokens a request, {100 * orca.used_share:.0f} % holds a "
            f"token; of the blocks of `vllm_v1` {100 * v1.used_share:.0f} %.",
            holds=orca.used_share < 0.5 < v1.used_share,
        ),
        claim(
            "So fewer requests fit, and under load they queue.",
            f"at {top:g} requests/s TTFT p99 is {orca_top.ttft_p99_s:.1f} s under `orca` and "
            f"{sarathi_top.ttft_p99_s:.1f} s under `sarathi`; they serve {orca_top.requests_per_s:.2f} and "
            f"{sarathi_top.requests_per_s:.2f} requests/s.",
            holds=orca_top.ttft_p99_s > 2 * sarathi_top.ttft_p99_s,
        ),
    ]


def of_arrangements(found: Cases) -> list[str]:
    """Claims about four GPUs."""
    low, top = ARRANGED_RATES[1], ARRANGED_RATES[-1]
    divisions = [name for name in ARRANGEMENTS if name != "together"]
    split, together = found[divisions[-1], low], found["together", low]
    rates = {name: found[name, top].requests_per_s for name in ARRANGEMENTS}
    return [
        claim(
            "Prefill on other GPUs removes its interference with decodes (DistServe, Splitwise).",
            f"at {low:g} requests/s TPOT p99 is {split.tpot_p99_ms:.1f} ms apart ({divisions[-1]}) and "
            f"{together.tpot_p99_ms:.1f} ms together, the longest stall {split.longest_stall_ms:.0f} and "
            f"{together.longest_stall_ms:.0f} ms.",
            holds=split.tpot_p99_ms < together.tpot_p99_ms,
        ),
        _crossing("strict", "More requests meet strict objectives apart (DistServe, section 6).", found),
        _crossing("loose", "Co-location wins where objectives are loose and the load is high.", found),
        claim(
            "At high load it serves more, as no GPU waits for work of its own kind.",
            f"at {top:g} requests/s it serves {rates['together']:.1f}, "
            + ", ".join(f"{name} {rates[name]:.1f}" for name in divisions)
            + ".",
            holds=all(rates["together"] > rates[name] for name in divisions),
        ),
    ]


def _crossing(objectives: str, text: str, found: Cases) -> str:
    """Where the better division meets objectives more often than co-location, and where less often."""
    leads: list[str] = []
    loses: list[str] = []
    for rate in ARRANGED_RATES:
        best = max(getattr(found[name, rate], objectives) for name in ARRANGEMENTS if name != "together")
        together = getattr(found["together", rate], objectives)
        if best != together:
            shares = f"{rate:g} ({100 * best:.1f} against {100 * together:.1f} %)"
            (leads if best > together else loses).append(shares)
    finding = (
        f"of the loads here (requests/s) the better division leads at {', '.join(leads) or 'none'}; co-location at "
        f"{', '.join(loses) or 'none'}."
    )
    return claim(text, finding, holds=bool(leads if objectives == "strict" else loses))


def page(policies: Cases, arranged: Cases) -> str:
    budgets = ", ".join(
        f"`{name}` {engine['max_batched_tokens']:,}"
        for name, engine in ENGINES.items()
        if "max_batched_tokens" in engine
    )
    parts = [
        "# Scheduling policies compared",
        "",
        fill(
            "Written by `python -m tests.benchmarks.policies_page docs/policies.md`, figures and verdicts. Qwen3-8B in "
            "bf16 on H200s, kernels measured. Prompts: half below 1,020 tokens, at most 3,000; answers: half below "
            "129, at most 1,000; Poisson arrivals, one seed. A stall is a gap between two tokens of a request. Loads "
            "and objectives are those at which short runs before showed a difference.",
            118,
        ),
        "",
        "## One GPU",
        "",
        fill(
            f"{KV_BLOCKS:,} KV blocks of 16 tokens, as a GPU of 40 GB has, and at most 128 requests at a time. "
            f"Budgets of an iteration: {budgets}.",
            118,
        ),
        "",
        *of_policies(policies),
        "",
        *table(policies, OF_POLICIES, "policy"),
        "",
        "## Four GPUs, together or apart",
        "",
        fill(
            f"vLLM V1 with chunks of 2,048 tokens. Strict objectives: TTFT {STRICT[0]:g} s, TPOT "
            f"{1e3 * STRICT[1]:g} ms; loose ones: {LOOSE[0]:g} s, {1e3 * LOOSE[1]:g} ms. KV is pulled over NVLink; the "
            "first token is the prefill's. The mixed pool is Splitwise's: instances that change sides when the other "
            "has no room.",
            118,
        ),
        "",
        *of_arrangements(arranged),
        "",
        *table(arranged, OF_ARRANGEMENTS, "arrangement"),
        "",
    ]
    return "\n".join(parts)


def main() -> None:
    names = [*ARRANGEMENTS, *(f"{name}, mixed pool" for name in ARRANGEMENTS if name != "together")]
    policies = {(name, rate): under_policy(name, rate) for rate in RATES for name in ENGINES}
    arranged = {(name, rate): under_arrangement(name, rate) for rate in ARRANGED_RATES for name in names}
    Path(sys.argv[1]).write_text(page(policies, arranged), encoding="utf-8")


if __name__ == "__main__":
    main()
