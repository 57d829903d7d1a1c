"""The study of a search: one SQLite file with every evaluation, so that a search that was killed goes on where it was.

What a search does follows from its space, its seed and the outcomes; the study keeps the outcomes. A search that
begins again proposes the same points, and finds theirs here. Each outcome is a transaction of its own: a process that
is killed loses those that were being worked on, and nothing else.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from boundary.errors import InputError
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.space.space import Point

FORMAT: Final = 1
"""Of the file; another one is refused."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS study (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outcomes (
    point TEXT NOT NULL, fidelity INTEGER NOT NULL, outcome TEXT NOT NULL, PRIMARY KEY (point, fidelity)
);
"""


class Study:
    """Outcomes by point and fidelity."""

    def __init__(self, path: Path, digest: str) -> None:
        """Opens a study, or begins one.

        Raises:
            InputError: the file is something else, or holds outcomes of another space.
        """
        self._path = path
        self._file = sqlite3.connect(path)
        try:
            with self._file:
                self._file.executescript(_TABLES)
                for name, value in (("format", str(FORMAT)), ("space", digest)):
                    self._file.execute("INSERT OR IGNORE INTO study VALUES (?, ?)", (name, value))
            found = dict(self._file.execute("SELECT name, value FROM study"))
        except sqlite3.DatabaseError:
            self._file.close()
            raise InputError(f"{path}: found no study, expected one of 'vidur-pd search', or another -o") from None
        if (found["format"], found["space"]) != (str(FORMAT), digest):
            self._file.close()
            raise InputError(
                f"{path}: found a study of another space or workload ({found['space']}), expected that of this one "
                f"({digest}); remove it, or choose another -o"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, point: Point, fidelity: int, outcome: Outcome) -> None:
        """Keeps an outcome; when this returns, it is on disk."""
        with self._file:
            row = (json.dumps(point), fidelity, outcome.dump())
            self._file.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?)", row)

    def get(self, point: Point, fidelity: int) -> Outcome | None:
        """The outcome of an earlier evaluation."""
        asked = "SELECT outcome FROM outcomes WHERE point = ? AND fidelity = ?"
        with closing(self._file.execute(asked, (json.dumps(point), fidelity))) as rows:
            row = rows.fetchone()
        return None if row is None else Outcome.load(row[0])

    def all(self) -> Iterator[tuple[Point, int, Outcome]]:
        """Everything, in order of point and fidelity."""
        for point, fidelity, text in self._file.execute(
            "SELECT point, fidelity, outcome FROM outcomes ORDER BY fidelity, point"
        ):
            yield tuple(json.loads(point)), fidelity, Outcome.load(text)
