"""Request traces: CSV and JSON lines in every format, plain and gzip-compressed."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any, Final

from tests.fuzz import hostile
from tests.fuzz.case import Case, Special
from tests.fuzz.mutation import as_csv, as_json, cells_of, document, few, mutated, mutated_cells, option_value

TABLES: Final = {
    "csv": "request_id,arrived_at_s,prefill_tokens,decode_tokens,hash_ids,hash_block_tokens,session,turn,class,"
    "priority\n"
    "a,0,600,4,1;2,512,1,1,x,0\nb,0.5,700,3,1;3,512,1,2,x,-1\nc,1.25,60,5,7,512,2,1,,3\n",
    "vidur": "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,100,10\n1.5,200,20\n",
    "vidur_lengths": "num_prefill_tokens,num_decode_tokens\n100,10\n200,20\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n"
    "2023-11-16 18:17:04.0319600,396,109\n2024-05-10 00:00:00.009930+00:00,2162,5\n",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118,ChatGPT,417,276,693,Conversation log\n",
}
RECORDS: Final[dict[str, list[dict[str, Any]]]] = {
    "mooncake": [
        {"timestamp": 0, "input_length": 600, "output_length": 52, "hash_ids": [0, 1], "request_id": "a"},
        {"timestamp": 1500.5, "input_length": 700, "output_length": 26, "hash_ids": [0, 2], "hash_block_tokens": 512},
    ],
    "qwen_bailian": [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 30, "output_length": 5, "type": "text",
         "turn": 1, "hash_ids": [1, 2]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 1.5, "input_length": 40, "output_length": 6, "type": "text",
         "turn": 2, "hash_ids": [1, 2, 3]},
    ],
    "bench": [
        {"duration": 3.5, "input_lens": [100, 200, 300], "output_lens": [10, 0, 30], "start_times": [5.5, 6, 5.75]},
    ],
}  # fmt: skip
NAMES: Final = ("request_id", "arrived_at_s", "prefill_tokens", "decode_tokens", "hash_ids", "hash_block_tokens",
                "TIMESTAMP", "Timestamp", "timestamp", "chat_id", "num_prefill_tokens", "status", "session",
                "turn", "class", "priority", "hashed_tokens",
                "max_output_tokens", "parent_chat_id", "input_lens", "output_lens", "start_times")  # fmt: skip
DATES: Final = (
    "0000-01-01 00:00:00", "9999-12-31 23:59:59.999999999999", "2023-02-30 00:00:00", "2023-01-01 24:00:00",
    "2023-01-01 00:00:60", "2023-01-01T00:00:00Z", "2023-01-01 00:00:00+99:99", "0001-01-01 00:00:00+23:59",
    "9999-12-31 23:59:59-23:59", "٢٠٢٣-01-01 00:00:00", "2023-01-01 00:00:00.", "2023-1-1 0:0:0",
)  # fmt: skip
CONFIGURATION: Final = """seed: 0
model: qwen3-8b
hardware: h200
workload: {kind: trace, path: %s%s}
cluster:
  topology: {kind: single_switch}
  pools: [{name: m, role: mixed}]
engine: {prefix_caching: true}
"""


def generate(rng: random.Random) -> Case:
    """A command that reads a trace."""
    form, content = trace(rng)
    suffix = "jsonl" if form in RECORDS else "csv"
    name = f"t.{suffix}" + (".gz" if content[:2] == b"\x1f\x8b" else "")
    files: dict[str, bytes | Special] = {name: content}
    if rng.random() < 0.03:
        files[name] = rng.choice(list(Special))
    as_form = rng.choice(("auto", "auto", form, form, *TABLES, *RECORDS))
    match rng.randrange(11):
        case 10:
            files["t.yaml"] = b"seed: 0\n"
            form_of_lengths = rng.choice(((), ("--lengths", "lognormal"), ("--no-prefixes",), ("--json",)))
            fit = ("vidur-pd", "workload", "fit", name, "-o", "t.yaml", "--format", as_form, *form_of_lengths)
            return Case(fit, files, ("t.yaml",))
        case 0 | 1 | 2:
            more = ("--json",) if rng.random() < 0.3 else ()
            return Case(("vidur-pd", "workload", "inspect", name, "--format", as_form, *more), files)
        case 3 | 4 | 5 | 6:
            output = rng.choice(("w.csv", "w.jsonl", "w.csv.gz", "w.jsonl.gz", "w.txt", name, "x" * 300 + ".csv", ""))
            to = rng.choice(((), (), ("--to", "vidur"), ("--to", "mooncake"), ("--to", option_value(rng))))
            outputs = (output,) if output else ()
            return Case(
                ("vidur-pd", "workload", "convert", name, "-o", output, "--format", as_form, *to), files, outputs
            )
        case _:
            more = rng.choice(
                ("", ", arrivals: {kind: static}", ", skip_zero_output: true", ", limit: 2", ", sessions: {}",
                 ", arrivals: {kind: closed, clients: 1}, sessions: {}")
            )  # fmt: skip
            files["c.yaml"] = (CONFIGURATION % (name, more)).encode()
            command = rng.choice(
                (("run", "c.yaml", "-o", "out", "--quiet"), ("workload", "generate", "c.yaml", "-o", "w.csv"))
            )
            stream = ("--stream",) if command[0] == "run" and rng.random() < 0.3 else ()
            return Case(("vidur-pd", *command, *stream), files, ("out", "w.csv"))


def trace(rng: random.Random) -> tuple[str, bytes]:
    """Format and content."""
    form = rng.choice((*TABLES, *RECORDS))
    content = document(rng, lambda: _records(form, rng) if form in RECORDS else _table(form, rng))
    return form, gzip.compress(content, mtime=0) if rng.random() < 0.1 else content


def _table(form: str, rng: random.Random) -> bytes:
    grid = mutated_cells(cells_of(TABLES[form], ","), rng, NAMES)
    if rng.random() < 0.1 and len(grid) > 1 and grid[1]:
        grid[1][0] = rng.choice(DATES)
    return as_csv(grid, rng)


def _records(form: str, rng: random.Random) -> bytes:
    records = RECORDS[form]
    lines = [json.dumps(record).encode() for record in records]
    for _ in range(few(rng)):
        at = rng.randrange(len(lines))
        match rng.randrange(8):
            case 0:
                lines[at] = rng.choice((b"[]", b"5", b"null", b'"a"', b"{}", b"{", b"", b"nan", b'{"timestamp": 0}{}'))
            case 1:
                lines[at] = rng.choice((hostile.deep_sequences(100_000), hostile.deep_mappings(100_000))).encode()
            case 2:
                lines[at:at] = [lines[at]] * rng.choice((1, 2, 100))
            case _:
                lines[at] = as_json(mutated(records[at % len(records)], rng, NAMES), rng).replace(b"\n", b" ")
    return b"\n".join(lines) + b"\n"
