"""A policy that decides what cannot be ends the simulation in one line that names policy and rule."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from boundary.errors import InputError
from tests.forked_commands import run_forked
from tests.integration.small_runs import config, pool, simulate
from vidur_pd.scheduling import BrokenRule, Decision, Policy, RankView, VllmV1

ROWS = [(0, 40, 5), (0, 40, 5), (0, 40, 5)]
PLACE = __name__


class RunsAll(Policy):
    """The first part of a policy: everything at once."""

    tokens = 0

    def decide(self, rank: RankView, decision: Decision) -> None:
        for request in rank.running + rank.waiting:
            decision.run(request, self.tokens or rank.most_tokens(request))


class Raises(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None:
        del rank, decision
        raise ZeroDivisionError("division\nby zero")


class RaisesOnce(Policy):
    def __init__(self) -> None:
        raise KeyError("weights")

    def decide(self, rank: RankView, decision: Decision) -> None: ...


class Returns(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None:
        del decision
        return list(rank.waiting)  # type: ignore[return-value]


class RunsNothing(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None: ...


class RunsNoTokens(RunsAll):
    tokens = -1


class RunsTooManyTokens(RunsAll):
    tokens = 41


class RunsText(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None:
        decision.run(rank.waiting[0], "all")  # type: ignore[arg-type]


class RunsNobody(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None:
        decision.run(None, 1)  # type: ignore[arg-type]


class RunsTwice(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None:
        request = rank.waiting[0]
        decision.run(request, 10)
        decision.run(request, 10)


class RunsTheEnded(Policy):
    """Goes on with a request that it remembers."""

    def __init__(self) -> None:
        self.first: Any = None
        self.core = VllmV1()

    def decide(self, rank: RankView, decision: Decision) -> None:
        self.first = self.first or rank.waiting[0]
        self.core.decide(rank, decision)
        if self.first.generated_tokens == 5:
            decision.run(self.first, 1)


class DecidesLate(Policy):
    """Keeps a decision and goes on with it when it is asked something else."""

    def __init__(self) -> None:
        self.core = VllmV1()

    def decide(self, rank: RankView, decision: Decision) -> None:
        self.kept = decision
        self.core.decide(rank, decision)

    def is_steady(self, rank: RankView) -> bool:
        self.kept.preempt(rank.running[0])
        return True


class IsSteadilyVague(DecidesLate):
    def is_steady(self, rank: RankView) -> bool:
        return None  # type: ignore[return-value]


class PreemptsTheWaiting(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None:
        decision.preempt(rank.waiting[0])


class Exits(Policy):
    def decide(self, rank: RankView, decision: Decision) -> None:
        raise SystemExit(0)


class PreemptsForEver(Policy):
    """Begins a prompt in chunks and gives it up before its end, for ever."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        for request in rank.running:
            decision.preempt(request)
        decision.run(rank.waiting[0], 10)


