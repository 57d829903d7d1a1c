"""Couplings against the exact one, and against packets: ``python -m tests.validation.coupling_accuracy [--write]``.

Small clusters of `vidur_pd.commands.validation.coupling` under bursts of prompts. ``--write`` puts the tables into
``docs/accuracy/network.md``, between the markers of this script; it takes about ten minutes.
"""

from __future__ import annotations

import argparse
from typing import Final

from tests.validation.accuracy_document import ACCURACY, written
from vidur_pd.commands.validation.coupling import CASES, COUPLINGS, METRICS, PACKETS, Latencies, run

ON_PACKETS: Final = ("ep-400", "ep-50", "two-100", "over-4", "inside-4", "tp-100")
HEADINGS: Final = ("TTFT", "TTFT p99", "TPOT", "TPOT p99", "KV", "KV p99")


def exact_table(found: dict[str, dict[str, Latencies]]) -> str:
    """Milliseconds of `exact`, and errors of `isolated` and `fluid` against it."""
    lines = [_row("case", "NIC", *HEADINGS), _row(*["---"] * 8)]
    for name, runs in found.items():
        exact = runs["exact"]
        isolated, fluid = (runs[coupling].errors(exact) for coupling in ("isolated", "fluid"))
        cells = [
            f"{getattr(exact, metric):.2f} {_percent(isolated[metric])} / {_percent(fluid[metric])}"
            for metric in METRICS
        ]
        lines.append(_row(CASES[name].what, _nic(name), *cells))
    return "\n".join(lines)


def packet_table(found: dict[str, dict[str, Latencies]]) -> str:
    """Milliseconds of `exact` on `packet`, errors of `fluid` and of `exact` on `fluid` against it, and CPU times."""
    lines = [_row("case", "NIC", *HEADINGS, "CPU, packets / fluid"), _row(*["---"] * 9)]
    for name in ON_PACKETS:
        packets, runs = run(CASES[name], PACKETS), found[name]
        fluid, exact = (runs[coupling].errors(packets) for coupling in ("fluid", "exact"))
        cells = [
            f"{getattr(packets, metric):.2f} {_percent(fluid[metric])} / {_percent(exact[metric])}"
            for metric in METRICS
        ]
        fluid_s = runs["fluid"].cpu_s
        taken = f"{fluid_s:.1f} s" if fluid_s >= 0.1 else "< 0.1 s"
        lines.append(_row(CASES[name].what, _nic(name), *cells, f"{packets.cpu_s:.0f} s / {taken}"))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(error: float) -> str:
    return f"{100 * error:+.1f} %".replace("-", "−")


def _nic(name: str) -> str:
    return str(CASES[name].topology["nic"]).removesuffix("bps")


def main() -> None:
    """Prints the tables, and writes them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy/network.md")
    is_to_write = parser.parse_args().write
    found = {
        name: {coupling: run(case, {"coupling": coupling}) for coupling in COUPLINGS} for name, case in CASES.items()
    }
    for section, table in (("exact", exact_table(found)), ("packets", packet_table(found))):
        print(f"{section}\n\n{table}\n")
        if is_to_write:
            ACCURACY.write_text(written(ACCURACY.read_text(), f"coupling_accuracy: {section}", table))


if __name__ == "__main__":
    main()
