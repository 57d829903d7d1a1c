"""Sessions: what their turns contain, when they are sent, and what traces say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boundary.errors import InputError
from tests.integration.small_runs import config, pool
from tests.vidur_pd.one_rank import OneRank
from tests.vidur_pd.workload_cases import contents, load, synthetic
from vidur_pd.scheduling.kv_blocks import PrefixCachingBlockPool
from vidur_pd.simulation.api import simulate
from vidur_pd.workload import Workload, read_trace
from vidur_pd.workload.pacing import NOBODY
from vidur_pd.workload.request import request_of
from vidur_pd.workload.source import RequestSource
from vidur_pd.workload.statistics import describe_workload
from vidur_pd.workload.writing import write_trace

TURNS = {"kind": "fixed", "turns": 3}


def drawn(requests: int = 12, arrivals: dict[str, Any] | None = None, **sessions: Any) -> Workload:
    section = synthetic(requests, sessions={"turns": TURNS, "system_tokens": 40, **sessions})
    lengths = {"kind": "lognormal", "prefill": {"mean": 50, "cv": 1}, "decode": {"mean": 30, "cv": 1}}
    return load(section | {"lengths": lengths} | ({} if arrivals is None else {"arrivals": arrivals}))


def ids_of(made: Workload, row: int) -> list[int]:
    assert made.block_hashes is not None
    ids: list[int] = made.block_hashes.of(row).tolist()
    return ids


def test_a_prompt_begins_with_prompt_and_answer_of_the_turn_before() -> None:
    made = drawn(300, turns={"kind": "geometric", "mean": 4})
    assert made.sessions is not None
    assert made.block_hashes is not None
    assert made.block_hashes.hashed_tokens is not None
    followed = np.flatnonzero(made.sessions.previous != NOBODY).tolist()
    assert len(followed) > 150
    for row in followed:
        before = int(made.sessions.previous[row])
        said = int(made.prefill_tokens[before] + made.decode_tokens[before])
        assert made.block_hashes.hashed_tokens[before] == said
        assert made.prefill_tokens[row] > said
        assert ids_of(made, row)[: -(-said // 16)] == ids_of(made, before)
        assert made.sessions.turn[row] == made.sessions.turn[before] + 1


def test_sessions_share_the_whole_blocks_of_their_system_prompt_and_nothing_else() -> None:
    """40 tokens fill two blocks of 16."""
    made = drawn(9)
    assert made.sessions is not None
    heads = np.flatnonzero(made.sessions.turn == 1).tolist()
    assert len(heads) == 3
    first, *others = [ids_of(made, row) for row in heads]
    assert all(ids[:2] == first[:2] and not set(ids[2:]) & set(first) for ids in others)


@pytest.mark.parametrize(
    ("turns", "numbers"),
    [
        (TURNS, [1, 2, 3] * 3 + [1]),
        ({"kind": "quantiles", "quantiles": [[0, 5], [1, 5]]}, [1, 2, 3, 4, 5] * 2),
        ({"kind": "geometric", "mean": 1}, [1] * 10),
    ],
)
def test_sessions_have_the_turns_asked_for_and_the_last_is_cut(turns: dict[str, Any], numbers: list[int]) -> None:
    made = drawn(10, turns=turns)
    assert made.sessions is not None
    order = np.lexsort((made.sessions.turn, made.sessions.session))
    assert made.sessions.turn[order].tolist() == numbers


def test_a_geometric_number_of_turns_has_the_mean_asked_for() -> None:
    """Standard deviation √(m² − m) = 5.5 over some 3,300 sessions: 0.1; the bound is four of them."""
    made = drawn(20_000, turns={"kind": "geometric", "mean": 6})
    assert made.sessions is not None
    sessions = int(made.sessions.session.max()) + 1
    assert 20_000 / sessions == pytest.approx(6, abs=0.4)


def test_a_session_ends_rather_than_grow_beyond_the_limit_and_a_first_turn_is_trimmed() -> None:
    made = drawn(400, turns={"kind": "fixed", "turns": 50}, max_prompt_tokens=180)
    assert made.prefill_tokens.max() == 180
    assert made.trimmed_requests > 0
    assert made.sessions is not None
    long = np.flatnonzero(made.prefill_tokens == 180)
    assert len(long) >= made.trimmed_requests
    assert 1 < made.sessions.turn.max() < 10


def ends(source: RequestSource, serve_ps: int) -> list[tuple[int, int]]:
    """(row, time sent) of all requests, each of which ends ``serve_ps`` after it was sent."""
    waiting = sorted([(each.at_ps, each.row) for each in [*source.timed(), *source.first()]])
    sent = []
    while waiting:
        at_ps, row = waiting.pop(0)
        sent.append((row, at_ps))
        waiting = sorted(waiting + [(each.at_ps, each.row) for each in source.after(row, at_ps + serve_ps)])
    assert source.expected == len(sent)
    return sent


def test_open_sessions_begin_at_their_times_and_turns_wait_for_answers() -> None:
    made = drawn(30, {"kind": "constant", "qps": 2}, think_time={"kind": "constant", "s": 3})
    assert made.sessions is not None
    at_ps = dict(ends(RequestSource(made), 10**12))
    expected = made.sessions.session * 10**12 // 2 + (made.sessions.turn - 1) * 4 * 10**12
    assert at_ps == dict(enumerate(expected.tolist()))


def test_clients_have_one_session_after_another() -> None:
    """Two clients, sessions of three turns: 4 s from turn to turn, 1 + 7 s from session to session."""
    arrivals = {"kind": "closed", "clients": 2, "think_time": {"kind": "constant", "s": 7}}
    made = drawn(18, arrivals, think_time={"kind": "constant", "s": 3})
    assert made.sessions is not None
    at_ps = dict(ends(RequestSource(made), 10**12))
    begins_s = made.sessions.session // 2 * (4 + 4 + 1 + 7)
    assert at_ps == dict(enumerate(((begins_s + (made.sessions.turn - 1) * 4) * 10**12).tolist()))


def test_a_client_that_may_send_no_more_ends_its_session() -> None:
    made = drawn(18, {"kind": "closed", "clients": 2, "duration_s": 5}, think_time={"kind": "constant", "s": 3})
    source = RequestSource(made)
    assert [at_ps / 10**12 for _, at_ps in ends(source, 10**12)] == [0, 0, 4, 4]
    assert [source.arrived_ps[row] / 10**12 for row in np.asarray(source.sent)] == [0, 0, 4, 4]


def test_turns_at_times_known_before_follow_by_think_times() -> None:
    made = drawn(30, {"kind": "constant", "qps": 2}, think_time={"kind": "constant", "s": 3}, next_turn="at_time")
    assert made.pacing is None
    assert made.sessions is not None
    expected = made.sessions.session * 10**12 // 2 + (made.sessions.turn - 1) * 3 * 10**12
    assert made.arrived_ps.tolist() == expected.tolist() == sorted(expected.tolist())


def test_think_times_leave_what_is_said_alone() -> None:
    slow = drawn(60, think_time={"kind": "exponential", "mean_s": 9})
    fast = drawn(60, think_time={"kind": "lognormal", "mean_s": 9, "cv": 2})
    assert contents(slow) == contents(fast)
    assert slow.digest != fast.digest


@pytest.mark.parametrize("block_tokens", [16, 8, 48])
def test_a_turn_hits_the_prompt_and_the_answer_of_the_turn_before(block_tokens: int) -> None:
    """All whole blocks of both: the last token of an answer never has KV."""
    made = drawn(3)
    rank = OneRank(
        PrefixCachingBlockPool(1000, block_tokens, 16), max_batched_tokens=1000, max_seqs=1, max_model_len=10**5
    )
    hit = []
    for row in range(3):
        request = request_of(made, row, 0)
        assert request.hashed_tokens == request.prompt_tokens + request.output_tokens
        rank.add(request)
        while (batch := rank.schedule()) is not None:
            rank.finish(batch)
        assert request.generated_tokens == request.output_tokens
        hit.append(request.cached_tokens)
    computed = (made.prefill_tokens + made.decode_tokens - 1).tolist()
    assert hit == [0, *(tokens // block_tokens * block_tokens for tokens in computed[:2])]


def test_turns_of_a_simulation_hit_earlier_answers_where_these_were_generated() -> None:
    """On one instance for both phases all of it; a prefill instance has the KV of its prompts alone."""
    workload = synthetic(30, sessions={"turns": TURNS, "think_time": {"kind": "constant", "s": 1}}) | {
        "lengths": {"kind": "lognormal", "prefill": {"mean": 300, "cv": 1}, "decode": {"mean": 60, "cv": 1}}
    }
    apart = [pool("p", "prefill"), pool("d", "decode")]
    for pools, answers in (([pool("m", "mixed")], 1), (apart, 0)):
        result = simulate(config(pools, workload=workload, engine={"prefix_caching": True}))
        assert result.workload.sessions is not None
        records = {record.request_id: record for record in result.table.records()}
        ids = result.workload.request_ids
        checked = 0
        for row, before in enumerate(result.workload.sessions.previous.tolist()):
            if before == NOBODY:
                continue
            first, second = records[ids[before]], records[ids[row]]
            tokens = first.prompt_tokens + answers * (first.output_tokens - 1)
            assert second.cached_tokens == tokens // 16 * 16
            checked += 1
        assert checked == 20


CHATS = [
    {"chat_id": 7, "parent_chat_id": -1, "turn": 1, "timestamp": 0, "input_length": 40, "output_length": 30},
    {"chat_id": 8, "parent_chat_id": -1, "turn": 1, "timestamp": 1, "input_length": 20, "output_length": 5},
    {"chat_id": 9, "parent_chat_id": 7, "turn": 2, "timestamp": 4, "input_length": 90, "output_length": 5},
    {"chat_id": 10, "parent_chat_id": 3, "turn": 5, "timestamp": 5, "input_length": 16, "output_length": 5},
]
IDS = [[1, 2, 3], [4, 5], [1, 2, 6, 7, 8, 9], [1]]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row | {"hash_ids": i}) + "\n" for row, i in zip(CHATS, IDS, strict=True)))
    return path


def test_chats_of_a_trace_are_read_and_kept(chats: Path, tmp_path: Path) -> None:
    """The fourth row's parent is not in the trace: it begins a session, in its fifth turn."""
    made = read_trace(chats).workload
    assert made.sessions is not None
    assert made.sessions.session.tolist() == [0, 1, 0, 2]
    assert made.sessions.turn.tolist() == [1, 1, 2, 5]
    assert made.sessions.previous.tolist() == [-1, -1, 0, -1]
    for name in ("t.csv", "t.jsonl"):
        write_trace(made, tmp_path / name)
        again = read_trace(tmp_path / name).workload
        assert contents(again) == contents(made)
        assert again.sessions is not None
        assert again.sessions.session.tolist() == [0, 1, 0, 2]
        assert again.sessions.turn.tolist() == [1, 1, 2, 5]


