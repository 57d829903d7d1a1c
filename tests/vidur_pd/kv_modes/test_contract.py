"""A mode of KV transfers that breaks its contract ends the run in one line that names the mode and the rule."""

from __future__ import annotations

import re

import pytest

from boundary.errors import InputError
from tests.integration.small_runs import pool
from tests.vidur_pd.kv_modes.watched import MODES, Order, watch
from vidur_pd.kv.transfer.modes.calls import ModeError

PAIR = [pool("p", "prefill"), pool("d", "decode")]
ROWS = [(0, 1_000, 5)]
BROKEN = {
    "SendsEarly": "sends KV up to token 1000, expected 0 to 512, which are computed or in computation",
    "SendsNowhere": "sends KV to a decode rank that holds no blocks for it, expected has_room",
    "SendsTooMuch": "sends KV up to token 1001, expected 0 to 1000, which are computed or in computation",
    "ReservesNothing": "has reserved no blocks, expected reserve() once the prompt is computed",
    "SendsLess": "has sent KV up to token 999 and does not go on, expected send(1000) once there is room",
    "Raises": "on_prefilled raised KeyError: 'r0'",
    "Asserts": "on_prefilled raised AssertionError: prefix of 0 tokens",
    "Exits": "on_prefilled raised SystemExit: 0",
    "SendsNoNumber": "sends KV up to token 500.0, expected a whole number of tokens",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_mode_ends_the_run_in_one_line(name: str) -> None:
    mode = f"tests.vidur_pd.kv_modes.broken_modes:{name}"
    with pytest.raises(ModeError) as raised:
        watch(PAIR, ROWS, kv_transfer={"mode": mode})
    line = re.sub(r" \(broken_modes\.py:[0-9]+\)$", "", str(raised.value))
    assert line == f"kv_transfer.mode {mode}: request r0: {BROKEN[name]}"
    assert isinstance(raised.value, InputError)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("pull", [(0, 1_000, True)]),
        ("push", [(0, 1_000, True)]),
        ("chunked", [(0, 512, False), (512, 1_000, True)]),
        ("layerwise", [(0, 512, False), (512, 1_000, False)]),
        (MODES[4], [(0, 500, False), (500, 1_000, True)]),
    ],
)
def test_modes_differ_in_what_they_send_when(mode: str, expected: list[tuple[int, int, bool]]) -> None:
    """A prompt of 1,000 tokens in chunks of 512 and 488: (after, until, the prompt was computed)."""
    watched = watch(PAIR, ROWS, kv_transfer={"mode": mode})
    orders = [Order(after, until, had_room=True, was_prefilled=done) for after, until, done in expected]
    assert watched.orders[0] == orders
