"""ServeGen: a folder with, per client, its arrival statistics over time and distributions of its lengths.

``chunk-i-trace.csv`` has no header: begin of a window (s), requests/s, CV of the gaps, ``Gamma``, ``Weibull`` or
nothing, and shape and scale of that distribution. ``chunk-i-dataset.json`` has, by the instant from which on it holds
(s), texts ``{tokens: probability, …}`` of ``input_tokens`` and ``output_tokens``; where they are empty, those before
hold on. Both may end with ``.gz``. (alibaba/ServeGen, 2025; Apache-2.0.)

In each window a client sends rate · length requests, rounded. Their gaps are drawn from the window's distribution, or
are exponential where it has none, and scaled so that they fill the window. Lengths are drawn separately.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boundary.csv_text import csv_rows
from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.quoting import quoted
from boundary.text_files import read_text
from vidur_pd.config.workload import ServeGenWorkload
from vidur_pd.workload.arrivals import to_ps
from vidur_pd.workload.workload import MAX_ARRIVAL_S, MAX_TOKENS, Workload

Reals = NDArray[np.float64]
Streams = Callable[[str], np.random.Generator]
TRACE = re.compile(r"chunk-(\d+)-trace\.csv(?:\.gz)?")
ENTRY = re.compile(r"\s*(\d{1,10})\s*:\s*([0-9.eE+-]{1,30})\s*")
EMPTY = "{}"
MOST_REQUESTS = 20_000_000


@dataclass(frozen=True, slots=True)
class _Window:
    start_s: float
    qps: float
    family: str
    shape: float
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class _Lengths:
    """Token counts with the sums of their probabilities up to each."""

    tokens: NDArray[np.int64]
    cumulative: Reals

    def draw(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        places = np.searchsorted(self.cumulative, random.random(count) * self.cumulative[-1], side="right")
        drawn: NDArray[np.int64] = self.tokens[np.minimum(places, len(self.tokens) - 1)]
        return drawn


def client_files(folder: Path) -> list[tuple[str, Path, Path]]:
    """(number, arrival statistics, lengths) of each client. Raises: InputError, where there are none."""
    found = []
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if match := TRACE.fullmatch(name):
            beginning = f"chunk-{match[1]}-dataset.json"
            lengths = next((other for other in names if other in (beginning, f"{beginning}.gz")), beginning)
            found.append((match[1], folder / name, folder / lengths))
    if not found:
        raise InputError(f"{folder}: found no chunk-…-trace.csv, expected a folder of ServeGen with one per client")
    return sorted(found, key=lambda client: int(client[0]))


def draw_servegen(config: ServeGenWorkload, base_dir: Path, rng: Streams) -> Workload:
    """The requests of all clients. Each draws from streams of its own, so that others may be added or left out."""
    folder = base_dir / config.path
    begin_s = 0.0 if config.window is None else config.window.start_s
    end_s = float(MAX_ARRIVAL_S) if config.window is None or config.window.end_s is None else config.window.end_s
    parts: list[tuple[Reals, NDArray[np.int64], NDArray[np.int64]]] = []
    for number, trace, dataset in client_files(folder):
        times_s = _arrivals(list(_windows(trace)), begin_s, end_s, rng(f"client-{number}.arrivals"), trace)
        prefill, decode = np.zeros(len(times_s), dtype=np.int64), np.zeros(len(times_s), dtype=np.int64)
        known = _datasets(dataset)
        starts_s = np.array([start_s for start_s, _, _ in known])
        holding = np.maximum(np.searchsorted(starts_s, times_s, side="right") - 1, 0)
        for place, (_, inputs, outputs) in enumerate(known):
            rows = np.flatnonzero(holding == place)
            prefill[rows] = inputs.draw(len(rows), rng(f"client-{number}.inputs.{place}"))
            decode[rows] = outputs.draw(len(rows), rng(f"client-{number}.outputs.{place}"))
        parts.append((times_s, prefill, decode))
    times_s, prefill, decode = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(times_s):
        raise InputError(f"{folder}: found no request in the window, expected at least 1")
    order = np.argsort(times_s, kind="stable")[: config.limit]
    return Workload(
        request_ids=tuple(map(str, range(len(order)))),
        arrived_ps=to_ps((times_s - begin_s)[order]),
        prefill_tokens=prefill[order],
        decode_tokens=decode[order],
        name=folder.name,
        source=f"ServeGen {folder.name}, {len(parts)} clients",
    )


def _arrivals(windows: list[_Window], begin_s: float, end_s: float, random: np.random.Generator, path: Path) -> Reals:
    """Rising times of one client; every window is drawn, so that those asked for do not depend on which are."""
    found = [np.zeros(0)]
    lengths_s = np.diff([window.start_s for window in windows]).tolist()
    for window, length_s in zip(windows, [*lengths_s, *lengths_s[-1:]], strict=False):
        count = round(window.qps * length_s)
        if count > MOST_REQUESTS:
            raise InputError(f"{path}: found {count} requests in a window, expected at most {MOST_REQUESTS}")
        gaps = _gaps(window, count, random)
        if count and gaps.sum() > 0:
            times_s = window.start_s + np.cumsum(gaps) * (length_s / gaps.sum())
            found.append(times_s[(times_s >= begin_s) & (times_s < end_s)])
    return np.concatenate(found)


def _gaps(window: _Window, count: int, random: np.random.Generator) -> Reals:
    match window.family:
        case "Gamma":
            return random.gamma(window.shape, window.scale, count)
        case "Weibull":
            return window.scale * random.weibull(window.shape, count)
        case _:
            return random.standard_exponential(count)


def _windows(path: Path) -> Iterator[_Window]:
    last_s = -1.0
    rows = csv_rows(read_text(path, "arrival statistics of ServeGen").splitlines(keepends=True), f"{path}:")
    for line, cells in rows:
        where = f"{path}: line {line}"
        if len(cells) != 6 or cells[3] not in ("Gamma", "Weibull", ""):
            expected = "begin, rate, CV, Gamma or Weibull or nothing, shape, scale"
            raise InputError(f"{where}: found {quoted(','.join(cells))}, expected {expected}")
        start_s, qps = _number(cells[0], f"{where}: begin"), _number(cells[1], f"{where}: rate")
        if start_s <= last_s:
            raise InputError(f"{where}: begin: found {start_s:g}, expected more than {last_s:g}")
        last_s = start_s
        shape, scale = (
            (_number(cells[4], f"{where}: shape", least=1e-9), _number(cells[5], f"{where}: scale", least=1e-12))
            if cells[3]
            else (1.0, 1.0)
        )
        yield _Window(start_s, qps, cells[3], shape, scale)


def _number(text: str, where: str, least: float = 0.0) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= 1e9:
        raise InputError(f"{where}: found {quoted(text)}, expected a number from {least:g} to 1e9")
    return value


def _datasets(path: Path) -> list[tuple[float, _Lengths, _Lengths]]:
    """(instant, inputs, outputs), rising."""
    tree = parse_json(read_text(path, "lengths of ServeGen"), str(path), "lengths of ServeGen")
    if not isinstance(tree, dict) or not tree:
        raise InputError(f"{path}: found {quoted(tree)}, expected lengths by the instant from which on they hold")
    found: list[tuple[float, _Lengths, _Lengths]] = []
    for start, section in tree.items():
        where = f"{path}: {quoted(start)}"
        fields = section if isinstance(section, dict) else {}
        start_s = _number(start, where)
        if fields.get("input_tokens") != EMPTY:
            inputs, outputs = (
                _lengths(fields.get(name), f"{where}: {name}") for name in ("input_tokens", "output_tokens")
            )
            found.append((start_s, inputs, outputs))
    if not found:
        raise InputError(f"{path}: found empty lengths only, expected some")
    return sorted(found, key=lambda each: each[0])


def _lengths(text: object, where: str) -> _Lengths:
    expected = "a text {tokens: probability, …}"
    if not isinstance(text, str) or not text.strip().startswith("{") or not text.strip().endswith("}"):
        raise InputError(f"{where}: found {quoted(text)}, expected {expected}")
    matches = [ENTRY.fullmatch(entry) for entry in text.strip()[1:-1].split(",") if entry.strip()]
    pairs = [(int(match[1]), _number(match[2], where)) for match in matches if match is not None]
    if len(pairs) < len(matches) or not any(share for _, share in pairs):
        raise InputError(f"{where}: found {quoted(text)}, expected {expected}")
    for tokens, _ in pairs:
        if not 1 <= tokens <= MAX_TOKENS:
            raise InputError(f"{where}: found {tokens} tokens, expected 1 to {MAX_TOKENS}")
    return _Lengths(np.array([tokens for tokens, _ in pairs]), np.cumsum([share for _, share in pairs]))
