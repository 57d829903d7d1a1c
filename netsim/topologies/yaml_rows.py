"""The plain part of YAML in which topologies are written, read without a YAML parser.

A topology of 16,384 GPUs has several hundred thousand scalars, for which `boundary.yaml_text` takes seconds. What
`plain_document` accepts means the same to it; everything else is left to it.
"""

from __future__ import annotations

import re
from typing import Final

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.-]*"
_NOT_TEXT: Final = "y|n|yes|no|on|off|true|false|null"
"""Plain words that YAML 1.1 does not read as text."""
_QUANTITY: Final = r"\d+(?:ps|ns|us|ms|s|[kMGTP]?bps)"
_SCALAR: Final = rf"(?:(?!(?i:{_NOT_TEXT})[,\]]){_NAME}|{_QUANTITY})"
_ROW: Final = re.compile(rf"- \[({_SCALAR}(?:, {_SCALAR})*)\]")
_SECTION: Final = re.compile(rf"({_NAME}):(?: (\[\]|0|[1-9]\d{{0,8}}))?")
_PLAIN: Final = re.compile(rf"(?!(?i:{_NOT_TEXT})$){_NAME}")


def is_plain(text: str) -> bool:
    """Whether YAML reads the text, written as it is, as text."""
    return _PLAIN.fullmatch(text) is not None


def plain_document(text: str) -> dict[str, object] | None:
    """What YAML makes of ``key: 5``, ``key: []`` and ``key:`` with lines ``- [a, b, …]`` of plain words and quantities.

    ``None`` where there is anything else in the text.
    """
    document: dict[str, object] = {}
    rows: list[list[str]] | None = None
    for line in text.splitlines():
        if rows is not None and (row := _ROW.fullmatch(line)):
            rows.append(row[1].split(", "))
            continue
        section = _SECTION.fullmatch(line)
        if rows == [] or section is None or not is_plain(section[1]) or section[1] in document:
            return None
        key, value = section.groups()
        rows = [] if value is None else None
        document[key] = rows if value is None else [] if value == "[]" else int(value)
    return None if rows == [] else document
