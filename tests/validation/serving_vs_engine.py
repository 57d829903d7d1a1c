"""Replays measured vLLM serving runs in the simulator and prints how far latencies are apart.

Usage: python -m tests.validation.serving_vs_engine [MEASUREMENT.json.gz]
"""

from __future__ import annotations

import sys
from pathlib import Path

from vidur_pd.commands.validation.serving import Comparison, compare_serving

SERVING = Path(__file__).resolve().parents[3] / "shared" / "data" / "measured" / "serving"


def print_table(title: str, comparisons: list[Comparison]) -> None:
    """One line per run and metric, in milliseconds."""
    print(title)
    print(
        f"{'run':<12}{'requests':>9}{'metric':>8}{'measured ms':>13}{'simulated ms':>14}{'error':>9}{'P90 error':>11}"
    )
    for row in comparisons:
        print(
            f"{row.load:<12}{row.requests:>9}{row.metric:>8}{1e3 * row.measured_s:>13.2f}"
            f"{1e3 * row.simulated_s:>14.2f}{100 * row.error:>8.1f}%{100 * row.p90_error:>10.1f}%"
        )


def main() -> int:
    """Prints the table of one measurement, or of all that are there."""
    paths = [Path(argument) for argument in sys.argv[1:]] or sorted(SERVING.glob("vllm-*-tp1.json.gz"))
    if not paths:
        print(f"no measurement in {SERVING}: nothing to compare with")
        return 1
    for path in paths:
        model = path.name.removeprefix("vllm-").removesuffix("-tp1.json.gz")
        print_table(f"{model}, one H200, vLLM 0.24.0", compare_serving(path, model))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
