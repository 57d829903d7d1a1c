"""Schedules of micro-batches on attention workers and FFN workers: worked out by hand, bounds, and any slow-down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicb.iteration.ping_pong import PIECES, PingPong

Piece = tuple[float, float]
Pieces = tuple[Piece, Piece, Piece, Piece]
NONE: Piece = (0.0, 0.0)


def schedule(
    layers: int,
    micro_batches: int,
    *,
    attention: float,
    ffn: float,
    send: float = 0.0,
    back: float = 0.0,
    first: float = 0.0,
    last: float = 0.0,
) -> PingPong:
    """Equal layers and micro-batches."""
    pieces: Pieces = ((attention, 0.0), (0.0, send), (ffn, 0.0), (0.0, back))
    return PingPong(
        kind_of_layer=[0] * layers,
        pieces=[[pieces] * micro_batches],
        first=[(first, 0.0)] * micro_batches,
        last=(last, 0.0),
    )


def test_two_layers_of_two_micro_batches_by_hand() -> None:
    """Attention 10, send 3, FFN 8, return 2, after 1 of embedding each and before a head of 5.

        attention  |1 A00 |1 A01 |      A10       |A11     ·|        head
                   1    11 12  22  24        34 35      45           58  63
        send          11 14     22 25            34 37    45 48
        FFN              14  22    25  33           37  45   48  56
        return               22 24     33 35            45 47    56 58

    Layer 1 of micro-batch 0 waits for its return at 24, not for the attention workers, which are free at 22; that of
    micro-batch 1 for its return at 35, after the attention workers at 34.
    """
    made = schedule(2, 2, attention=10, send=3, ffn=8, back=2, first=1, last=5)
    expected = [
        [[[1, 11], [11, 14], [14, 22], [22, 24]], [[12, 22], [22, 25], [25, 33], [33, 35]]],
        [[[24, 34], [34, 37], [37, 45], [45, 47]], [[35, 45], [45, 48], [48, 56], [56, 58]]],
    ]
    assert PIECES == ("attention", "send", "ffn", "return")
    assert made.timeline().tolist() == expected
    assert made.time().lasting_ps() == 63


def test_without_communication_the_same_two_take_turns() -> None:
    """Attention 1-11, 12-22, 22-32, 32-42, the FFN of the last 42-50, the head to 55; nothing waits but FFN workers."""
    assert schedule(2, 2, attention=10, send=3, ffn=8, back=2, first=1, last=5).time().lasting_ps(0.0) == 55


@given(
    st.integers(1, 20),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(1, 4),
)
def test_one_micro_batch_takes_all_its_pieces_one_after_another(
    layers: int, attention: float, send: float, ffn: float, back: float, last: float, slowdown: float
) -> None:
    made = schedule(layers, 1, attention=attention, send=send, ffn=ffn, back=back, first=7, last=last)
    whole = 7 + layers * (attention + ffn + slowdown * (send + back)) + last
    assert made.time().lasting_ps(slowdown) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(("attention", "ffn"), [(10.0, 8.0), (10.0, 10.0), (6.0, 10.0)])
@pytest.mark.parametrize("micro_batches", [2, 3, 8])
def test_with_a_free_network_the_slower_workers_never_wait(attention: float, ffn: float, micro_batches: int) -> None:
    """layers · m · max(attention, FFN), and the shorter one once, to fill or to empty the pipeline."""
    found = schedule(20, micro_batches, attention=attention, ffn=ffn).time()
    assert found.lasting_ps() == pytest.approx(20 * micro_batches * max(attention, ffn) + min(attention, ffn))


def test_enough_micro_batches_hide_what_communication_takes() -> None:
    """Attention 10, FFN 10, 5 each way: a micro-batch is away for 20 of the attention workers' time, so that two leave
    them without work for 10 in every round of 30, and three for none (MegaScale-Infer's condition: m at least
    2 · (1 + 5 / 10) = 3)."""
    lasting = [schedule(100, m, attention=10, send=5, ffn=10, back=5).time().lasting_ps() for m in (1, 2, 3, 4)]
    assert lasting[0] == 100 * 30
    assert lasting[1] == 100 * 30 + 10
    assert lasting[2] == 100 * 30 + 20
    assert lasting[3] == 100 * 40 + 20


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[list[Pieces]], list[Piece], Piece]:
    kinds, count = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    time = st.sampled_from([0.0]) | st.integers(0, 1000).map(float)
    piece = st.tuples(time, time)
    pieces = [[draw(st.tuples(piece, piece, piece, piece)) for _ in range(count)] for _ in range(kinds)]
    layers = draw(st.lists(st.integers(0, kinds - 1), min_size=1, max_size=12))
    return layers, pieces, [draw(piece) for _ in range(count)], draw(piece)


def reference(
    kind_of_layer: list[int], pieces: list[list[Pieces]], first: list[Piece], last: Piece, slowdown: float
) -> float:
    """The length, event by event."""
    free, ready = np.zeros(4), np.zeros(len(first))
    for layer, kind in enumerate(kind_of_layer):
        for batch in range(len(first)):
            if layer == 0:
                ready[batch] = free[0] = free[0] + first[batch][0] + slowdown * first[batch][1]
            for on, (compute, communication) in enumerate(pieces[kind][batch]):
                ready[batch] = free[on] = max(ready[batch], free[on]) + compute + slowdown * communication
    return float(max(*ready, free[0]) + last[0] + slowdown * last[1])


@settings(max_examples=300)
@given(schedules(), st.lists(st.floats(0, 50), min_size=1, max_size=6))
def test_its_length_at_any_slow_down_is_that_of_the_schedule_run_with_it(
    made: tuple[list[int], list[list[Pieces]], list[Piece], Piece], slowdowns: list[float]
) -> None:
    layers, pieces, first, last = made
    time = PingPong(kind_of_layer=layers, pieces=pieces, first=first, last=last).time()
    for slowdown in (0.0, 1.0, *slowdowns):
        whole = reference(layers, pieces, first, last, slowdown)
        assert time.lasting_ps(slowdown) == pytest.approx(whole, rel=1e-6, abs=1e-6)
    on_path = time.attention_ps + time.ffn_ps + time.last_ps
    assert on_path == pytest.approx(time.lasting_ps(0.0), rel=1e-6, abs=1e-6)
