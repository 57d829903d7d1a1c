"""Small cases of `tests.fuzz.kinds.collectives` by name: those that once went wrong, and their neighbours."""

from __future__ import annotations

import json
from typing import Any, Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.kinds.collectives import CALIBRATION, MEASURED, NCCL_TESTS, OPS, TABLE, WORKLOAD
from tests.samples import BUSBW

_TIME: Final = ("--op", "all_reduce", "--bytes", "1MiB", "--ranks", "8")


def _table(text: str, *more: str) -> Case:
    return Case(("simccl", "time", "--table", "t.csv", "-o", "o.csv", *more), {"t.csv": text.encode()}, ("o.csv",))


def _workload(text: str, *more: str) -> Case:
    return Case(("simccl", "time", "--workload", "w.txt", "-o", "o.csv", *more), {"w.txt": text.encode()}, ("o.csv",))


def _busbw(text: str) -> Case:
    return Case(("simccl", "time", *_TIME, "--busbw", "b.yaml", "--json"), {"b.yaml": text.encode()})


def _calibrated(text: str) -> Case:
    return Case(("simccl", "time", *_TIME, "--calibration", "c.json", "--json"), {"c.json": text.encode()})


def _fit(**changes: Any) -> Case:
    fits = [row | changes for row in CALIBRATION["fits"]]
    return _calibrated(json.dumps(CALIBRATION | {"fits": fits}))


def _measured(text: str, *more: str) -> Case:
    return Case(("simccl", "calibrate", "m.txt", "-o", "c.json", *more), {"m.txt": text.encode()}, ("c.json",))


def _row(row: str) -> Case:
    return _measured(MEASURED + row + "\n")


def _plan(verb: str, op: str, ranks: str, size: str = "1MiB", *more: str) -> Case:
    output = ("-o", "p.csv") if verb == "plan" else ()
    return Case(("simccl", verb, "--op", op, "--bytes", size, "--ranks", ranks, *output, *more), {}, ("p.csv",))


