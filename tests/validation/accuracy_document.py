"""Tables of ``docs/accuracy/network.md`` that scripts write between markers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ACCURACY: Final = Path(__file__).parents[2] / "docs" / "accuracy" / "network.md"


def written(document: str, marker: str, table: str) -> str:
    """The document with a table between ``<!-- marker -->`` and ``<!-- end -->``.

    Raises:
        ValueError: the markers are not there once.
    """
    begin, end = f"<!-- {marker} -->", "<!-- end -->"
    pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(end), re.DOTALL)
    if len(pattern.findall(document)) != 1:
        raise ValueError(f"{ACCURACY.name}: expected one '{begin}' before '{end}'")
    return pattern.sub(lambda _: f"{begin}\n{table}\n{end}", document)
