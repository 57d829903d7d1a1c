"""Small cases of `tests.fuzz.kinds.traces` by name: those that once went wrong, and their neighbours."""

from __future__ import annotations

import gzip
import json
from typing import Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.kinds.traces import DATES, RECORDS, TABLES


def _inspect(text: str | bytes, name: str = "t.csv", form: str = "auto") -> Case:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return Case(("vidur-pd", "workload", "inspect", name, "--format", form), {name: content})


def _convert(text: str | bytes, name: str = "t.csv", output: str = "w.csv", *more: str) -> Case:
    content = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return Case(("vidur-pd", "workload", "convert", name, "-o", output, *more), {name: content}, (output,))


def _row(cells: str) -> Case:
    return _convert(f"arrived_at_s,prefill_tokens,decode_tokens\n{cells}\n")


_LINE: Final = json.dumps(RECORDS["mooncake"][0])

CASES: Final[dict[str, Case]] = {
    "no-known-format": _inspect("0.5,100,10\n"),
    "long-header": _inspect("arrived_at_s," + "y" * 200_000 + "\n", form="csv"),
    "control-in-header": _inspect("\x1b[31m,a\n", form="csv"),
    "long-cell": _row("0,1," + "9" * 200_000),
    "long-time": _row("9" * 200_000 + ",1,1"),
    **{
        f"time-{value[:9]}": _row(f"{value},1,1")
        for value in (
            "1e400",
            "1e-400",
            "1e999999999",
            "-1",
            "nan",
            "sNaN",
            "inf",
            "9" * 5000,
            "1e15",
            "4000001",
            "١٢",
            "1_000",
            "-0.0",
            "1e-999999999",
        )
    },
    **{
        f"tokens-{value[:9]}": _row(f"0,{value},1")
        for value in ("2147483647", "2147483648", "9" * 5000, "1e9", "1.5", "-1", "0", "١٢", "²", "")
    },
    **{f"date-{value}": _convert(TABLES["azure"].replace("2023-11-16 18:17:03.9799600", value)) for value in DATES},
    "deep-line": _inspect(_LINE + "\n" + hostile.deep_sequences(100_000) + "\n", "t.jsonl"),
    "deep-line-first": _inspect(hostile.deep_mappings(100_000) + "\n", "t.jsonl"),
    "deep-value": _inspect(_LINE.replace("600", hostile.deep_sequences(900)) + "\n", "t.jsonl"),
    "key-twice": _inspect(_LINE[:-1] + ', "timestamp": 5}\n', "t.jsonl"),
    "many-digits": _inspect(_LINE.replace("600", "9" * 5000) + "\n", "t.jsonl"),
    "many-digits-of-time": _inspect(_LINE.replace(": 0,", ": " + "9" * 5000 + ",") + "\n", "t.jsonl"),
    "not-a-number": _inspect(_LINE.replace("600", "NaN") + "\n", "t.jsonl"),
    "infinite-time": _inspect(_LINE.replace(": 0,", ": Infinity,") + "\n", "t.jsonl"),
    "large-exponent": _inspect(_LINE.replace(": 0,", ": 1e999999999,") + "\n", "t.jsonl"),
    "hash-ids-of-lists": _inspect(_LINE.replace("[0, 1]", "[[0], {}]") + "\n", "t.jsonl"),
    "hash-ids-beyond-64-bits": _inspect(_LINE.replace("[0, 1]", "[9223372036854775808, 1]") + "\n", "t.jsonl"),
    "hash-ids-negative": _inspect(_LINE.replace("[0, 1]", "[-9223372036854775809, 1]") + "\n", "t.jsonl"),
    "hash-ids-fractions": _inspect(_LINE.replace("[0, 1]", "[0.5, 1e300]") + "\n", "t.jsonl"),
    "hash-ids-text": _inspect(_LINE.replace("[0, 1]", '"0;1"') + "\n", "t.jsonl"),
    "hash-ids-object": _inspect(_LINE.replace("[0, 1]", "{}") + "\n", "t.jsonl"),
    "id-of-a-list": _convert(_LINE.replace('"a"', "[[1]]") + "\n", "t.jsonl"),
    "id-surrogate": _convert(_LINE.replace('"a"', '"\\ud800"') + "\n", "t.jsonl"),
    "id-nul": _convert(_LINE.replace('"a"', '"\\u0000"') + "\n", "t.jsonl"),
    "id-return": _convert(_LINE.replace('"a"', '"a\\rb"') + "\n", "t.jsonl"),
    "id-long": _convert(_LINE.replace('"a"', '"' + "x" * 200_000 + '"') + "\n", "t.jsonl"),
    "id-return-in-csv": _convert('request_id,arrived_at_s,prefill_tokens,decode_tokens\n"a\rb",0,1,1\n'),
    "block-tokens": _inspect(_LINE[:-1] + ', "hash_block_tokens": 9223372036854775808}\n', "t.jsonl"),
    "column-twice": _inspect("arrived_at_s,prefill_tokens,decode_tokens,prefill_tokens\n0,1,1,2\n"),
    "lone-quote": _inspect('arrived_at_s,prefill_tokens,decode_tokens\n"0,1,1\n'),
    "lone-return": _inspect("arrived_at_s,prefill_tokens,decode_tokens\r0,1,1\r"),
    "blank-lines-first": _inspect("\n\narrived_at_s,prefill_tokens,decode_tokens\n0,1,1\n"),
    "nul": _inspect("arrived_at_s,prefill_tokens,decode_tokens\n\0,1,1\n"),
    "empty": _inspect(""),
    "utf-16": _inspect("arrived_at_s,prefill_tokens,decode_tokens\n0,1,1\n".encode("utf-16")),
    "gzip": _convert(gzip.compress(TABLES["csv"].encode(), mtime=0), "t.csv.gz"),
    "gzip-cut": _convert(gzip.compress(TABLES["csv"].encode(), mtime=0)[:40], "t.csv.gz"),
    "gzip-bomb": _inspect(gzip.compress(b" " * 300_000_000, mtime=0), "t.csv.gz"),
    "empty-pipe": Case(("vidur-pd", "workload", "inspect", "t.csv"), {"t.csv": Special.FIFO}),
    "loop": Case(("vidur-pd", "workload", "inspect", "t.csv"), {"t.csv": Special.LOOP}),
    "folder": Case(("vidur-pd", "workload", "inspect", "t.csv"), {"t.csv": Special.DIRECTORY}),
    "null-device": Case(("vidur-pd", "workload", "inspect", "t.csv"), {"t.csv": Special.NULL_DEVICE}),
    "long-output": Case(
        ("vidur-pd", "workload", "convert", "t.csv", "-o", "x" * 300 + ".csv"), {"t.csv": TABLES["csv"].encode()}
    ),
    "onto-itself": Case(("vidur-pd", "workload", "convert", "t.csv", "-o", "t.csv"), {"t.csv": TABLES["csv"].encode()}),
    "long-format": Case(("vidur-pd", "workload", "inspect", "t.csv", "--format", "x" * 100_000), {"t.csv": b"a"}),
    "long-to": Case(
        ("vidur-pd", "workload", "convert", "t.csv", "-o", "w.csv", "--to", "x" * 100_000), {"t.csv": b"a"}
    ),
}

WENT_WRONG: Final = frozenset(
    {
        "no-known-format",
        "long-header",
        "control-in-header",
        "time-1e9999999",
        "deep-line",
        "deep-line-first",
        "large-exponent",
        "id-surrogate",
        "long-format",
        "long-to",
    }
)
"""The others never did, and run with ``--long``."""
