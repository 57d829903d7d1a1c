"""Sessions: turns whose prompts contain all earlier prompts and answers, and that may wait for these answers.

The text of a session is: system prompt, first user text, first answer, second user text, … The prompt of a turn is
everything up to and including its user text; ``lengths`` draws user texts (prefill) and answers (decode). Block ids
name text together with all text before it, answers included: the blocks of a turn's prompt and answer are the leading
blocks of the next turn's prompt. Blocks inside the system prompt are shared by all sessions that use it.

Sessions begin as ``arrivals`` say: at times drawn before, or when a client is free. The number of turns is drawn for
each session; the last one ends with the last request of the workload.

Ignored: answers that are cut or left out of the next prompt (reasoning, tool calls), branches and retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from vidur_pd.config.arrivals import Arrivals, ClosedArrivals
from vidur_pd.config.sessions import DrawnSessions, FixedTurns, GeometricTurns, QuantileTurns, Turns, TurnTiming
from vidur_pd.config.workload import SyntheticWorkload
from vidur_pd.workload.arrivals import population_of, sample_arrivals, sample_think_times
from vidur_pd.workload.classes import LengthsByClass, classified, draw_classes, draw_lengths
from vidur_pd.workload.lengths import tokens_at
from vidur_pd.workload.pacing import NOBODY, Pacing, Sessions
from vidur_pd.workload.prefixes import PREFIX_BLOCK_TOKENS, Openings, check_blocks, csr
from vidur_pd.workload.transform import retimed
from vidur_pd.workload.workload import MAX_TOKENS, BlockHashes, Workload

Streams = Callable[[str], np.random.Generator]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Turns:
    """What is said. Arrays are [requests], session by session."""

    prompt: Rows
    answer: Rows
    asked: Rows
    """Longest answers that were asked for."""
    blocks: list[list[int]]
    """Of prompt and answer."""
    sessions: Sessions
    trimmed: int


def draw_sessions(config: SyntheticWorkload, base_dir: Path, rng: Streams) -> Workload:
    """The requests of a synthetic workload with ``sessions``."""
    sessions = config.sessions
    assert sessions is not None
    classes = draw_classes(config, config.requests, rng)  # of sessions
    said = _talk(sessions, draw_lengths(config, rng), classes, rng)
    answer = said.answer
    drawn = Workload(
        request_ids=tuple(
            f"{session}.{turn}"
            for session, turn in zip(said.sessions.session.tolist(), said.sessions.turn.tolist(), strict=True)
        ),
        arrived_ps=np.zeros(config.requests, dtype=np.int64),
        prefill_tokens=said.prompt,
        decode_tokens=answer,
        block_hashes=BlockHashes(*csr(said.blocks), sessions.hash_block_tokens, said.prompt + answer),
        sessions=said.sessions,
        name="synthetic",
        source=f"synthetic: {config.arrivals.kind} arrivals, {config.lengths.kind} lengths, sessions",
        trimmed_requests=said.trimmed,
        max_output_tokens=None if config.early_end is None else said.asked,
    )
    drawn = classified(drawn, config.classes, classes[said.sessions.session])
    begins_ps = sample_arrivals(config.arrivals, int(said.sessions.session[-1]) + 1, rng("arrivals"), base_dir)
    times_ps = begins_ps[said.sessions.session]
    think_ps = sample_think_times(sessions.think_time, config.requests, rng("think_times"))
    if sessions.next_turn == "at_time":
        return retimed(drawn, times_ps + _since_first(think_ps, said.sessions))
    return retimed(replace(drawn, pacing=_pacing(config.arrivals, said.sessions, think_ps, rng)), times_ps)


def follow_trace(workload: Workload, arrivals: Arrivals | None, timing: TurnTiming, rng: Streams) -> Workload:
    """A trace with turns that are sent as ``timing`` says. Closed ``arrivals`` let clients begin its sessions.

    Ids of answers are taken from the prompts that contain them.

    Raises: InputError, where no session is known.
    """
    sessions = workload.sessions
    if sessions is None:
        raise InputError(
            f"{workload.name}: sessions: found no conversations in the trace, expected session and turn, or chat_id "
            "and parent_chat_id"
        )
    named = replace(workload, block_hashes=_with_answers(workload, sessions))
    if timing.next_turn == "at_time":
        return named
    think_ps = sample_think_times(timing.think_time, len(workload), rng("think_times"))
    return replace(named, pacing=_pacing(arrivals, sessions, think_ps, rng))


def with_history(workload: Workload, common_tokens: int) -> Workload:
    """A trace whose prompts begin with what was said before in their session.

    That is the prompt of the turn before, and its answer where they are as long as both. A prompt that is shorter than
    the one before shares nothing with it: its history was cut.

    Args:
        workload: with sessions, and nothing known of what prompts share but their first ``common_tokens``.

    Raises: InputError, where no session is known, or prompts name prefixes of their own.
    """
    sessions = workload.sessions
    if sessions is None:
        raise InputError(f"{workload.name}: session_history: found no sessions in the trace, expected session and turn")
    if workload.block_hashes is not None and not common_tokens:
        raise InputError(f"{workload.name}: session_history: found prompts that name prefixes, expected none")
    common = list(range(common_tokens // PREFIX_BLOCK_TOKENS))
    fresh = count(len(common))
    said = workload.prefill_tokens + workload.decode_tokens
    ids: list[list[int]] = []
    blocks = 0
    for row, before in enumerate(sessions.previous.tolist()):
        known, prompt = common, int(workload.prefill_tokens[row])
        if before != NOBODY:
            kept = [int(each[before]) for each in (said, workload.prefill_tokens) if each[before] <= prompt]
            known = ids[before][: kept[0] // PREFIX_BLOCK_TOKENS] if kept else common
        named = -(-int(said[row]) // PREFIX_BLOCK_TOKENS)
        check_blocks(blocks := blocks + named, PREFIX_BLOCK_TOKENS)
        ids.append([*known, *(next(fresh) for _ in range(named - len(known)))])
    hashes = BlockHashes(*csr(ids), PREFIX_BLOCK_TOKENS, said)
    return replace(workload, block_hashes=hashes, source=f"{workload.source}, prompts with their history")


def _pacing(arrivals: Arrivals | None, sessions: Sessions, think_ps: Rows, rng: Streams) -> Pacing:
    """Turns that wait ``think_ps`` after the end of the turn before, in sessions that clients begin, if they do."""
    requests = len(think_ps)
    if not isinstance(arrivals, ClosedArrivals):
        return Pacing(sessions.previous, think_ps, np.full(requests, NOBODY), ())
    between_ps = sample_think_times(arrivals.think_time, requests, rng("client_think_times"))
    think_ps = np.where(sessions.previous == NOBODY, between_ps, think_ps)
    return Pacing(sessions.previous, think_ps, np.zeros(requests, dtype=np.int64), (population_of(arrivals),))


def _since_first(think_ps: Rows, sessions: Sessions) -> Rows:
    """[requests] from the first turn of a session to each, one think time after another; session by session."""
    is_first = sessions.previous == NOBODY
    passed_ps = np.cumsum(np.where(is_first, 0, think_ps))
    since_ps: Rows = passed_ps - passed_ps[np.flatnonzero(is_first)][sessions.session]
    return since_ps


def _with_answers(workload: Workload, sessions: Sessions) -> BlockHashes | None:
    """Ids of the answers that a later prompt of the same session continues, as far as its whole blocks go.

    A prompt continues another if it begins with all whole blocks of that.
    """
    hashes = workload.block_hashes
    if hashes is None:
        return None
    size = hashes.block_tokens
    ids = [hashes.of(row).tolist() for row in range(len(workload))]
    hashed = (workload.prefill_tokens if hashes.hashed_tokens is None else hashes.hashed_tokens).copy()
    for row in np.flatnonzero(sessions.previous != NOBODY).tolist():
        before = int(sessions.previous[row])
        prompt, answer = int(workload.prefill_tokens[before]), int(workload.decode_tokens[before])
        whole, named = prompt // size, min(prompt + answer, int(workload.prefill_tokens[row])) // size
        if named * size > hashed[before] and ids[row][:whole] == ids[before][:whole]:
            ids[before], hashed[before] = ids[row][:named], named * size
    return BlockHashes(*csr(ids), size, hashed)


def sample_turns(turns: Turns, sessions: int, random: np.random.Generator) -> Rows:
    """[sessions] numbers of turns."""
    match turns:
        case FixedTurns(turns=number):
            return np.full(sessions, number, dtype=np.int64)
        case GeometricTurns(mean=mean):
            return np.asarray(random.geometric(1 / mean, sessions))
        case QuantileTurns():
            return tokens_at(turns, random.random(sessions))


def _talk(config: DrawnSessions, lengths: LengthsByClass, classes: Rows, rng: Streams) -> _Turns:
    """Sessions until every request is a turn of one. ``classes``: [sessions], more than there will be."""
    requests = lengths.prefill.shape[1]
    openings = Openings(config, config.hash_block_tokens, requests, rng)
    turns = iter(sample_turns(config.turns, requests, rng("session_turns")).tolist())
    limit = config.max_prompt_tokens or MAX_TOKENS
    users_of, answers_of = lengths.prefill.tolist(), lengths.decode.tolist()
    prompts: list[int] = []
    said: list[int] = []
    blocks: list[list[int]] = []
    places: list[tuple[int, int, int]] = []  # session, turn, row of the turn before
    trimmed = total = 0
    for session in count():
        if len(prompts) == requests:
            break
        talk = openings.next()
        users, answers = users_of[classes[session]], answers_of[classes[session]]
        for turn in range(1, next(turns) + 1):
            row = len(prompts)
            if row == requests or (turn > 1 and talk.text_tokens + users[row] > limit):
                break
            prompt = min(talk.text_tokens + users[row], limit)
            trimmed += prompt < talk.text_tokens + users[row]
            talk.text_tokens = prompt + answers[row]
            named = -(-talk.text_tokens // config.hash_block_tokens)
            check_blocks(total := total + named, config.hash_block_tokens)
            talk.blocks.extend(next(openings.fresh) for _ in range(named - len(talk.blocks)))
            prompts.append(prompt)
            said.append(answers[row])
            blocks.append(list(talk.blocks))
            places.append((session, turn, row - 1 if turn > 1 else NOBODY))
    columns = np.array(places, dtype=np.int64).T
    asked = lengths.asked[classes[columns[0]], np.arange(requests)]
    return _Turns(
        np.array(prompts, dtype=np.int64),
        np.array(said, dtype=np.int64),
        asked,
        blocks,
        Sessions(columns[0], columns[1], columns[2]),
        trimmed,
    )