def test_the_next_turn_of_a_trace_waits_for_the_answer_and_names_it(chats: Path) -> None:
    """40 + 30 tokens fill four blocks of 16, whose ids the next prompt has; it is sent 2 s after the answer."""
    pace = {"think_time": {"kind": "constant", "s": 2}}
    made = load({"kind": "trace", "path": str(chats), "sessions": pace})
    assert made.block_hashes is not None
    assert made.block_hashes.hashed_tokens is not None
    assert made.block_hashes.hashed_tokens.tolist() == [64, 20, 90, 16]
    assert ids_of(made, 0) == [1, 2, 6, 7]
    sent = dict(ends(RequestSource(made), 10**13))
    assert [sent[row] / 10**12 for row in range(4)] == [0, 1, 12, 5]


def test_a_trace_keeps_its_times_where_that_is_asked_for(chats: Path) -> None:
    made = load({"kind": "trace", "path": str(chats), "sessions": {"next_turn": "at_time"}})
    assert made.pacing is None
    assert made.arrived_ps.tolist() == [0, 10**12, 4 * 10**12, 5 * 10**12]
    assert ids_of(made, 0) == [1, 2, 6, 7]


def test_clients_go_through_the_sessions_of_a_trace(chats: Path) -> None:
    arrivals = {"kind": "closed", "clients": 1}
    made = load({"kind": "trace", "path": str(chats), "sessions": {}, "arrivals": arrivals})
    assert ends(RequestSource(made), 10**12) == [(0, 0), (2, 10**12), (1, 2 * 10**12), (3, 3 * 10**12)]


