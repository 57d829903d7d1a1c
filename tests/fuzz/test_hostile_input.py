"""Whatever a user hands in, the answer is a result, or one line and exit code 2: no traceback, no crash, no hang."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from importlib import import_module

import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st

from tests.fuzz.campaign import KINDS, campaign, report
from tests.fuzz.case import Case, Verdict
from tests.fuzz.commands import LIMITS, Commands, judged

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="commands are watched through /proc")

EXAMPLES = dict.fromkeys(KINDS, 40) | {"results": 8}
"""A minute in all, with the cases by name; a report takes longer than a refusal."""
LONG_MINUTES = 10.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Cases by name: those that once went wrong, with ``--long`` their neighbours too."""
    if "case" in metafunc.fixturenames:
        is_long = metafunc.config.getoption("--long")
        modules = {kind: import_module(f"tests.fuzz.findings.{kind}") for kind in KINDS}
        named = [
            pytest.param(case, id=f"{kind}-{name[:60]}")
            for kind, module in modules.items()
            for name, case in module.CASES.items()
            if (is_long or name in module.WENT_WRONG) and case.is_possible()
        ]
        metafunc.parametrize("case", named)


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands(LIMITS | {"cpu_s": 5.0}) as running:  # of what never ends, half as long is enough to see it
        yield running


def check(case: Case, commands: Commands) -> None:
    outcome = commands.run(case)
    verdict, why = judged(case, outcome)
    message = outcome.stderr[-2000:].decode(errors="replace")
    assert verdict is not Verdict.FINDING, f"{why}\n  {case.shown()}\n{message}"


def test_what_once_went_wrong_goes_right(case: Case, commands: Commands) -> None:
    check(case, commands)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_input_ends_in_a_result_or_in_one_line(
    kind: str, commands: Commands, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--long"):
        pytest.skip("the campaign below takes its place")
    generate = import_module(f"tests.fuzz.kinds.{kind}").generate

    @settings(
        max_examples=EXAMPLES[kind],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.randoms(use_true_random=False))
    def any_case_ends_well(rng: random.Random) -> None:
        case = generate(rng)
        assume(case.is_possible())
        note(case.shown())
        check(case, commands)

    any_case_ends_well()


@pytest.mark.parametrize("kind", KINDS)
def test_a_campaign_finds_nothing(kind: str, commands: Commands, request: pytest.FixtureRequest) -> None:
    """``--long``: ten minutes from a new seed, which is printed; ``python -m tests.fuzz --kind … --replay SEED``."""
    if not request.config.getoption("--long"):
        pytest.skip("with --long")
    seed = int(time.time()) * 1_000_000
    tally = campaign(kind, LONG_MINUTES, seed, commands)
    text = report(kind, tally)
    print(text)
    assert not tally.counts[Verdict.FINDING], text
