"""Text of messages: values cut to a readable length before they are written out, and messages of one line."""

from __future__ import annotations

import math
import reprlib
from typing import Final

MOST_MESSAGE_CHARACTERS: Final = 400
"""A message that fills five lines of a terminal of 80 columns is still read."""
_MOST_VALUE_CHARACTERS: Final = 60
_MOST_DIGITS: Final = 40


class _Shortened(reprlib.Repr):
    """`repr` that never looks at more of a value than it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 6
        self.maxstring = self.maxother = _MOST_VALUE_CHARACTERS

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002
        digits = math.ceil(x.bit_length() * math.log10(2))
        return repr(x) if digits <= _MOST_DIGITS else f"a number of about {digits} digits"


def quoted(value: object) -> str:
    """``repr`` of a value for a message: at most 60 characters, in time that does not follow the value's size."""
    text = _Shortened().repr(value)
    return text if len(text) <= _MOST_VALUE_CHARACTERS else text[: _MOST_VALUE_CHARACTERS - 3] + "..."


def one_line(message: str) -> str:
    """A message on one line of at most `MOST_MESSAGE_CHARACTERS`, without characters that move a terminal's cursor.

    What is too long loses its middle, between words where there are some: the beginning names the place, the end says
    what was expected.
    """
    ends = MOST_MESSAGE_CHARACTERS // 2
    if len(message) > 20 * MOST_MESSAGE_CHARACTERS:  # not worth splitting all of it
        message = message[: 10 * MOST_MESSAGE_CHARACTERS] + " … " + message[-10 * MOST_MESSAGE_CHARACTERS :]
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    if len(line) <= MOST_MESSAGE_CHARACTERS:
        return line
    head, tail = line[: ends - 2], line[-(ends - 1) :]
    begin, cut = head.rpartition(" ")[0], tail.partition(" ")[2]
    is_of_words = min(len(begin), len(cut)) > ends - 2 - _MOST_VALUE_CHARACTERS
    return f"{begin} … {cut}" if is_of_words else f"{head} … {tail}"
