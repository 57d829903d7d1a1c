"""Cases of `tests.fuzz.kinds.results` that once went wrong, small and by name."""

from __future__ import annotations

from typing import Final

from tests.fuzz.case import Case

FINDINGS: Final[dict[str, Case]] = {}
