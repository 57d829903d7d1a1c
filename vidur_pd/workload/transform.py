"""What may be done to a workload: pick, retime, scale, trim, merge. Every function returns a new workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from vidur_pd.workload.arrivals import to_ps
from vidur_pd.workload.classes import named_classes
from vidur_pd.workload.pacing import Clients, Pacing, Sessions, shifted
from vidur_pd.workload.workload import MAX_ARRIVAL_S, MAX_TOKENS, PS_PER_S, BlockHashes, Classes, Workload


def picked(workload: Workload, indices: NDArray[np.intp]) -> Workload:
    """The requests at these rising indices."""
    return _reordered(workload, indices, workload.arrived_ps[indices])


def retimed(workload: Workload, arrived_ps: NDArray[np.int64]) -> Workload:
    """The requests in order of these arrivals [requests]; of those that arrive at once the first stays first."""
    order = np.argsort(arrived_ps, kind="stable")
    return _reordered(workload, order, arrived_ps[order])


def jittered(workload: Workload, jitter_s: float, random: np.random.Generator) -> Workload:
    """Delays each arrival by a uniform time in [0, ``jitter_s``) and restores the order of arrival."""
    delayed = workload.arrived_ps + to_ps(random.random(len(workload)) * jitter_s)
    return _noted(retimed(workload, delayed), f"jitter {jitter_s:g} s")


def time_scaled(workload: Workload, factor: float) -> Workload:
    """Multiplies arrival times by ``factor``."""
    if int(workload.arrived_ps[-1]) / PS_PER_S * factor > MAX_ARRIVAL_S:
        raise InputError(f"time_scale: found {factor:g}, expected a last arrival before {MAX_ARRIVAL_S} s")
    scaled = np.rint(workload.arrived_ps * factor).astype(np.int64)
    return _noted(replace(workload, arrived_ps=scaled), f"time × {factor:g}")


def at_rate(workload: Workload, per_s: float) -> Workload:
    """Scales arrival times so that ``per_s`` requests arrive per second in the mean, the inverse of the mean gap.

    Raises:
        InputError: all requests arrive at once, or some are sent after answers, at times that are not known before.
    """
    expected = "expected arrivals at known times that differ"
    if workload.pacing is not None:
        raise InputError(f"workload.rate: found {per_s:g}/s for requests that wait for answers, {expected}")
    if not workload.span_ps:
        raise InputError(f"workload.rate: found {per_s:g}/s for requests that all arrive at once, {expected}")
    factor = (len(workload) - 1) * PS_PER_S / workload.span_ps / per_s
    if int(workload.arrived_ps[-1]) / PS_PER_S * factor > MAX_ARRIVAL_S:
        raise InputError(f"workload.rate: found {per_s:g}/s, expected a last arrival before {MAX_ARRIVAL_S} s")
    scaled = np.rint(workload.arrived_ps * factor).astype(np.int64)
    return _noted(replace(workload, arrived_ps=scaled), f"{per_s:g} requests/s")


def least_rate(workload: Workload) -> float:
    """Requests per second that `at_rate` can make of a workload, and not less: its last arrival is within the clock."""
    return (len(workload) - 1) * int(workload.arrived_ps[-1]) / max(1, workload.span_ps) / (MAX_ARRIVAL_S - 1.0)


def length_scaled(workload: Workload, prefill_factor: float, decode_factor: float) -> Workload:
    """Multiplies prompt and output lengths, rounded and at least 1; shorter prompts keep their leading blocks.

    Raises:
        InputError: longer prompts are asked for where block ids say what the prompts contain.
    """
    if prefill_factor > 1 and workload.block_hashes is not None:
        raise InputError(
            f"prefill_scale: found {prefill_factor:g}, expected at most 1 for a trace with hash_ids "
            "(no id names the added text)"
        )
    scaled = _with_lengths(
        workload,
        _scaled_tokens(workload.prefill_tokens, prefill_factor),
        _scaled_tokens(workload.decode_tokens, decode_factor),
    )
    return _noted(scaled, f"prefill × {prefill_factor:g}, decode × {decode_factor:g}")


def trimmed(workload: Workload, max_tokens: int, trim: Literal["prefill", "proportional"]) -> Workload:
    """Shortens requests of more than ``max_tokens`` prompt + output tokens, and counts them.

    ``prefill`` cuts the prompt only, down to one token (as Vidur does for replayed traces); ``proportional`` keeps
    the ratio of the two (as Vidur does for traces of lengths). Prompts lose their end, so leading blocks stay shared.

    Raises:
        InputError: an output alone leaves no room for a prompt.
    """
    prompt, output = workload.prefill_tokens, workload.decode_tokens
    total = prompt + output
    is_long = total > max_tokens
    if trim == "proportional":
        kept = np.clip(np.rint(prompt * (max_tokens / total)).astype(np.int64), 1, max_tokens - 1)
        output = np.where(is_long, max_tokens - kept, output)
    prompt = np.where(is_long, max_tokens - output, prompt)
    wrong = np.flatnonzero(prompt < 1)
    if len(wrong):
        i = int(wrong[0])
        raise InputError(
            f"{workload.name}: max_tokens: found {max_tokens}, expected more than the {output[i]} output tokens "
            f"of request {workload.request_ids[i]} (or trim: proportional)"
        )
    shortened = _with_lengths(workload, prompt, output)
    count = int(is_long.sum())
    counted = replace(shortened, trimmed_requests=workload.trimmed_requests + count)
    return _noted(counted, f"{count} requests trimmed to {max_tokens} tokens")


def merged(parts: Mapping[str, Workload]) -> Workload:
    """All requests of all parts in order of arrival (at equal times, in the order of the parts).

    Block ids are renumbered so that parts share none; a part without ids gets ids of its own if another has them.

    Raises:
        InputError: parts have blocks of different sizes.
    """
    workloads = list(parts.values())
    arrived = np.concatenate([part.arrived_ps for part in workloads])
    order = np.argsort(arrived, kind="stable")
    names = [f"{name}-{request}" for name, part in parts.items() for request in part.request_ids]
    hashes = _joined_hashes(parts)
    return Workload(
        request_ids=tuple(names[i] for i in order.tolist()),
        arrived_ps=arrived[order],
        prefill_tokens=np.concatenate([part.prefill_tokens for part in workloads])[order],
        decode_tokens=np.concatenate([part.decode_tokens for part in workloads])[order],
        block_hashes=None if hashes is None else _gather(hashes, order),
        sessions=_joined_sessions(workloads, order),
        classes=_joined_classes(workloads, order),
        priority=_joined_priorities(workloads, order),
        max_output_tokens=_joined_asked(workloads, order),
        pacing=_joined_pacing(workloads, order),
        name="+".join(parts),
        source="; ".join(f"{name}: {part.source}" for name, part in parts.items()),
        trimmed_requests=sum(part.trimmed_requests for part in workloads),
        skipped_rows=sum(part.skipped_rows for part in workloads),
    )


def _reordered(workload: Workload, order: NDArray[np.intp], arrived_ps: NDArray[np.int64]) -> Workload:
    """The requests at ``order``, arriving at ``arrived_ps``."""
    return replace(
        workload,
        request_ids=tuple(workload.request_ids[i] for i in order.tolist()),
        arrived_ps=arrived_ps,
        prefill_tokens=workload.prefill_tokens[order],
        decode_tokens=workload.decode_tokens[order],
        block_hashes=None if workload.block_hashes is None else _gather(workload.block_hashes, order),
        sessions=None if workload.sessions is None else workload.sessions.of(order),
        classes=None if workload.classes is None else Classes(workload.classes.names, workload.classes.of[order]),
        priority=None if workload.priority is None else workload.priority[order],
        max_output_tokens=None if workload.max_output_tokens is None else workload.max_output_tokens[order],
        pacing=None if workload.pacing is None else workload.pacing.of(order),
    )


def _noted(workload: Workload, note: str) -> Workload:
    return replace(workload, source=f"{workload.source}, {note}" if workload.source else note)


def _scaled_tokens(tokens: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
    # One above the limit is enough for the workload to refuse a product that int64 could not hold.
    scaled: NDArray[np.int64] = np.clip(np.rint(tokens * factor), 1, MAX_TOKENS + 1).astype(np.int64)
    return scaled


def _with_lengths(workload: Workload, prompt: NDArray[np.int64], output: NDArray[np.int64]) -> Workload:
    """The same requests with shorter (or, without block ids, any) lengths."""
    hashes = workload.block_hashes
    if hashes is not None:
        named = hashes.hashed_tokens
        if named is not None:  # a shorter prompt has lost what led to the answer
            named = np.where(prompt < workload.prefill_tokens, prompt, np.minimum(named, prompt + output))
        blocks = -(-(prompt if named is None else named) // hashes.block_tokens)
        kept = _spans(hashes.offsets[:-1], blocks)
        hashes = BlockHashes(_offsets(blocks), hashes.ids[kept], hashes.block_tokens, named)
    asked = workload.max_output_tokens
    return replace(
        workload,
        prefill_tokens=prompt,
        decode_tokens=output,
        block_hashes=hashes,
        max_output_tokens=None if asked is None else np.maximum(asked, output),
    )


def _gather(hashes: BlockHashes, order: NDArray[np.intp]) -> BlockHashes:
    """The rows of ``hashes`` in another order."""
    blocks = np.diff(hashes.offsets)[order]
    named = None if hashes.hashed_tokens is None else hashes.hashed_tokens[order]
    ids = hashes.ids[_spans(hashes.offsets[:-1][order], blocks)]
    return BlockHashes(_offsets(blocks), ids, hashes.block_tokens, named)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _spans(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices start, start + 1, … of every span, one span after the other."""
    offsets = _offsets(lengths)
    indices: NDArray[np.int64] = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return indices


