"""Constants of congestion control as users give them: numbers, and text with units."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

import netsim._core as _core
from boundary.errors import InputError
from boundary.quoting import quoted
from netsim.units import MOST_RATE_BPS, MOST_TIME_PS, format_time_ps, read_rate_bps, read_time_ps

Constant = float | int | bool | str

_PER_LINE: Final = " per "
_UNITS: Final = ("_ps", "_bps")
_MOST_FACTOR: Final = 1e6


def congestion_parameters(
    scheme: str, preset: str | None, changes: Mapping[str, Constant]
) -> _core._CongestionParameters:
    """The constants of a scheme's published set, some of them changed.

    Times and rates are named without their unit and given with one (``increase_interval: 300us``, ``min_rate:
    100Mbps``), or by their full names as integers (``min_rate_bps: 100000000``). A rate step is ``50Mbps``, or ``5Mbps
    per 25Gbps`` of the line, or with its unit in the name an integer.

    Raises:
        InputError: naming the constant, what was found and what was expected.
    """
    try:
        constants = _core.congestion_preset(scheme, preset or "")
    except ValueError as error:
        raise InputError(f"congestion_preset: {error}") from error
    known = [name for name in dir(constants) if not name.startswith("_") and name not in ("replace", "transport")]
    values: dict[str, int | float | _core.RateStep | _core.TransportSettings] = {}
    for given, value in changes.items():
        name = _full_name(given, known, scheme)
        where = f"congestion.{given}"
        if name == given or isinstance(getattr(constants, name), _core.RateStep):
            values[name] = _converted(value, getattr(constants, name), where)
        else:
            values[name] = _time_ps(value, where) if name.endswith("_ps") else read_rate_bps(value, where)
    try:
        return constants.replace(**values) if values else constants
    except ValueError as error:
        raise InputError(f"congestion: {error}") from error


def _time_ps(value: Constant, where: str) -> int:
    if (found_ps := read_time_ps(value, where)) > MOST_TIME_PS:
        raise InputError(f"{where}: found {quoted(value)}, expected at most {format_time_ps(MOST_TIME_PS)}")
    return found_ps


def _full_name(given: str, known: list[str], scheme: str) -> str:
    names = {name: name for name in known}
    names |= {f"{name}_bps": name for name in known if name.endswith("_increase")}
    names |= {name.removesuffix(unit): name for name in known for unit in _UNITS if name.endswith(unit)}
    if given not in names:
        nearest = difflib.get_close_matches(given, names, n=1, cutoff=0)
        hint = f"expected one of {', '.join(known)}; nearest: {nearest[0]}" if nearest else "expected no constants"
        raise InputError(f"congestion.{given}: unknown constant of {scheme}, {hint}")
    return names[given]


def _converted(value: Constant, present: object, where: str) -> int | float | _core.RateStep:
    """``value`` in the type of the present value."""
    if isinstance(present, _core.RateStep):
        return _rate_step(value, where)
    match present:
        case bool():
            fits, expected = isinstance(value, bool), "true or false"
        case int():
            fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_RATE_BPS
            expected = f"a whole number, 0 to {MOST_RATE_BPS}"
        case _:
            fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST_FACTOR
            expected = f"a number, at most {_MOST_FACTOR:g}"
    if not fits or isinstance(value, str):
        raise InputError(f"{where}: found {quoted(value)}, expected {expected}")
    return value


def _rate_step(value: Constant, where: str) -> _core.RateStep:
    expected = f"{where}: found {quoted(value)}, expected a rate as 50Mbps, or as 5Mbps per 25Gbps of the line"
    if where.endswith("_bps") and isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_RATE_BPS:
        return _core.RateStep(value)
    if not isinstance(value, str):
        raise InputError(expected)
    step, is_relative, line = value.partition(_PER_LINE)
    try:
        per_line_bps = read_rate_bps(line, where) if is_relative else None
        return _core.RateStep(read_rate_bps(step, where), per_line_bps)
    except InputError:
        raise InputError(expected) from None
