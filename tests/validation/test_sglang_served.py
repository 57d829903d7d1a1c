"""Engines of SGLang against their simulation; bounds are a little beyond what was seen."""

from __future__ import annotations

import pytest

from tests.validation.sglang_served import ENGINES, ONE_GPU, SHARED_EXPERTS, compare, engine_of, mean_error
from vidur_pd.commands.validation.engine import THEN
from vidur_pd.commands.validation.measured_engine import DECODES, PROMPTS

DECODES_MOST = {
    "tp1-qwen3-8b": 0.04,
    "tp1-qwen3-30b-a3b": 0.03,
    "tp1-qwen3-30b-a3b-fp8": 0.03,
    "tp1-deepseek-v3-l8": 0.04,
    "tp2-qwen3-30b-a3b": 0.065,
    "tp2-deepseek-v3-l8": 0.065,
    SHARED_EXPERTS: 0.045,
}
LOADS_MOST = {
    "tp1-qwen3-8b": 0.045,
    "tp1-qwen3-30b-a3b": 0.05,
    "tp1-qwen3-30b-a3b-fp8": 0.055,
    "tp1-deepseek-v3-l8": 0.1,
    "tp2-qwen3-30b-a3b": 0.08,
    "tp2-deepseek-v3-l8": 0.205,
    SHARED_EXPERTS: 0.12,
}
MISSES = {
    ("tp1-qwen3-30b-a3b-fp8", "serve_6.0"),
    ("tp2-qwen3-30b-a3b", PROMPTS),
    (SHARED_EXPERTS, PROMPTS),
}
"""7.4 %; one of 512 tokens 26 % fast;
19 to 26 % fast, where an idle rank's rows that fill up graphs may choose the same experts."""


@pytest.mark.parametrize("name", ENGINES)
def test_steady_decodes_are_met(name: str) -> None:
    """Of tensor-parallel ones those of one request, up to 18 % slow, are the worst."""
    assert mean_error(compare(name, DECODES)) < DECODES_MOST[name]


@pytest.mark.parametrize("name", ENGINES)
def test_loads_are_met_at_the_speed_of_their_host(name: str) -> None:
    """DeepSeek's prompts are launched kernel by kernel, each in 22 to 40 ms by two workers;
    at the median of 24 they are 4 to 18 % fast."""
    for load in engine_of(name).comparable_loads:
        assert (mean_error(compare(name, load, THEN)) < LOADS_MOST[name]) != ((name, load) in MISSES), load


@pytest.mark.parametrize("name", ENGINES)
def test_prompts_of_up_to_8192_tokens_are_met(name: str) -> None:
    """At the speed of the host, of ranks that share experts on the default. Shorter ones of models that replay graphs
    are up to 25 % fast, those of ranks that share experts 35."""
    prompts = compare(name, PROMPTS, None if name == SHARED_EXPERTS else THEN)
    long = [row for row in prompts if int(row.name.rpartition(" ")[2]) >= 2048]
    assert len(long) == 3
    least = -0.36 if name == SHARED_EXPERTS else -0.25
    are_met = mean_error(long) < 0.095 and all(least < row.error < 0.12 for row in prompts)
    assert are_met != ((name, PROMPTS) in MISSES)


@pytest.mark.parametrize(("load", "ttft"), [("serve_6.0", 0.088), ("serve_12.0", 0.109)])
def test_steps_with_prompts_on_one_rank_and_decodes_on_the_other_are_launched_kernel_by_kernel(
    load: str, ttft: float
) -> None:
    """Of 60 to 75 % that loads were fast, blind, most: TPOT is met within 3 %, but for 3.6 at 6 requests/s. TTFT misses
    the 5 % that it was met within when experts were fitted to prompts of this engine, by as much as stated."""
    rows = {row.name: row.error for row in compare(SHARED_EXPERTS, load, THEN)}
    assert abs(rows[f"{load} ttft mean"]) == pytest.approx(ttft, abs=0.002)
    assert (abs(rows[f"{load} tpot mean"]) < 0.03) != (load == "serve_6.0")


def test_graphs_of_prompts_are_what_the_engines_said() -> None:
    """Latent attention had none in this version; of data-parallel ranks each has its part of the chunk."""
    sizes = {name: engine_of(name).args.prompt_graph_sizes for name in ENGINES}
    assert {name for name in ENGINES if sizes[name] == ()} == {"tp1-deepseek-v3-l8", "tp2-deepseek-v3-l8"}
    listed, divided = sizes[ONE_GPU[0]], sizes[SHARED_EXPERTS]
    assert listed is not None
    assert divided is not None
    assert (listed[:2], listed[-2:], len(listed)) == ((4, 8), (7680, 8192), 58)
    assert listed[: len(divided)] == divided
    assert divided[-1] == 4096
