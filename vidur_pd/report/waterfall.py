"""Where every millisecond of one request went, and whom it waited for.

Parts are those of ``attribution.parquet``, in the order in which they happen, so that they add up to the latency of the
request to the picosecond. Whom it waited for is taken from the stamps of the others: who was there before it on the
same instance, and whose KV was on its way at the same time from or to the same instance.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from boundary.errors import InputError
from boundary.quoting import quoted
from vidur_pd.metrics.attribution import MEANINGS, PARTS
from vidur_pd.metrics.quantities import milliseconds_text
from vidur_pd.report.load import RunOutput

PS_PER_S: Final = 10**12
MOST_NAMED: Final = 6
"""Requests that are listed by name."""
TEXT_COLUMNS: Final = 80
BAR_COLUMNS: Final = 22
ATTRIBUTION_FILE: Final = "attribution.parquet"


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the latency of a request."""

    part: str
    """One of `PARTS`."""
    begin_s: float
    """After the arrival; parts of one span, as compute and collectives of the same iterations, follow each other."""
    took_ps: int
    notes: tuple[str, ...] = ()

    @property
    def took_s(self) -> float:
        return self.took_ps / PS_PER_S


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A request from its arrival to its last token."""

    request_id: str
    facts: Mapping[str, Any]
    """Its row of ``requests.csv``."""
    steps: tuple[Step, ...]
    e2e_ps: int
    chunks: tuple[tuple[float, int, int], ...] = field(default=())
    """(begin [s] after the arrival, new tokens, requests in the batch) of the iterations that computed its prompt;
    empty without ``batches.parquet``."""


def waterfall(run: RunOutput, request_id: str) -> Waterfall:
    """The waterfall of a completed request.

    Raises: InputError, where the run has no such request, it did not complete, or an earlier version wrote the run.
    """
    rows = run.requests[run.requests["request_id"].astype(str) == request_id]
    if rows.empty:
        found = quoted(request_id)
        some = ", ".join(run.requests["request_id"].astype(str).head(3))
        raise InputError(f"{run.folder}: found no request {found}, expected one of its requests, as {some}")
    row = rows.iloc[0]
    if row["status"] != "completed":
        raise InputError(f"{run.folder}: request {request_id}: found {row['status']}, expected a completed request")
    parts = read_attribution(run.folder)
    own = parts[parts["request_id"].astype(str) == request_id]
    if own.empty:
        raise _lacks(run.folder, request_id)
    return _waterfall(run, row, own.iloc[0])


def slowest(run: RunOutput, by: str, most: int) -> list[Waterfall]:
    """Those of the completed requests with the largest ``ttft_s`` or ``e2e_s``; none where the file is missing.

    Notes are those of the largest part of each apart from its decode iterations.
    """
    if not (run.folder / ATTRIBUTION_FILE).exists():
        return []
    parts = read_attribution(run.folder)
    place = {str(name): row for row, name in enumerate(parts["request_id"].tolist())}
    rows = run.completed.nlargest(most, by, keep="first")
    found = []
    for _, row in rows.iterrows():
        at = place.get(str(row["request_id"]))
        if at is None:
            raise _lacks(run.folder, str(row["request_id"]))
        found.append(_waterfall(run, row, parts.iloc[at], notes_all=False))
    return found


def _lacks(folder: Path, request_id: str) -> InputError:
    return InputError(f"{folder / ATTRIBUTION_FILE}: found no row of request {quoted(request_id)}, expected one")


def read_attribution(folder: Path) -> pd.DataFrame:
    """``attribution.parquet`` of a run. Raises: InputError, where it is missing or has no such columns."""
    path = folder / ATTRIBUTION_FILE
    columns = [
        "request_id",
        "e2e_ps",
        *(f"{part}_ps" for part in PARTS),
        "prefill_contention_ps",
        "decode_contention_ps",
    ]
    try:
        parts = pd.read_parquet(path, columns=columns)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a run of this version") from None
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    for name in columns[1:]:
        if not pd.api.types.is_integer_dtype(parts[name]):
            raise InputError(f"{path}: {name}: found {parts[name].dtype}, expected whole picoseconds")
    return parts


def _waterfall(run: RunOutput, row: pd.Series[Any], parts: pd.Series[Any], *, notes_all: bool = True) -> Waterfall:
    apart = [part for part in PARTS if not part.startswith("decode_c")]
    largest = max(apart, key=lambda part: int(parts[f"{part}_ps"]))
    steps, at_ps = [], 0
    for part in PARTS:
        took_ps = int(parts[f"{part}_ps"])
        if took_ps:
            notes = _notes(run, row, parts, part) if notes_all or part == largest else ()
            steps.append(Step(part, at_ps / PS_PER_S, took_ps, notes))
        at_ps += took_ps
    name, chunks = str(row["request_id"]), _chunks(run.folder, row) if notes_all else ()
    return Waterfall(
        name,
        {str(key): value for key, value in row.items()},
        tuple(steps),
        int(parts["e2e_ps"]),
        chunks,
    )


def _notes(run: RunOutput, row: pd.Series[Any], parts: pd.Series[Any], part: str) -> tuple[str, ...]:
    """What else is known of a part."""
    match part:
        case "queue":
            return _queue_notes(run.requests, row)
        case "prefill_compute":
            return _host_notes(
                _steps(run, row["prefill_instance"], row["scheduled_at_s"], row["prefill_completed_at_s"])
            )
        case "prefill_communication" | "decode_communication":
            contention_ps = int(parts[f"{part.removesuffix('_communication')}_contention_ps"])
            return (f"{contention_ps / 1e9:.3g} ms of it beyond an idle fabric",) if contention_ps > 0 else ()
        case "kv_room":
            return _room_notes(run, row)
        case "kv_transfer":
            return _wire_notes(run.requests, row)
        case "decode_compute":
            return _decode_notes(run, row)
        case "preempted":
            return (f"it lost its KV blocks {int(row['preemptions'])} times",)
        case _:
            return ()


def _queue_notes(requests: pd.DataFrame, row: pd.Series[Any]) -> tuple[str, ...]:
    """Those on its prefill instance that came before it and whose prompts were not computed when it came."""
    arrived = row["arrived_at_s"]
    on_same = requests[requests["prefill_instance"] == row["prefill_instance"]]
    before = on_same[(on_same["arrived_at_s"] < arrived) & (on_same["prefill_completed_at_s"] > arrived)]
    before = before[before["scheduled_at_s"] < row["scheduled_at_s"]]
    computing = before[before["scheduled_at_s"] <= arrived]
    ahead = before[before["scheduled_at_s"] > arrived]
    later = on_same[(on_same["arrived_at_s"] >= arrived) & (on_same["scheduled_at_s"] < row["scheduled_at_s"])]
    notes = []
    for found, what in (
        (computing, "in computation"),
        (ahead, "ahead in the queue"),
        (later, "came later and went first"),
    ):
        if len(found):
            tokens = int((found["prefill_tokens"] - found["cached_tokens"].fillna(0)).sum())
            notes.append(f"{len(found)} {what}, {tokens:,} prompt tokens: {named(found['request_id'])}")
    return tuple(notes) or ("nobody before it: the way to the scheduler, and the end of the step in progress",)


def _room_notes(run: RunOutput, row: pd.Series[Any]) -> tuple[str, ...]:
    requests, at = run.requests, row["prefill_completed_at_s"]
    there = requests[
        (requests["decode_instance"] == row["decode_instance"])
        & (requests["prefill_completed_at_s"] <= at)
        & (requests["completed_at_s"] > at)
    ]
    tokens = int(there["prefill_tokens"].sum())
    return (f"{row['decode_instance']} had {len(there)} requests with {tokens:,} prompt tokens",)


def _wire_notes(requests: pd.DataFrame, row: pd.Series[Any]) -> tuple[str, ...]:
    """The rate of its KV, and who sent from or to the same instance at the same time."""
    sent, arrived, size = row["kv_sent_at_s"], row["kv_arrived_at_s"], float(row["pd_p2p_comm_bytes"])
    rate = 8e-9 * size / (arrived - sent) if arrived > sent else float("inf")
    at_once = requests[(requests["kv_sent_at_s"] < arrived) & (requests["kv_arrived_at_s"] > sent)]
    at_once = at_once[at_once["request_id"] != row["request_id"]]
    notes = [f"{size / 1e6:.4g} MB at {rate:,.0f} Gbit/s, first byte to last"]
    for column, way in (("prefill_instance", "from"), ("decode_instance", "to")):
        found = at_once[at_once[column] == row[column]]
        if len(found):
            notes.append(f"{len(found)} others {way} {row[column]} meanwhile: {named(found['request_id'])}")
    return tuple(notes)


def _decode_notes(run: RunOutput, row: pd.Series[Any]) -> tuple[str, ...]:
    begin = row["kv_arrived_at_s"] if row["kv_arrived_at_s"] > 0 else row["prefill_completed_at_s"]
    steps = _steps(run, row["decode_instance"], begin, row["completed_at_s"])
    if steps is None:
        return ()
    with_prompts = int((steps["prefill_tokens"] > 0).sum())
    prompts = f", {with_prompts} of them with prompts" if with_prompts else ""
    return (
        f"{len(steps)} iterations of {row['decode_instance']}, {steps['running'].mean():.3g} requests there{prompts}",
        *_host_notes(steps),
    )


def _steps(run: RunOutput, instance: str, begin_s: float, end_s: float) -> pd.DataFrame | None:
    """Iterations of an instance in a span; ``None`` where there are none, or the run did not write them."""
    if run.iterations is None:
        return None
    starts_s, ends_s = run.iterations["start_s"], run.iterations["end_s"]
    found = run.iterations[
        (run.iterations["instance"] == instance) & (starts_s >= begin_s - 1e-12) & (ends_s <= end_s + 1e-12)
    ]
    return None if found.empty else found


def _host_notes(steps: pd.DataFrame | None) -> tuple[str, ...]:
    """How long GPUs wait for the host in iterations, where that is a hundredth of them or more."""
    if steps is None or "host_s" not in steps:
        return ()
    waits_s, length_s = float(steps["host_s"].sum()), float((steps["end_s"] - steps["start_s"]).sum())
    share = waits_s / length_s if length_s > 0 else 0.0
    return (f"{1e3 * waits_s:.4g} ms of these iterations GPUs wait for the host",) if share >= 0.01 else ()


def _chunks(folder: Path, row: pd.Series[Any]) -> tuple[tuple[float, int, int], ...]:
    """Iterations of its prompt, where the run has written who was in which."""
    batches, iterations = folder / "batches.parquet", folder / "iterations.parquet"
    if not (batches.exists() and iterations.exists()):
        return ()
    members = pd.read_parquet(batches)
    own = members[members["request_id"] == str(row["request_id"])]
    sizes = members[members["batch"].isin(own["batch"])].groupby("batch").size()
    begins = pd.read_parquet(iterations, columns=["batch", "start_s"]).groupby("batch")["start_s"].min()
    own = own.assign(start_s=begins.reindex(own["batch"]).to_numpy(), size=sizes.reindex(own["batch"]).to_numpy())
    own = own[own["start_s"] < row["prefill_completed_at_s"]].sort_values("start_s")
    after = (own["start_s"] - row["arrived_at_s"]).tolist()
    return tuple(zip(after, own["new_tokens"].tolist(), own["size"].tolist(), strict=True))


def named(names: Sequence[object] | pd.Series[Any]) -> str:
    """The first few by name, and how many more."""
    listed = [str(name) for name in names]
    more = len(listed) - MOST_NAMED
    return ", ".join(listed[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def waterfall_text(found: Waterfall) -> str:
    """The waterfall for a terminal of `TEXT_COLUMNS`: a line for each part, its bar where it lies in the life of the
    request."""
    facts = found.facts
    head = (
        f"request {found.request_id}: {facts['prefill_tokens']:,.0f} prompt tokens ({facts['cached_tokens'] or 0:,.0f} "
        f"cached), {facts['decode_tokens']:,.0f} output tokens"
    )
    decode = facts["decode_instance"] or facts["prefill_instance"]
    where = f"arrived at {facts['arrived_at_s']:.6g} s, prefill on {facts['prefill_instance']}, decode on {decode}"
    tpot = "" if np.isnan(facts["tpot_s"]) else f", TPOT {milliseconds_text(facts['tpot_s'])} ms"
    times = f"TTFT {milliseconds_text(facts['ttft_s'])} ms{tpot}, E2E {found.e2e_ps / 1e9:.9g} ms"
    lines = [row for line in (head, where, times) for row in textwrap.wrap(line, TEXT_COLUMNS)]
    lines += ["", f"{'begin, ms':>11}  {'takes, ms':>11}  part"]
    names = max(len(part) for part in PARTS)
    whole_ps = max(found.e2e_ps, 1)
    for step in found.steps:
        share = f"{100 * step.took_ps / whole_ps:.1f} %"
        bar = _bar(step.begin_s * PS_PER_S / whole_ps, step.took_ps / whole_ps)
        lines.append(
            f"{1e3 * step.begin_s:>11.3f}  {step.took_ps / 1e9:>11.3f}  {step.part:<{names}}  {bar}  {share:>7}"
        )
        notes = [*step.notes]
        if step.part == "prefill_compute":
            notes += [
                f"chunk at {1e3 * at:.3f} ms: {tokens:,} tokens, {size} requests in its batch"
                for at, tokens, size in found.chunks
            ]
        for note in notes:
            lines += textwrap.wrap(note, TEXT_COLUMNS, initial_indent=" " * 26, subsequent_indent=" " * 28)
    total_ps = sum(step.took_ps for step in found.steps)
    lines += ["", f"{'':>11}  {total_ps / 1e9:>11.3f}  in all, to the picosecond its E2E"]
    return "\n".join(lines)


def _bar(begin: float, share: float) -> str:
    """``begin``, ``share``: of the life of the request."""
    first = min(round(BAR_COLUMNS * begin), BAR_COLUMNS - 1)
    last = max(first + 1, min(round(BAR_COLUMNS * (begin + share)), BAR_COLUMNS))
    return (" " * first + "█" * (last - first)).ljust(BAR_COLUMNS)


def meanings(found: Waterfall) -> dict[str, str]:
    """What the parts of a waterfall are."""
    return {step.part: MEANINGS[step.part] for step in found.steps}
