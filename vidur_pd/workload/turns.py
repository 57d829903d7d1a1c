"""Collects which rows of a trace are turns of one conversation."""

from __future__ import annotations

import numpy as np

from vidur_pd.workload.checking import RowChecker
from vidur_pd.workload.pacing import NOBODY, Sessions


class TurnCollector:
    """Rows that name their conversation, or the row before them in it; every row does, or none.

    A row whose predecessor is not among those taken begins a session, with the number of its turn that it states.
    """

    def __init__(self, checker: RowChecker) -> None:
        self._checker = checker
        self._last: dict[str, int] = {}
        """Latest row of each conversation, or the row of each name."""
        self._session: list[int] = []
        self._turn: list[int] = []
        self._previous: list[int] = []
        self._sessions = 0
        self._are_named: bool | None = None

    def append(self, line: int, name: object, parent: object, turn: object) -> None:
        """``name`` is that of a conversation or, where the format has parents, of the row; ``None``: not given."""
        layout, row = self._checker.layout, len(self._session)
        field = layout.session or "session"
        is_named = name is not None and (layout.parent is None or parent is not None)
        if self._are_named not in (None, is_named):
            self._checker.refuse(line, field, name, "it in every row, or in none")
        self._are_named = is_named
        if not is_named:
            return
        if isinstance(name, str) and not name.strip():
            self._checker.refuse(line, field, name, "the name of a conversation")
        key = self._checker.name(line, field, name)
        before = key if layout.parent is None else self._checker.name(line, layout.parent, parent)
        previous = self._last.get(before, NOBODY)
        self._last[key] = row
        if previous == NOBODY:
            self._sessions += 1
        self._session.append(self._sessions - 1 if previous == NOBODY else self._session[previous])
        follows = 1 if previous == NOBODY else self._turn[previous] + 1
        self._turn.append(follows if turn is None else self._checker.tokens(line, "turn", turn))
        self._previous.append(previous)

    def sessions(self) -> Sessions | None:
        """``None`` where no row says."""
        if not self._are_named:
            return None
        return Sessions(*(np.array(column, dtype=np.int64) for column in (self._session, self._turn, self._previous)))