class StarvesTheLast(Policy):
    """Serves all but the request that came last."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        for request in rank.running + rank.waiting:
            if request.index < 2:
                decision.run(request, rank.most_tokens(request))


WRONG = [
    (Raises, "raises: ZeroDivisionError: division by zero (test_wrong_policies.py:"),
    (RaisesOnce, "raises: KeyError: 'weights' (test_wrong_policies.py:"),
    (Returns, "decision: decide returned [request r0, request r1, request r2], expected None"),
    (RunsNothing, "progress: found nothing to run on m-0 rank 0 (0 running, 3 waiting, 0 with their KV here)"),
    (StarvesTheLast, "progress: found nothing to run on m-0 rank 0 (0 running, 1 waiting"),
    (RunsAll, "budget: request r2 is to compute 40 tokens, expected at most the 20 left of 100 (test_wrong"),
    (RunsNoTokens, "tokens: request r0 is to compute -1 tokens, expected 1 to 40"),
    (RunsTooManyTokens, "tokens: request r0 is to compute 41 tokens, expected 1 to 40"),
    (
        RunsText,
        "raises: TypeError: found run(request r0, 'all'), "
        "expected run(request: Request, tokens: int, held_tokens: int = 0)",
    ),
    (
        RunsNobody,
        "raises: TypeError: found run(None, 1), expected run(request: Request, tokens: int, held_tokens: int = 0)",
    ),
    (RunsTwice, "one iteration: request r0 is in this iteration already"),
    (RunsTheEnded, "membership: request r0 neither runs on this rank nor waits for it"),
    (DecidesLate, "decision: found one after its iteration, expected it within decide"),
    (IsSteadilyVague, "is_steady: found None, expected True or False"),
    (PreemptsTheWaiting, "membership: request r0 holds no KV on this rank that it could lose"),
    (Exits, "raises: SystemExit: 0"),
    (PreemptsForEver, "progress: request r0 would be preempted for the 1001th time since its last token"),
]


def run(policy: type[Policy], **engine: Any) -> None:
    fields = {"policy": f"{PLACE}:{policy.__name__}", "max_batched_tokens": 100, **engine}
    simulate(config([pool("m", "mixed")], engine=fields), ROWS)


@pytest.mark.parametrize(("policy", "text"), WRONG)
def test_a_wrong_policy_is_named_with_the_rule_that_it_breaks(policy: type[Policy], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"policy {PLACE}:{policy.__name__}: {text}")) as found:
        run(policy)
    assert "\n" not in str(found.value)


def test_an_instance_that_has_failed_is_no_excuse_for_a_policy_on_another() -> None:
    fields = {"policy": f"{PLACE}:RunsNothing", "max_batched_tokens": 100}
    fault = {"kind": "instance", "instance": "m-0", "at_s": 0.0}
    with pytest.raises(InputError, match="RunsNothing: progress: found nothing to run on m-1 rank 0"):
        simulate(config([pool("m", "mixed", instances=2)], engine=fields, faults=[fault]), ROWS)


def test_blocks_and_sequences_are_limits_too() -> None:
    """9 blocks of 16 tokens; a prompt of 40 needs 3, and its fifth token none more."""
    with pytest.raises(InputError, match="blocks: request r2 needs 3 KV blocks, expected at most the 2 that are free"):
        run(RunsAll, max_batched_tokens=200, num_kv_blocks=9)
    with pytest.raises(InputError, match="sequences: request r2 would be one more than the 2 that may run"):
        run(RunsAll, max_batched_tokens=200, max_seqs=2)


class Catches(RunsAll):
    """Tries all, and goes on with what is allowed."""

    def decide(self, rank: RankView, decision: Decision) -> None:
        try:
            super().decide(rank, decision)
        except BrokenRule:
            assert rank.budget_left == 20


def test_what_is_refused_changes_nothing() -> None:
    """80 of 120 prompt tokens in the first step; the third request waits for the second."""
    fields = {"policy": f"{PLACE}:Catches", "max_batched_tokens": 100}
    result = simulate(config([pool("m", "mixed")], engine=fields), ROWS)
    first, second, third = result.requests
    assert first.scheduled_ps == second.scheduled_ps < third.scheduled_ps


@pytest.mark.parametrize("name", ["finish", "credit", "add", "run", "schedule", "admit_remote"])
def test_methods_that_would_never_be_called_are_refused_with_the_class(name: str) -> None:
    with pytest.raises(TypeError, match=f"policy Mine: found a method '{name}', which would never be called"):
        type("Mine", (RunsAll,), {name: lambda self: None})


@pytest.mark.parametrize(("name", "arguments"), [("decide", "(self, rank, decision)"), ("is_steady", "(self, rank)")])
def test_methods_of_another_shape_are_refused_with_the_class(name: str, arguments: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"Mine: found {name}(self), expected {name}{arguments}")):
        type("Mine", (RunsAll,), {name: lambda self: None})


def test_the_policy_of_the_core_has_no_subclasses() -> None:
    with pytest.raises(TypeError, match="VllmV1 decides in C\\+\\+, which a subclass cannot change: fork"):
        type("Mine", (VllmV1,), {})


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("", "mine.py:Mine", "engine.policy: found nothing as 'Mine' in"),
        ("Mine = 3", "mine.py:Mine", "engine.policy: found 3 as 'Mine' in"),
        ("class Mine: ...", "mine.py:Mine", "engine.policy: found a class Mine as 'Mine' in"),
        ("raise SystemExit(0)", "mine.py:Mine", "mine.py: SystemExit: 0 (mine.py:1)"),
        ("1 / 0", "mine.py:Mine", "mine.py: ZeroDivisionError: division by zero (mine.py:1)"),
        ("def", "mine.py:Mine", "mine.py: SyntaxError: invalid syntax"),
        ("from vidur_pd.scheduling import VllmV1\nclass Mine(VllmV1): ...", "mine.py:Mine", "decides in C++"),
        (None, "mine.py:Mine", "mine.py: found no such file"),
        (None, "no_such.module:Mine", "engine.policy: no_such.module: found no such module"),
        (
            None,
            "fcfs",
            "engine.policy: found 'fcfs', expected one of vllm_v1, vllm_v0, sarathi, orca, faster_transformer, "
            "lightllm, sglang, trtllm, splitwise, module:Class, file.py:Class",
        ),
    ],
)
def test_what_is_no_policy_is_refused_before_simulated_time_starts(
    text: str | None, name: str, expected: str, tmp_path: Path
) -> None:
    """By the command line: exit code 2, one line."""
    tree = config([pool("m", "mixed")]).model_dump(mode="json", exclude_unset=True)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**tree, "engine": {"policy": name}}))
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    done = run_forked("vidur_pd", "run", tmp_path / "c.yaml", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert expected in done.stderr


def test_a_policy_beside_the_configuration_is_found_and_never_written_over(tmp_path: Path) -> None:
    """It is run from another folder; its own line is named when it is wrong."""
    tree = config([pool("m", "mixed")]).model_dump(mode="json", exclude_unset=True)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**tree, "engine": {"policy": "report.html.py:Mine"}}))
    source = "from vidur_pd.scheduling import Policy\n\nclass Mine(Policy):\n    def decide(self, rank, decision):\n"
    (tmp_path / "report.html.py").write_text(source + "        decision.run(rank.waiting[0], 0)\n")
    command = [sys.executable, "-m", "vidur_pd", "run", str(tmp_path / "c.yaml"), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    line = "policy report.html.py:Mine: tokens: request 0 is to compute 0 tokens, expected 1 to 1 (report.html.py:5)\n"
    assert done.stderr.endswith(line)
    assert not (tmp_path / "out" / "summary.json").exists()
