"""JSON that anyone may have written: without keys that stand twice, NaN or infinity, and bounded in depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from boundary.errors import InputError
from boundary.quoting import quoted


def json_decoder(parse_float: Callable[[str], Any] | None = None) -> json.JSONDecoder:
    """A decoder that refuses, with a ``ValueError``, what `parse_json` refuses."""
    return json.JSONDecoder(parse_float=parse_float, parse_constant=_refuse_constant, object_pairs_hook=_once)


def parse_json(text: str, source: str, expected: str, decoder: json.JSONDecoder | None = None) -> Any:
    """The value that a text holds.

    Raises:
        InputError: naming ``source`` and what was found.
    """
    try:
        return (decoder or json_decoder()).decode(text)
    except json.JSONDecodeError as error:
        where = f"{source} line {error.lineno}" if "\n" in text.strip() else source
        raise InputError(f"{where}: found text that is not JSON ({error.msg.lower()}), expected {expected}") from None
    except RecursionError:
        raise InputError(f"{source}: found JSON nested deeper than any of it is, expected {expected}") from None
    except ValueError as error:
        reason = "a number of thousands of digits" if "digits" in str(error) else error
        raise InputError(f"{source}: found {reason}, expected {expected}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for place, key in enumerate(keys) if key in keys[:place])
        raise ValueError(f"the key {quoted(twice)} twice")
    return found


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text}, which is no number")