CASES: Final[dict[str, Case]] = {
    "long-word-of-nccl-tests": _measured(NCCL_TESTS.replace("NVIDIA", "y" * 1_000_000, 1)),
    "much-space-of-nccl-tests": _measured(NCCL_TESTS.replace("Rank", " " * 200_000 + "Rank", 1)),
    "many-words-of-nccl-tests": _measured(NCCL_TESTS.replace("Group", "on " * 100_000, 1)),
    "many-digits-of-nccl-tests": _measured(NCCL_TESTS.replace("1024", "9" * 5000, 1)),
    "other-digits-of-nccl-tests": _measured(NCCL_TESTS.replace("1024", "²", 1)),
    "empty-csv": _measured(",,,\n"),
    "only-a-header": _measured(MEASURED.splitlines()[0] + "\n"),
    "long-cell": _measured(MEASURED + "y" * 200_000 + ",half,8,1,1,1,auto,auto,graph\n"),
    "many-ranks": _row("all_gather,half,9007199254740993,1024,10,1,auto,auto,graph"),
    "no-ranks": _row("all_gather,half,0.5,1024,10,1,auto,auto,graph"),
    "many-nodes": _row("all_gather,half,8,1024,10,1e160,auto,auto,graph"),
    "large-message": _row("all_gather,half,8,4611686018427387903,10,1,auto,auto,graph"),
    "long-time": _row("all_gather,half,8,65536,1e18,1,auto,auto,graph"),
    "short-time": _row("all_gather,half,8,65536,1e-12,1,auto,auto,graph"),
    "infinite-time": _row("all_gather,half,8,65536,inf,1,auto,auto,graph"),
    "wrong-algorithm": _row("all_gather,half,8,65536,10,1,pat,auto,graph"),
    "source-that-is-no-text": _measured(MEASURED, "--source", "\udcff"),
    "source-of-a-kilometre": _measured(MEASURED, "--source", "x" * 100_000),
    "output-is-input": Case(("simccl", "calibrate", "m.txt", "-o", "m.txt"), {"m.txt": MEASURED.encode()}),
    "long-output": Case(("simccl", "calibrate", "m.txt", "-o", "x" * 300), {"m.txt": MEASURED.encode()}),
    "empty-pipe": Case(("simccl", "calibrate", "m.txt", "-o", "c.json"), {"m.txt": Special.FIFO}),
    **{
        f"{name}={value:g}": _fit(**{name: value})
        for name, values in {
            "exponent": (0, -1, 1e-320, 1e308, 50),
            "latency_factor": (0, -1, 1e308, 1e-320),
            "latency_growth": (-2, 1e308),
            "transfer_factor": (-1, 1e308),
            "channel_gbytes_per_s": (0, -1, 1e-320),
            "ranks": (0, -1, 2**63, 1e300),
            "nodes": (0, 2**63),
            "points": (1e300, -1),
        }.items()
        for value in values
    },
    "exponent-of-no-number": _calibrated(json.dumps(CALIBRATION).replace("1.016", "NaN")),
    "exponent-beyond-floats": _calibrated(json.dumps(CALIBRATION).replace("1.016", "1e400")),
    "points-beyond-floats": _calibrated(json.dumps(CALIBRATION).replace('"points": 12', '"points": 1e400')),
    "many-digits-of-points": _calibrated(json.dumps(CALIBRATION).replace('"points": 12', '"points": ' + "9" * 5000)),
    "deep-calibration": _calibrated(hostile.deep_sequences(100_000)),
    "calibration-is-a-list": _calibrated("[]"),
    "fits-are-a-number": _calibrated('{"gpu": "h100", "source": "", "fits": 5}'),
    "fits-of-numbers": _calibrated('{"gpu": "h100", "source": "", "fits": [5]}'),
    "also-a-long-name": _calibrated(json.dumps(CALIBRATION | {"also": "x" * 300})),
    "also-elsewhere": _calibrated(json.dumps(CALIBRATION | {"also": "../../../.."})),
    "also-a-list": _calibrated(json.dumps(CALIBRATION | {"also": ["h100"]})),
    "also-nul": _calibrated(json.dumps(CALIBRATION | {"also": "\0"})),
    "busbw-zero": _busbw(BUSBW.replace("300", "0")),
    "busbw-tiny": _busbw(BUSBW.replace("300", "1e-320")),
    "busbw-negative": _busbw(BUSBW.replace("300", "-1")),
    "busbw-infinite": _busbw(BUSBW.replace("300", "inf")),
    "busbw-empty": _busbw(""),
    "busbw-control": _busbw(BUSBW.replace("test", "\x1b[31m").replace("300", "null")),
    "busbw-deep": _busbw("test\n" + hostile.deep_sequences(40_000)),
    "table-long-cell": _table(TABLE + "y" * 200_000 + ",1,8,1,h100,tp\n"),
    "table-nul": _table(TABLE.replace("tp", "\0")),
    "table-empty": _table(""),
    "table-blank": _table("\n\n,,\n"),
    "table-column-twice": _table("op,bytes,ranks,nodes,gpu,op\nall_reduce,1,8,1,h100,x\n"),
    "table-long-group": _table(TABLE.replace("tp", "x" * 200_000)),
    "table-many-digits": _table(TABLE.replace("4096", "9" * 5000)),
    "table-large": _table(f"op,bytes,ranks,nodes,gpu\nall_reduce,{2**62 - 1},1000000,1,h100\n"),
    "table-larger": _table(f"op,bytes,ranks,nodes,gpu\nall_to_all,{2**62},1000000,1000000,h100\n"),
    "workload-many-layers": _workload(WORKLOAD.replace("\n3\n", f"\n{2**63}\n")),
    "workload-many-digits": _workload(WORKLOAD.replace("\n3\n", f"\n{'9' * 5000}\n")),
    "workload-other-digits": _workload(WORKLOAD.replace("\n3\n", "\n٣\n")),
    "workload-superscript": _workload(WORKLOAD.replace("\n3\n", "\n²\n")),
    "workload-header-only": _workload(WORKLOAD.splitlines()[0] + "\n"),
    "workload-many-gpus": _workload(WORKLOAD.replace("all_gpus: 64", "all_gpus: 1000000").replace("pp: 2", "pp: 1")),
    "workload-more-gpus": _workload(WORKLOAD.replace("all_gpus: 64", "all_gpus: 9223372036854775808")),
    "workload-large": _workload(WORKLOAD.replace("1048576", str(2**62 - 1))),
    "workload-wide-nodes": _workload(WORKLOAD, "--gpus-per-node", "9223372036854775808"),
    "workload-odd-nodes": _workload(WORKLOAD, "--gpus-per-node", "3"),
    **{
        f"{verb}-{op}-{ranks}": _plan(verb, op, ranks)
        for verb in ("plan", "verify")
        for op in OPS
        for ranks in ("1000000", "32768", "1000000000000")
    },
    **{f"{verb}-{op}-large": _plan(verb, op, "64", "1PB") for verb in ("plan", "verify") for op in OPS},
    "plan-large-coarsened": _plan("plan", "all_reduce", "8", "1PB", "--coarsen", "1"),
    "plan-coarsen-many": _plan("plan", "all_reduce", "8", "1MiB", "--coarsen", "9223372036854775808"),
    "verify-coarsen": _plan("verify", "all_reduce", "8", "1TiB", "--coarsen", "1"),
    "plan-coarsen-tree": _plan(
        "plan", "all_reduce", "16", "1TiB", "--nodes", "2", "--algorithm", "tree", "--coarsen", "1"
    ),
    "plan-nvls-tree": _plan("plan", "all_reduce", "32768", "1GiB", "--nodes", "4096", "--algorithm", "nvls_tree"),
    "plan-pat": _plan("plan", "all_gather", "32768", "1GiB", "--nodes", "32768", "--algorithm", "pat"),
    "verify-pat": _plan("verify", "all_gather", "4096", "1GiB", "--nodes", "4096", "--algorithm", "pat"),
    "verify-one-shot": _plan("verify", "all_reduce", "8", "1", "--algorithm", "one_shot", "--stack", "vllm"),
    "plan-root": _plan("plan", "broadcast", "8", "1", "--root", "9223372036854775808"),
    "plan-long-output": Case(("simccl", "plan", *_TIME, "-o", "x" * 300 + ".csv")),
    "plan-long-format": _plan("plan", "all_reduce", "8", "1", "--format", "x" * 100_000),
    "time-many-digits": Case(("simccl", "time", "--op", "all_reduce", "--bytes", "9" * 5000, "--ranks", "8")),
    "time-huge-size": Case(("simccl", "time", "--op", "all_reduce", "--bytes", "16777216TiB", "--ranks", "8")),
    "time-ranks-digits": Case(("simccl", "time", "--op", "all_reduce", "--bytes", "1", "--ranks", "9" * 5000)),
    "time-long-op": Case(("simccl", "time", "--op", "x" * 100_000, "--bytes", "1", "--ranks", "8")),
}

