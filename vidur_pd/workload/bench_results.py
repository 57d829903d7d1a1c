"""Rows of what serving benchmarks write: one JSON object with a list per figure.

``vllm bench serve --save-result --save-detailed`` (vLLM, ``vllm/benchmarks/serve.py``) and SGLang's ``bench_serving.py
--output-file --output-details`` both have ``input_lens`` and ``output_lens``; newer versions of vLLM also
``start_times``, in seconds of a clock that begins anywhere. A request that failed has no output.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from boundary.errors import InputError
from boundary.json_text import json_decoder, parse_json
from boundary.quoting import quoted

STARTS, INPUTS, OUTPUTS = "start_times", "input_lens", "output_lens"


class BenchRow(NamedTuple):
    """Raw values of one request."""

    arrival: object
    """``None`` where the file does not say."""
    prefill: object
    decode: object


def bench_rows(text: str, path: Path) -> list[BenchRow]:
    """The requests of a result, in the order in which they were sent.

    Raises: InputError, naming file, field, found and expected.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    decoder = json_decoder(parse_float=Decimal)
    result = parse_json(lines[0], f"{path}: line 1", "the result of a benchmark", decoder)
    if len(lines) > 1:
        raise InputError(f"{path}: found {len(lines)} results, expected one (a file of its own for each run)")
    if not isinstance(result, dict):
        raise InputError(f"{path}: found {quoted(result)}, expected the result of a benchmark, an object")
    inputs, outputs = (_list(result, name, path) for name in (INPUTS, OUTPUTS))
    starts = _list(result, STARTS, path) if STARTS in result else [None] * len(inputs)
    for name, values in ((OUTPUTS, outputs), (STARTS, starts)):
        if len(values) != len(inputs):
            raise InputError(f"{path}: {name}: found {len(values)} values, expected {len(inputs)} (as {INPUTS})")
    rows = [BenchRow(*row) for row in zip(starts, inputs, outputs, strict=True)]
    if all(isinstance(start, int | Decimal) and not isinstance(start, bool) for start in starts):
        rows.sort(key=lambda row: row.arrival)  # type: ignore[arg-type, return-value]
    return rows


def _list(result: dict[str, Any], name: str, path: Path) -> list[Any]:
    found = result.get(name)
    if not isinstance(found, list):
        expected = "a list (a result with details: --save-detailed, or --output-details)"
        raise InputError(f"{path}: {name}: found {'nothing' if found is None else quoted(found)}, expected {expected}")
    return found
