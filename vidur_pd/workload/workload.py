"""The requests of a run: when they arrive, how long they are, and which prompt blocks they share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from boundary.plain_text import first_faulty, name_fault
from vidur_pd.workload.pacing import NOBODY, Pacing, Sessions

MAX_TOKENS = 2**31 - 1
"""Longest prompt or output accepted: far beyond any context window, and safe to sum over a workload in int64."""
PS_PER_S = 10**12
MAX_ARRIVAL_S = 4_000_000
"""Latest arrival accepted, 46 days from the start. The network's clock ends at 2^62 ps (4,611,686 s); what lies between
is left for serving the last requests."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockHashes:
    """Identities of the blocks of every request, in CSR form.

    Request ``i`` has ``ids[offsets[i]:offsets[i + 1]]``, one id per ``block_tokens`` tokens; its last block may be
    partial. Equal ids mean equal tokens *and* equal tokens before them, as in the Mooncake traces. They name the prompt
    and, where ``hashed_tokens`` says so, what follows it: the answer.
    """

    offsets: NDArray[np.int64]
    """[requests + 1]"""
    ids: NDArray[np.int64]
    """[blocks]"""
    block_tokens: int
    hashed_tokens: NDArray[np.int64] | None = None
    """[requests] leading tokens of prompt and answer that the ids name; ``None``: the prompts."""

    def __post_init__(self) -> None:
        if self.hashed_tokens is not None:
            object.__setattr__(self, "hashed_tokens", _read_only(self.hashed_tokens))
        object.__setattr__(self, "offsets", _read_only(self.offsets))
        object.__setattr__(self, "ids", _read_only(self.ids))
        if self.block_tokens < 1:
            raise InputError(f"BlockHashes.block_tokens: found {self.block_tokens}, expected at least 1")
        is_csr = (
            len(self.offsets) > 0
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.ids)
            and bool(np.all(np.diff(self.offsets) >= 0))
        )
        if not is_csr:
            raise InputError("BlockHashes.offsets: expected non-decreasing values from 0 to the number of ids")
        if len(self.ids) and self.ids.min() < 0:
            raise InputError(f"BlockHashes.ids: found {self.ids.min()}, expected no negative id")

    def of(self, request: int) -> NDArray[np.int64]:
        """Ids of the blocks of one request, first block first."""
        return self.ids[self.offsets[request] : self.offsets[request + 1]]


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Classes of requests."""

    names: tuple[str, ...]
    of: NDArray[np.int64]
    """[requests] position in the names; `NOBODY`: the request has no class."""

    @property
    def name_of(self) -> NDArray[np.object_]:
        """[requests] names; empty for none."""
        return np.array((*self.names, ""), dtype=object)[self.of]  # `NOBODY` is the last position


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests in order of arrival. Arrays are read-only, one entry per request.

    Raises ``InputError`` when lengths disagree, a token count is below 1, an arrival is negative, later than
    `MAX_ARRIVAL_S` or earlier than the one before it, an id occurs twice or is no plain text of one line, or the block
    hashes do not cover the prompts exactly.
    """

    request_ids: tuple[str, ...]
    arrived_ps: NDArray[np.int64]
    """[requests] non-decreasing, from the start of the simulation."""
    prefill_tokens: NDArray[np.int64]
    """[requests] prompt length, at least 1."""
    decode_tokens: NDArray[np.int64]
    """[requests] output length, at least 1: the first token counts, although the prefill produces it."""
    block_hashes: BlockHashes | None = None
    """Which blocks are shared; ``None`` where the source says nothing about it."""
    sessions: Sessions | None = None
    """Which requests are turns of one conversation."""
    pacing: Pacing | None = None
    """Which requests are sent after others have ended. Their ``arrived_ps`` only orders them."""
    classes: Classes | None = None
    priority: NDArray[np.int64] | None = None
    """[requests] the smaller goes first; ``None``: all are equal."""
    max_output_tokens: NDArray[np.int64] | None = None
    """[requests] what was asked for, at least the output; ``None``: the output."""
    name: str = "workload"
    source: str = ""
    """Where the requests come from and what was done to them, in one line."""
    trimmed_requests: int = 0
    """Requests shortened to fit a token limit."""
    skipped_rows: int = 0
    """Rows of a trace left out because they have no output."""

    def __post_init__(self) -> None:
        for field in ("arrived_ps", "prefill_tokens", "decode_tokens", "priority", "max_output_tokens"):
            if getattr(self, field) is not None:
                object.__setattr__(self, field, _read_only(getattr(self, field)))
        _check_lengths(self)
        _check_values(self)
        if self.block_hashes is not None:
            _check_blocks(self, self.block_hashes)

    def __len__(self) -> int:
        return len(self.request_ids)

    @property
    def span_ps(self) -> int:
        """Time from the first to the last arrival."""
        return int(self.arrived_ps[-1] - self.arrived_ps[0])

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that workloads of equal arrivals, lengths and shared blocks have in common."""
        sums = hashlib.sha256()
        arrays = [self.arrived_ps, self.prefill_tokens, self.decode_tokens]
        if self.block_hashes is not None:
            arrays += [np.array([self.block_hashes.block_tokens]), self.block_hashes.offsets, self.block_hashes.ids]
            arrays += [] if self.block_hashes.hashed_tokens is None else [self.block_hashes.hashed_tokens]
        arrays += [] if self.priority is None else [self.priority]
        arrays += [] if self.max_output_tokens is None else [self.max_output_tokens]
        arrays += [] if self.classes is None else [self.classes.of]
        if self.pacing is not None:
            arrays += [self.pacing.follows, self.pacing.think_ps, self.pacing.population]
            arrays += [np.array([each.clients, each.until_ps or NOBODY]) for each in self.pacing.populations]
        for values in arrays:
            sums.update(np.ascontiguousarray(values, dtype="<i8").data)
        return sums.hexdigest()[:16]

    def engine_block_ids(self, request: int, block_tokens: int) -> NDArray[np.int64]:
        """Ids of the full KV blocks of ``block_tokens`` in a prompt, first block first.

        One hash block becomes ``hash block / block_tokens`` engine blocks. An engine can share full blocks only, so
        a partial last block contributes the engine blocks it fills and no more. Empty without block hashes.

        Raises:
            InputError: ``block_tokens`` does not divide the hash block.
        """
        if self.block_hashes is None:
            return np.zeros(0, dtype=np.int64)
        hash_tokens = self.block_hashes.block_tokens
        if block_tokens < 1 or hash_tokens % block_tokens:
            raise InputError(
                f"block_tokens: found {block_tokens}, expected a divisor of the hash block ({hash_tokens})"
            )
        per_hash_block = hash_tokens // block_tokens
        expanded = self.block_hashes.of(request)[:, np.newaxis] * per_hash_block + np.arange(per_hash_block)
        return expanded.reshape(-1)[: int(self.prefill_tokens[request]) // block_tokens]


def _read_only(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """A private int64 copy that cannot be written to; refuses values that are not whole numbers."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"Workload: found an array of {array.ndim} dimensions, expected 1")
    if array.dtype.kind == "f":
        if not bool(np.all(np.isfinite(array))):
            raise InputError("Workload: found NaN or infinity, expected whole numbers")
        if bool(np.any(array != np.floor(array))):
            raise InputError("Workload: found a fraction, expected whole numbers")
    elif len(array) and array.dtype.kind not in "iu":
        raise InputError(f"Workload: found values of type {array.dtype}, expected whole numbers")
    copy = np.array(array, dtype=np.int64)
    copy.setflags(write=False)
    return copy