WENT_WRONG: Final = frozenset(
    {
        "long-word-of-nccl-tests",
        "many-ranks",
        "many-nodes",
        "long-time",
        "output-is-input",
        "long-output",
        "exponent=0",
        "exponent=1e+308",
        "points-beyond-floats",
        "also-a-long-name",
        "plan-all_reduce-1000000",
        "plan-all_reduce-32768",
        "plan-all_gather-1000000",
        "plan-all_gather-32768",
        "plan-reduce_scatter-1000000",
        "plan-reduce_scatter-32768",
        "plan-all_to_all-1000000",
        "plan-all_to_all-32768",
        "plan-broadcast-1000000",
        "plan-broadcast-32768",
        "plan-reduce-1000000",
        "plan-reduce-32768",
        "plan-send_recv-1000000",
        "plan-send_recv-32768",
        "verify-all_reduce-1000000",
        "verify-all_reduce-32768",
        "verify-all_gather-1000000",
        "verify-all_gather-32768",
        "verify-reduce_scatter-1000000",
        "verify-reduce_scatter-32768",
        "verify-all_to_all-1000000",
        "verify-all_to_all-32768",
        "verify-broadcast-1000000",
        "verify-reduce-1000000",
        "verify-send_recv-1000000",
        "verify-send_recv-32768",
        "plan-large-coarsened",
        "plan-coarsen-many",
        "verify-coarsen",
        "plan-coarsen-tree",
        "plan-nvls-tree",
        "plan-pat",
        "verify-pat",
        "plan-long-output",
    }
)
"""The others never did, and run with ``--long``."""
