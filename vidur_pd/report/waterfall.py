"""Where every millisecond of one request went, and whom it waited for.

Parts are those of ``attribution.parquet``, in the order in which they happen, so that they add up to the latency of the
request to the picosecond. Whom it waited for is taken from the stamps of the others: who was there before it on the
same instance, and whose KV was on its way at the same time from or to the same instance.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from boundary import arrow_columns
from boundary.errors import InputError
from boundary.quoting import quoted
from vidur_pd.metrics.attribution import MEANINGS, PARTS
from vidur_pd.metrics.quantities import milliseconds_text
from vidur_pd.report.load import RunOutput, require_columns
from vidur_pd.report.series import Floats, Ints
from vidur_pd.report.table import Table, Words
from vidur_pd.report.text import digits

PS_PER_S: Final = 10**12
MOST_NAMED: Final = 6
"""Requests that are listed by name."""
TEXT_COLUMNS: Final = 80
BAR_COLUMNS: Final = 22
ATTRIBUTION_FILE: Final = "attribution.parquet"
ROUNDING_S: Final = 1e-9
"""Of sums of times: far less than any iteration."""
Row = dict[str, Any]
"""A request by the names of `REQUEST_COLUMNS`: words, and floats."""
Parts = dict[str, int]
"""Its row of ``attribution.parquet``, without its id."""


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
    before_first_token: Mapping[str, int] = field(default_factory=dict)
    """What of TTFT its parts take [ps], without the way of the token to the client; `PARTS` that take any."""
    chunks: tuple[tuple[float, int, int], ...] = field(default=())
    """(begin [s] after the arrival, new tokens, requests in the batch) of the iterations that computed its prompt;
    empty without ``batches.parquet``."""


def waterfall(run: RunOutput, request_id: str) -> Waterfall:
    """The waterfall of a completed request.

    Raises: InputError, where the run has no such request, it did not complete, or an earlier version wrote the run.
    """
    ids = run.requests.words["request_id"]
    places = np.flatnonzero(ids.are(request_id))
    if not len(places):
        some = ", ".join(ids.rows(slice(3)))
        raise InputError(
            f"{run.folder}: found no request {quoted(request_id)}, expected one of its requests, as {some}"
        )
    row = run.requests.row(int(places[0]))
    if row["status"] != "completed":
        raise InputError(f"{run.folder}: request {request_id}: found {row['status']}, expected a completed request")
    parts = read_attribution(run.folder, [request_id])
    if request_id not in parts:
        raise _lacks(run.folder, request_id)
    return _waterfall(run, row, parts[request_id])


def slowest(run: RunOutput, by: str, most: int) -> list[Waterfall]:
    """Those of the completed requests with the largest ``ttft_s`` or ``e2e_s``; none where the file is missing.

    Notes are those of the part of each that takes most before the first token.
    """
    if not (run.folder / ATTRIBUTION_FILE).exists():
        return []
    completed = run.completed
    rows = [completed.row(place) for place in np.argsort(-completed[by], kind="stable")[:most].tolist()]
    parts = read_attribution(run.folder, [row["request_id"] for row in rows])
    for row in rows:
        if row["request_id"] not in parts:
            raise _lacks(run.folder, row["request_id"])
    return [_waterfall(run, row, parts[row["request_id"]], notes_all=False) for row in rows]


def _lacks(folder: Path, request_id: str) -> InputError:
    return InputError(f"{folder / ATTRIBUTION_FILE}: found no row of request {quoted(request_id)}, expected one")


def read_attribution(folder: Path, request_ids: Collection[str]) -> dict[str, Parts]:
    """Rows of ``attribution.parquet`` of a run, by request, of those that are there.

    Raises: InputError, where it is missing or has no such columns.
    """
    import pyarrow as pa

    path = folder / ATTRIBUTION_FILE
    columns = [f"{part}_ps" for part in ("e2e", *PARTS, "prefill_contention", "decode_contention")]
    table = _read_columns(path, ["request_id", *columns])
    for name in columns:
        if not pa.types.is_integer(table[name].type) or table[name].null_count:
            found = f"{table[name].type}{' and empty cells' if table[name].null_count else ''}"
            raise InputError(f"{path}: {name}: found {found}, expected whole picoseconds")
    ids = _ids(path, table)
    places = {name: ids.places_of(name) for name in request_ids}
    return {name: {each: table[each][rows[-1]].as_py() for each in columns} for name, rows in places.items() if rows}


def _read_columns(path: Path, columns: Sequence[str]) -> Any:
    """Columns of a Parquet file, as Arrow has them. Raises: InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            require_columns(path, file.schema_arrow.names, columns)
            return file.read(list(columns), use_threads=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a run of this version") from None
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None


def _ids(path: Path, table: Any) -> arrow_columns.Texts:
    import pyarrow as pa

    try:
        return arrow_columns.texts(table["request_id"])
    except pa.ArrowException as error:
        raise InputError(f"{path}: request_id: cannot be read as text ({' '.join(str(error).split())})") from None


def _waterfall(run: RunOutput, row: Row, parts: Parts, *, notes_all: bool = True) -> Waterfall:
    before = _before_first_token(row, parts)
    largest = longest(before)
    steps, at_ps = [], 0
    for part in PARTS:
        took_ps = parts[f"{part}_ps"]
        if took_ps:
            notes = _notes(run, row, parts, part) if notes_all or part == largest else ()
            steps.append(Step(part, at_ps / PS_PER_S, took_ps, notes))
        at_ps += took_ps
    chunks = _chunks(run.folder, row) if notes_all else ()
    return Waterfall(row["request_id"], row, tuple(steps), parts["e2e_ps"], before, chunks)


def longest(took_ps: Mapping[str, int]) -> str | None:
    """The part that takes most, the first of equal ones; ``None`` of none."""
    return max(took_ps, key=lambda part: took_ps[part], default=None)


def _spans_ps(row: Row, parts: Parts) -> dict[str, int]:
    """Spans of a request from its arrival to its first decode iteration, in order: parts that are one span each,
    ``frontend`` to the engines alone, and ``prefill``, from its first iteration to the end of its prompt."""
    arrived_ps, scheduled_ps, prefilled_ps = (
        round(PS_PER_S * row[name]) for name in ("arrived_at_s", "scheduled_at_s", "prefill_completed_at_s")
    )
    lost_ps, queue_ps = parts["lost_ps"], parts["queue_ps"]
    after = ("kv_room", "kv_setup", "kv_transfer", "decode_queue")
    return {
        "frontend": scheduled_ps - arrived_ps - lost_ps - queue_ps,
        "lost": lost_ps,
        "queue": queue_ps,
        "prefill": prefilled_ps - scheduled_ps,
        **{name: parts[f"{name}_ps"] for name in after},
    }


def _before_first_token(row: Row, parts: Parts) -> dict[str, int]:
    """What parts take [ps] before the first token; of decode iterations, and of the way back, nothing."""
    ttft_ps, at_ps, found = round(PS_PER_S * row["ttft_s"]), 0, dict[str, int]()
    for part, span_ps in _spans_ps(row, parts).items():
        found[part] = min(at_ps + span_ps, ttft_ps) - min(at_ps, ttft_ps)
        at_ps += span_ps
    left_ps = found.pop("prefill")
    for part in ("prefill_compute", "prefill_communication", "preempted", "stall"):
        found[part] = min(parts[f"{part}_ps"], left_ps)
        left_ps -= found[part]
    return {part: found[part] for part in PARTS if found.get(part, 0) > 0}


def _decode_span_s(row: Row, parts: Parts) -> tuple[float, float]:
    """From the begin of its first decode iteration to the end of its last one."""
    spans = _spans_ps(row, parts)
    back_ps = parts["frontend_ps"] - spans["frontend"]
    ends_ps = sum(spans.values()), parts["e2e_ps"] - back_ps
    begin_s, end_s = (row["arrived_at_s"] + each / PS_PER_S for each in ends_ps)
    return begin_s, end_s


def _notes(run: RunOutput, row: Row, parts: Parts, part: str) -> tuple[str, ...]:
    """What else is known of a part."""
    match part:
        case "queue":
            return _queue_notes(run.requests, row)
        case "prefill_compute":
            return _host_notes(
                _steps(run, row["prefill_instance"], row["scheduled_at_s"], row["prefill_completed_at_s"])
            )
        case "prefill_communication" | "decode_communication":
            contention_ps = parts[f"{part.removesuffix('_communication')}_contention_ps"]
            beyond = f"{milliseconds_text(contention_ps / PS_PER_S)} ms of it beyond an idle fabric"
            return (beyond,) if contention_ps > 0 else ()
        case "kv_room":
            return _room_notes(run, row)
        case "kv_transfer":
            return _wire_notes(run.requests, row)
        case "decode_compute":
            return _decode_notes(run, row, parts)
        case "preempted":
            return (f"it lost its KV blocks {_counted(int(row['preemptions']), 'time')}",)
        case _:
            return ()


def _queue_notes(requests: Table, row: Row) -> tuple[str, ...]:
    """Those on its prefill instance that came before it and whose prompts were not computed when it came."""
    arrived, scheduled = row["arrived_at_s"], row["scheduled_at_s"]
    on_same = requests.words["prefill_instance"].are(row["prefill_instance"])
    went_first = on_same & (requests["scheduled_at_s"] < scheduled)
    before = went_first & (requests["arrived_at_s"] < arrived) & (requests["prefill_completed_at_s"] > arrived)
    was_computing = requests["scheduled_at_s"] <= arrived
    notes = []
    for found, what in (
        (before & was_computing, "in computation"),
        (before & ~was_computing, "ahead in the queue"),
        (went_first & (requests["arrived_at_s"] >= arrived), "came later and went first"),
    ):
        if (number := int(found.sum())) > 0:
            computed = requests["prefill_tokens"][found] - np.nan_to_num(requests["cached_tokens"][found])
            tokens = int(np.nansum(computed))
            notes.append(f"{number} {what}, {tokens:,} prompt tokens: {_named(requests, found)}")
    return tuple(notes) or ("nobody before it: the way to the scheduler, and the end of the step in progress",)


def _room_notes(run: RunOutput, row: Row) -> tuple[str, ...]:
    requests, at = run.requests, row["prefill_completed_at_s"]
    there = requests.words["decode_instance"].are(row["decode_instance"])
    there &= (requests["prefill_completed_at_s"] <= at) & (requests["completed_at_s"] > at)
    tokens = int(np.nansum(requests["prefill_tokens"][there]))
    found = f"{row['decode_instance']} had {_counted(int(there.sum()), 'request')} with {tokens:,} prompt tokens"
    return (*_outages_of(run, row["decode_instance"], at, row["kv_sent_at_s"]), found)


def _outages_of(run: RunOutput, instance: object, begin_s: float, end_s: float) -> Iterator[str]:
    """When an instance was down within a span."""
    for event in () if run.summary.faults is None else run.summary.faults.events:
        if (event.kind, event.target) == ("instance", instance) and event.at_s < end_s and event.end_s > begin_s:
            yield f"{instance} was {event.outage}"


def _wire_notes(requests: Table, row: Row) -> tuple[str, ...]:
    """The rate of its KV, and who sent from or to the same instance at the same time."""
    sent, arrived, size = row["kv_sent_at_s"], row["kv_arrived_at_s"], row["pd_p2p_comm_bytes"]
    rate = 8e-9 * size / (arrived - sent) if arrived > sent else float("inf")
    at_once = (requests["kv_sent_at_s"] < arrived) & (requests["kv_arrived_at_s"] > sent)
    notes = [f"{digits(size / 1e6)} MB at {rate:,.0f} Gbit/s, first byte to last"]
    for column, way in (("prefill_instance", "from"), ("decode_instance", "to")):
        rows = np.flatnonzero(at_once & requests.words[column].are(row[column]))
        others = [name for name in requests.words["request_id"].rows(rows) if name != row["request_id"]]
        if others:
            notes.append(f"{_counted(len(others), 'other')} {way} {row[column]} meanwhile: {named(others)}")
    return tuple(notes)


def _decode_notes(run: RunOutput, row: Row, parts: Parts) -> tuple[str, ...]:
    """Iterations of its decode instance while it was in the batch, those of prompts alone left out."""
    instance = row["decode_instance"] or row["prefill_instance"]
    found = _steps(run, instance, *_decode_span_s(row, parts))
    steps = None if found is None else found.rows(found["decode_tokens"] > 0)
    if not steps:
        return ()
    with_prompts = int((steps["prefill_tokens"] > 0).sum())
    prompts = f", {with_prompts:,} of them with prompts" if with_prompts else ""
    preempted = ", those while it was preempted included" if parts["preempted_ps"] else ""
    running = float(np.nanmean(steps["running"]))
    mean = f"{running:.3g}" if running < 100 else f"{running:,.0f}"
    requests = "request" if mean == "1" else "requests"
    return (
        f"{_counted(len(steps), 'iteration')} of {instance}, {mean} {requests} there{prompts}{preempted}",
        *_host_notes(steps),
    )


def _counted(number: int, what: str) -> str:
    """A number and its noun."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _steps(run: RunOutput, instance: str, begin_s: float, end_s: float) -> Table | None:
    """Iterations of an instance in a span; ``None`` where there are none, or the run did not write them."""
    if run.iterations is None:
        return None
    starts_s, ends_s = run.iterations["start_s"], run.iterations["end_s"]
    of_instance = run.iterations.words["instance"].are(instance)
    found = run.iterations.rows(of_instance & (starts_s >= begin_s - ROUNDING_S) & (ends_s <= end_s + ROUNDING_S))
    return found or None


def _host_notes(steps: Table | None) -> tuple[str, ...]:
    """How long GPUs wait for the host in iterations, where that is a hundredth of them or more."""
    if steps is None:
        return ()
    waits_s, length_s = float(np.nansum(steps["host_s"])), float(np.nansum(steps["end_s"] - steps["start_s"]))
    share = waits_s / length_s if length_s > 0 else 0.0
    return (f"{milliseconds_text(waits_s)} ms of these iterations GPUs wait for the host",) if share >= 0.01 else ()


def _chunks(folder: Path, row: Row) -> tuple[tuple[float, int, int], ...]:
    """Iterations of its prompt, where the run has written who was in which."""
    if not all((folder / name).exists() for name in ("batches.parquet", "iterations.parquet")):
        return ()
    batches = folder / "batches.parquet"
    members = _read_columns(batches, ("batch", "request_id", "new_tokens"))
    iterations = _read_columns(folder / "iterations.parquet", ("batch", "start_s"))
    rows = np.array(_ids(batches, members).places_of(row["request_id"]), dtype=np.int64)
    batch_of_member, batch_of_iteration = (arrow_columns.numbers(each["batch"]) for each in (members, iterations))
    own, groups = np.unique(batch_of_member[rows], return_inverse=True)
    sizes = np.bincount(_places(batch_of_member, own)[0], minlength=len(own))
    places, is_own = _places(batch_of_iteration, own)
    begins_s = np.full(len(own), np.inf)
    np.minimum.at(begins_s, places, arrow_columns.numbers(iterations["start_s"])[is_own])
    begins_s, new_tokens = begins_s[groups], arrow_columns.numbers(members["new_tokens"])[rows].astype(np.int64)
    chunks = zip((begins_s - row["arrived_at_s"]).tolist(), new_tokens.tolist(), sizes[groups].tolist(), strict=True)
    is_of_prompt = (begins_s < row["prefill_completed_at_s"]).tolist()
    return tuple(sorted(compress(chunks, is_of_prompt)))


def _places(values: Floats, known: Floats) -> tuple[Ints, NDArray[np.bool_]]:
    """(places in what is known, which rises, of those values that are in it; [values] whether they are)."""
    places = np.searchsorted(known, values)
    is_known = places < len(known)
    is_known[is_known] = known[places[is_known]] == values[is_known]
    return places[is_known], is_known


def _named(requests: Table, found: NDArray[np.bool_]) -> str:
    return named(requests.words["request_id"].rows(np.flatnonzero(found)))


def named(names: Words | Sequence[str]) -> str:
    """The first few by name, and how many more."""
    more = len(names) - MOST_NAMED
    return ", ".join(islice(names, MOST_NAMED)) + (f" and {more} more" if more > 0 else "")


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
                f"chunk at {1e3 * at:.3f} ms: {_counted(tokens, 'token')}, {_counted(size, 'request')} in its batch"
                for at, tokens, size in found.chunks
            ]
        for note in notes:
            lines += textwrap.wrap(note, TEXT_COLUMNS, initial_indent=" " * 26, subsequent_indent=" " * 28)
    total_ps = sum(step.took_ps for step in found.steps)
    equal = "equal to E2E" if total_ps == found.e2e_ps else f"E2E is {found.e2e_ps / 1e9:.3f} ms"
    lines += ["", f"{'':>11}  {total_ps / 1e9:>11.3f}  ms in total, {equal}"]
    return "\n".join(lines)


def _bar(begin: float, share: float) -> str:
    """``begin``, ``share``: of the life of the request."""
    first = min(round(BAR_COLUMNS * begin), BAR_COLUMNS - 1)
    last = max(first + 1, min(round(BAR_COLUMNS * (begin + share)), BAR_COLUMNS))
    return (" " * first + "█" * (last - first)).ljust(BAR_COLUMNS)


def meanings(found: Waterfall) -> dict[str, str]:
    """What the parts of a waterfall are."""
    return {step.part: MEANINGS[step.part] for step in found.steps}