def test_sessions_survive_a_mix_and_a_window(chats: Path) -> None:
    trace = {"kind": "trace", "path": str(chats), "sessions": {}}
    sessions = {"turns": TURNS, "system_tokens": 40}
    closed = synthetic(4, sessions=sessions, arrivals={"kind": "closed", "clients": 1})
    made = load(
        {"kind": "mix", "parts": {"plain": synthetic(3) | {"arrivals": {"kind": "static"}}, "a": trace, "b": closed}}
    )
    assert made.sessions is not None
    assert made.pacing is not None
    names = dict(ends(RequestSource(made), 10**12))
    sent = {made.request_ids[row]: at_ps // 10**12 for row, at_ps in names.items()}
    assert sent == {"plain-0": 0, "plain-1": 0, "plain-2": 0, "a-0": 0, "a-1": 1, "a-2": 1, "a-3": 5} | {
        "b-0.1": 0, "b-0.2": 1, "b-0.3": 2, "b-1.1": 3,
    }  # fmt: skip
    late = load(trace | {"window": {"start_s": 1}})
    assert late.sessions is not None
    assert late.sessions.previous.tolist() == [NOBODY] * 3


def test_a_perfect_cache_has_answers_too() -> None:
    """Of the second and third prompt all blocks but those with the user's text; of the first none."""
    made = drawn(3)
    found = describe_workload(made)
    prompts, answers = made.prefill_tokens.tolist(), made.decode_tokens.tolist()
    said = [-(-(prompt + answer) // 16) for prompt, answer in zip(prompts, answers, strict=True)]
    blocks = [-(-prompt // 16) for prompt in prompts]
    assert found.prompt_blocks == sum(blocks)
    assert found.perfect_cache_hit_share == (said[0] + said[1]) / sum(blocks)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sessions": {"turns": {"kind": "fixed", "turns": 0}}}, "turns"),
        ({"sessions": {"turns": TURNS}, "prefixes": {}}, "sessions: found together with prefixes, expected one"),
        (
            {"sessions": {"turns": TURNS, "next_turn": "at_time"}, "arrivals": {"kind": "closed", "clients": 3}},
            "next_turn: found at_time with closed arrivals, expected after_answer",
        ),
        ({"prefixes": {}, "arrivals": {"kind": "closed", "clients": 3}}, "prefixes: found with closed arrivals"),
        ({"sessions": {"turns": TURNS, "max_prompt_tokens": 512}}, "system_tokens: found 512, expected less than"),
    ],
)
def test_what_does_not_fit_together_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(synthetic(10) | fields)


def test_a_trace_without_sessions_cannot_have_a_pace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,prefill_tokens,decode_tokens\n0,5,5\n")
    with pytest.raises(InputError, match=r"t\.csv: sessions: found no conversations in the trace, expected session"):
        load({"kind": "trace", "path": "t.csv", "sessions": {}}, base_dir=tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,5,5,a,1\n1,5,5,a,x\n", "line 3: turn: found 'x', expected a whole number of at least 1"),
        ("0,5,5,,1\n", "line 2: session: found '', expected the name of a conversation"),
    ],
)
def test_wrong_turns_name_line_and_field(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "t.csv").write_text("arrived_at_s,prefill_tokens,decode_tokens,session,turn\n" + rows)
    with pytest.raises(InputError, match=message):
        read_trace(tmp_path / "t.csv")


def test_what_waits_for_answers_is_not_written_as_a_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found requests that wait for others to end"):
        write_trace(drawn(3), tmp_path / "t.csv")