def _check_lengths(workload: Workload) -> None:
    requests = len(workload.request_ids)
    if not requests:
        raise InputError(f"{workload.name}: found no request, expected at least 1")
    for field, values in _columns(workload):
        found = len(values)
        if found != requests:
            raise InputError(f"{workload.name}: {field}: found {found} entries, expected {requests} (as request_ids)")
    if (faulty := first_faulty(workload.request_ids)) is not None:
        fault = name_fault(workload.request_ids[faulty])
        raise InputError(f"{workload.name}: request_id of request {faulty}: {fault}")
    if len(set(workload.request_ids)) != requests:
        seen: set[str] = set()
        twice = next(i for i in workload.request_ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise InputError(f"{workload.name}: request_id: found {twice!r} twice, expected unique ids")


def _columns(workload: Workload) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """What has one entry per request."""
    for field in ("arrived_ps", "prefill_tokens", "decode_tokens"):
        yield field, getattr(workload, field)
    if workload.priority is not None:
        yield "priority", workload.priority
    if workload.max_output_tokens is not None:
        yield "max_output_tokens", workload.max_output_tokens
    if workload.classes is not None:
        yield "classes", workload.classes.of
    for part in (workload.sessions, workload.pacing):
        for each in () if part is None else fields(part):
            if isinstance(values := getattr(part, each.name), np.ndarray):
                yield each.name, values


def _check_values(workload: Workload) -> None:
    for field in ("prefill_tokens", "decode_tokens"):
        values = getattr(workload, field)
        wrong = np.flatnonzero((values < 1) | (values > MAX_TOKENS))
        if len(wrong):
            i = int(wrong[0])
            raise InputError(
                f"{workload.name}: {field} of request {workload.request_ids[i]}: "
                f"found {values[i]}, expected 1 to {MAX_TOKENS}"
            )
    _check_asked(workload)
    arrived = workload.arrived_ps
    if arrived[-1] > MAX_ARRIVAL_S * PS_PER_S:
        raise InputError(
            f"{workload.name}: arrived_ps of request {workload.request_ids[-1]}: found {arrived[-1] / PS_PER_S:.0f} s, "
            f"expected at most {MAX_ARRIVAL_S} s"
        )
    if arrived[0] < 0:
        raise InputError(f"{workload.name}: arrived_ps: found {arrived[0]}, expected no negative time")
    back = np.flatnonzero(np.diff(arrived) < 0)
    if len(back):
        i = int(back[0]) + 1
        raise InputError(
            f"{workload.name}: arrived_ps of request {workload.request_ids[i]}: "
            f"found {arrived[i]}, expected at least {arrived[i - 1]} (order of arrival)"
        )


def _check_asked(workload: Workload) -> None:
    """Nobody gets more than was asked for."""
    asked = workload.max_output_tokens
    if asked is None:
        return
    wrong = np.flatnonzero((asked < workload.decode_tokens) | (asked > MAX_TOKENS))
    if len(wrong):
        i = int(wrong[0])
        raise InputError(
            f"{workload.name}: max_output_tokens of request {workload.request_ids[i]}: found {asked[i]}, "
            f"expected {workload.decode_tokens[i]} (its output) to {MAX_TOKENS}"
        )


def _check_blocks(workload: Workload, hashes: BlockHashes) -> None:
    requests = len(workload)
    if len(hashes.offsets) != requests + 1:
        raise InputError(
            f"{workload.name}: block_hashes.offsets: found {len(hashes.offsets)} entries, expected {requests + 1}"
        )
    found = np.diff(hashes.offsets)
    named = _hashed_tokens(workload, hashes)
    expected = -(-named // hashes.block_tokens)
    wrong = np.flatnonzero(found != expected)
    if len(wrong):
        i = int(wrong[0])
        raise InputError(
            f"{workload.name}: hash_ids of request {workload.request_ids[i]}: found {found[i]} ids, expected "
            f"{expected[i]} ({named[i]} tokens in blocks of {hashes.block_tokens})"
        )


def _hashed_tokens(workload: Workload, hashes: BlockHashes) -> NDArray[np.int64]:
    """[requests] tokens that the ids name: at least the prompt, at most prompt and answer."""
    named = hashes.hashed_tokens
    if named is None:
        return workload.prefill_tokens
    if len(named) != len(workload):
        raise InputError(f"{workload.name}: hashed_tokens: found {len(named)} entries, expected {len(workload)}")
    most = workload.prefill_tokens + workload.decode_tokens
    wrong = np.flatnonzero((named < workload.prefill_tokens) | (named > most))
    if len(wrong):
        i = int(wrong[0])
        raise InputError(
            f"{workload.name}: hashed_tokens of request {workload.request_ids[i]}: found {named[i]}, "
            f"expected {workload.prefill_tokens[i]} to {most[i]} (its prompt, or with its answer)"
        )
    return named
