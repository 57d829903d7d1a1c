"""``python -m tests.fuzz --kind flows --minutes 10 --seed 0``: counts of outcomes, findings by cause.

``--replay SEED --keep FOLDER`` writes the files of one case and runs it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.fuzz.campaign import KINDS, campaign, cases, report
from tests.fuzz.commands import Commands, judged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=int)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--report", type=Path, help="Folder for a text per kind.")
    wanted = parser.parse_args()
    kinds = wanted.kind or list(KINDS)
    if wanted.report is not None:
        wanted.report.mkdir(parents=True, exist_ok=True)
    with Commands() as commands:
        if wanted.replay is not None:
            seed, case = next(cases(kinds[0], wanted.replay))
            if wanted.keep is not None:
                case.write(wanted.keep)
            outcome = commands.run(case)
            print(f"{kinds[0]} {seed}\n  {case.shown()}")
            print(*judged(case, outcome), f"exit {outcome.exit_code}, signal {outcome.signal}, {outcome.cpu_s:.1f} s")
            print(
                outcome.stdout.decode(errors="replace")[-2000:],
                outcome.stderr.decode(errors="replace")[-4000:],
                outcome.stack,
            )
            return
        for kind in kinds:
            tally = campaign(kind, wanted.minutes, wanted.seed, commands)
            print(report(kind, tally, wanted.report and wanted.report / f"{kind}.txt").splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
