"""Numbers in text cells, checked before anything is computed with them."""

from __future__ import annotations

import math
import re
from typing import Final

from boundary.errors import InputError
from boundary.quoting import quoted

MOST_INT64: Final = 2**63 - 1
MOST_DIGITS: Final = 40
"""Characters of a number: more than any quantity has, and far less than Python's integers slow down at."""
_REAL: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def whole_number(text: str, where: str, what: str, least: int, most: int) -> int:
    """The number that the digits 0 to 9 of ``text`` are; blanks around them are dropped.

    Raises:
        InputError: naming ``where`` and ``what``, if it is none, or outside ``least`` … ``most`` (both included).
    """
    digits = text.strip()
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    if not is_number or not least <= int(digits) <= most:
        raise InputError(f"{where}: found {quoted(text)}, expected {what}, {least} to {most}")
    return int(digits)


def real_number(text: str, where: str, what: str, least: float, most: float) -> float:
    """The decimal number that ``text`` is; blanks around it are dropped. Infinity and NaN are none.

    Raises:
        InputError: naming ``where`` and ``what``, if it is none, or outside ``least`` … ``most`` (both included).
    """
    digits = text.strip()
    value = float(digits) if len(digits) <= MOST_DIGITS and _REAL.fullmatch(digits) else math.nan
    if not least <= value <= most:
        raise InputError(f"{where}: found {quoted(text)}, expected {what}, {least:.10g} to {most:.10g}")
    return value