def _joined_hashes(parts: Mapping[str, Workload]) -> BlockHashes | None:
    sizes = {name: part.block_hashes.block_tokens for name, part in parts.items() if part.block_hashes is not None}
    if not sizes:
        return None
    (first, block_tokens), *others = sizes.items()
    for name, size in others:
        if size != block_tokens:
            raise InputError(
                f"parts.{name}: found hash blocks of {size} tokens, expected {block_tokens} (as in parts.{first})"
            )
    used = 0
    counts, ids = [], []
    named: list[NDArray[np.int64] | None] = []
    for part in parts.values():
        if part.block_hashes is None:
            blocks = -(-part.prefill_tokens // block_tokens)
            own = np.arange(blocks.sum())
            named.append(None)
        else:
            named.append(part.block_hashes.hashed_tokens)
            blocks, own = np.diff(part.block_hashes.offsets), part.block_hashes.ids
        counts.append(blocks)
        ids.append(own + used)
        used = int(ids[-1].max()) + 1
    prompts = [part.prefill_tokens for part in parts.values()]
    are_longer = any(tokens is not None for tokens in named)
    hashed = np.concatenate([of if of is not None else prompt for of, prompt in zip(named, prompts, strict=True)])
    return BlockHashes(
        _offsets(np.concatenate(counts)), np.concatenate(ids), block_tokens, hashed if are_longer else None
    )


def _joined_sessions(parts: Sequence[Workload], order: NDArray[np.intp]) -> Sessions | None:
    """Sessions of all parts; a request of a part without them is one of its own."""
    if all(part.sessions is None for part in parts):
        return None
    used = rows = 0
    columns: list[list[NDArray[np.int64]]] = []
    for part in parts:
        own = part.sessions or Sessions.of_single_requests(len(part))
        columns.append([own.session + used, own.turn, shifted(own.previous, rows)])
        used, rows = used + int(own.session.max()) + 1, rows + len(part)
    return Sessions(*map(np.concatenate, zip(*columns, strict=True))).of(order)


def _joined_classes(parts: Sequence[Workload], order: NDArray[np.intp]) -> Classes | None:
    """Classes of all parts; those of one name are one class."""
    names = [np.full(len(part), "", dtype=object) if part.classes is None else part.classes.name_of for part in parts]
    return named_classes(np.concatenate(names)[order].tolist())


def _joined_priorities(parts: Sequence[Workload], order: NDArray[np.intp]) -> NDArray[np.int64] | None:
    if all(part.priority is None for part in parts):
        return None
    own = [np.zeros(len(part), dtype=np.int64) if part.priority is None else part.priority for part in parts]
    return np.concatenate(own)[order]


def _joined_asked(parts: Sequence[Workload], order: NDArray[np.intp]) -> NDArray[np.int64] | None:
    if all(part.max_output_tokens is None for part in parts):
        return None
    own = [part.decode_tokens if part.max_output_tokens is None else part.max_output_tokens for part in parts]
    return np.concatenate(own)[order]


def _joined_pacing(parts: Sequence[Workload], order: NDArray[np.intp]) -> Pacing | None:
    """Pacing of all parts, each with its own clients; a request of a part without it is sent at its time."""
    if all(part.pacing is None for part in parts):
        return None
    rows = 0
    populations: list[Clients] = []
    columns: list[list[NDArray[np.int64]]] = []
    for part in parts:
        own = part.pacing or Pacing.of_timed_requests(len(part))
        columns.append([shifted(own.follows, rows), own.think_ps, shifted(own.population, len(populations))])
        populations += own.populations
        rows += len(part)
    follows, think_ps, population = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Pacing(follows, think_ps, population, tuple(populations)).of(order)
