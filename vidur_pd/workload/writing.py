"""Writing workloads as traces. Files appear whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from boundary.errors import InputError
from boundary.output_files import check_output, write_atomically
from vidur_pd.workload.formats import MOONCAKE_BLOCK_TOKENS
from vidur_pd.workload.workload import Workload

WritableFormat = Literal["csv", "vidur", "mooncake"]


def write_trace(workload: Workload, path: Path, trace_format: WritableFormat | None = None) -> None:
    """Writes a workload; ``None`` chooses by suffix: ``.csv`` → csv, ``.jsonl`` → mooncake, either with ``.gz``.

    ``csv`` and ``mooncake`` keep everything, to the picosecond; ``vidur`` has no place for ids and prompt blocks. Equal
    workloads give equal bytes, compressed or not.

    Raises:
        InputError: no format has this suffix, or no file can be there.
        OutputError: the disk is full.
    """
    check_output(path)
    if workload.pacing is not None:
        raise InputError(
            "workload: found requests that wait for others to end, expected arrival times that are known before "
            "(simulate it: requests.csv has them)"
        )
    match trace_format or _format_of(path):
        case "csv":
            text = _table(_csv_rows(workload))
        case "vidur":
            text = _table(_vidur_rows(workload))
        case "mooncake":
            text = "".join(_json_lines(workload))
    data = text.encode()
    # A fixed time stamp and no file name in the gzip header: the bytes depend on the workload only.
    write_atomically(path, gzip.compress(data, compresslevel=9, mtime=0) if path.suffix == ".gz" else data)


def _format_of(path: Path) -> WritableFormat:
    match Path(path.name.removesuffix(".gz")).suffix:
        case ".csv":
            return "csv"
        case ".jsonl":
            return "mooncake"
    raise InputError(f"{path}: found suffix {path.suffix!r}, expected .csv or .jsonl, optionally with .gz")


def _table(rows: Iterator[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _csv_rows(workload: Workload) -> Iterator[list[str]]:
    hashes = workload.block_hashes
    states_size = hashes is not None and hashes.block_tokens != MOONCAKE_BLOCK_TOKENS
    header = ["request_id", "arrived_at_s", "prefill_tokens", "decode_tokens"]
    more = _more(workload)
    yield [*header, *["hash_ids"] * (hashes is not None), *["hash_block_tokens"] * states_size, *more]
    for i, (request_id, arrived_ps, prefill, decode) in enumerate(_requests(workload)):
        row = [request_id, _decimal(arrived_ps, 12), str(prefill), str(decode)]
        if hashes is not None:
            row.append(";".join(map(str, hashes.of(i).tolist())))
            row += [str(hashes.block_tokens)] * states_size
        yield [*row, *(str(values[i]) for values in more.values())]


def _more(workload: Workload) -> dict[str, list[Any]]:
    """[requests] by name: what only some workloads have."""
    found: dict[str, list[Any]] = {}
    hashes, sessions = workload.block_hashes, workload.sessions
    if hashes is not None and hashes.hashed_tokens is not None:
        found["hashed_tokens"] = hashes.hashed_tokens.tolist()
    if sessions is not None:
        found |= {"session": sessions.session.tolist(), "turn": sessions.turn.tolist()}
    if workload.classes is not None:
        found["class"] = workload.classes.name_of.tolist()
    if workload.priority is not None:
        found["priority"] = workload.priority.tolist()
    if workload.max_output_tokens is not None:
        found["max_output_tokens"] = workload.max_output_tokens.tolist()
    return found


def _vidur_rows(workload: Workload) -> Iterator[list[str]]:
    yield ["arrived_at", "num_prefill_tokens", "num_decode_tokens"]
    for _, arrived_ps, prefill, decode in _requests(workload):
        yield [_decimal(arrived_ps, 12), str(prefill), str(decode)]


def _json_lines(workload: Workload) -> Iterator[str]:
    hashes = workload.block_hashes
    more = _more(workload)
    are_numbered = all(request_id == str(i) for i, request_id in enumerate(workload.request_ids))
    for i, (request_id, arrived_ps, prefill, decode) in enumerate(_requests(workload)):
        record: dict[str, object] = {"input_length": prefill, "output_length": decode}
        if not are_numbered:
            record["request_id"] = request_id
        if hashes is not None:
            record["hash_ids"] = hashes.of(i).tolist()
            if hashes.block_tokens != MOONCAKE_BLOCK_TOKENS:
                record["hash_block_tokens"] = hashes.block_tokens
        record |= {name: values[i] for name, values in more.items()}
        # The time is put in as text: a double would lose picoseconds after an hour or so.
        yield f'{{"timestamp": {_decimal(arrived_ps, 9)}, {json.dumps(record)[1:]}\n'


def _requests(workload: Workload) -> Iterator[tuple[str, int, int, int]]:
    return zip(
        workload.request_ids,
        workload.arrived_ps.tolist(),
        workload.prefill_tokens.tolist(),
        workload.decode_tokens.tolist(),
        strict=True,
    )


def _decimal(value: int, digits: int) -> str:
    """``value / 10**digits`` in decimals, exactly."""
    whole, fraction = divmod(value, 10**digits)
    return f"{whole}.{fraction:0{digits}d}".rstrip("0").rstrip(".") if fraction else str(whole)
