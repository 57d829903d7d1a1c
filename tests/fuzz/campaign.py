"""Many cases of one kind from consecutive seeds, counted, with the findings sorted by cause."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from tests.fuzz.case import Case, Outcome, Verdict
from tests.fuzz.commands import Commands, judged

KINDS = ("configurations", "traces", "topologies", "flows", "collectives", "models", "results")


@dataclass(slots=True)
class Tally:
    """Outcomes of a campaign."""

    counts: Counter[Verdict] = field(default_factory=Counter)
    findings: dict[str, list[tuple[int, Case, Outcome]]] = field(default_factory=dict)
    """By cause; of each a few, the shortest first."""
    numbers: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, case: Case, outcome: Outcome) -> str | None:
        """Counts a case; the cause if it is a new one."""
        verdict, cause = judged(case, outcome)
        self.counts[verdict] += 1
        if verdict in (Verdict.OK, Verdict.REFUSED):
            return None
        cause = cause if verdict is Verdict.FINDING else f"{verdict}: {cause}"
        self.numbers[cause] += 1
        found = self.findings.setdefault(cause, [])
        found.append((seed, case, outcome))
        found.sort(key=lambda item: len(item[1].shown()))
        del found[3:]
        return cause if self.numbers[cause] == 1 else None


def cases(kind: str, first_seed: int) -> Iterator[tuple[int, Case]]:
    """Case after case, each from its seed."""
    generate = import_module(f"tests.fuzz.kinds.{kind}").generate
    seed = first_seed
    while True:
        case = generate(random.Random(f"{kind} {seed}"))
        if case.is_possible():
            yield seed, case
        seed += 1


def campaign(kind: str, minutes: float, first_seed: int, commands: Commands) -> Tally:
    """Cases of a kind for some minutes; new causes are told on standard error as they come."""
    tally = Tally()
    end_s = time.monotonic() + 60 * minutes
    for seed, case in cases(kind, first_seed):
        if time.monotonic() > end_s:
            return tally
        try:
            outcome = commands.run(case)
        except OSError as error:  # such as a name that no file system takes
            sys.stderr.write(f"{kind} {seed}: not run: {ascii(error)[:200]}\n")
            continue
        if (cause := tally.add(seed, case, outcome)) is not None:
            sys.stderr.write(f"{kind} {seed}: {cause}\n")
    raise AssertionError


def report(kind: str, tally: Tally, file: Path | None = None) -> str:
    """Counts, and causes with their shortest case."""
    counts = ", ".join(f"{tally.counts[verdict]} {verdict}" for verdict in Verdict)
    lines = [f"{kind}: {tally.counts.total()} cases: {counts}"]
    for cause, number in tally.numbers.most_common():
        seed, case, outcome = tally.findings[cause][0]
        ended = f"exit {outcome.exit_code}, {outcome.cpu_s:.1f} s"
        message = outcome.stderr.decode(errors="replace")[-300:]
        lines += [f"- {number} × {cause}", f"  seed {seed} ({ended})", f"  {case.shown()}", f"  stderr: {message!r}"]
    text = "\n".join(lines) + "\n"
    if file is not None:
        file.write_text(text)
    return text
