"""Collects what some rows of a trace say of who sends them and what was asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vidur_pd.workload.checking import RowChecker
from vidur_pd.workload.classes import named_classes
from vidur_pd.workload.workload import Classes


class LabelCollector:
    """Classes, priorities and largest outputs of rows; a row that does not say has none, 0, and its output."""

    def __init__(self, checker: RowChecker) -> None:
        self._checker = checker
        self._names: list[str] = []
        self._priorities: list[int] = []
        self._asked: list[int] = []
        self._has_priorities = self._has_asked = False

    def append(self, line: int, output: int, name: object, priority: object, asked: object) -> None:
        """``None``: not given."""
        check = self._checker
        self._names.append("" if name in (None, "") else check.name(line, "class", name))
        self._priorities.append(0 if priority is None else check.whole(line, "priority", priority))
        self._asked.append(output if asked is None else check.tokens(line, "max_output_tokens", asked, least=output))
        self._has_priorities |= priority is not None
        self._has_asked |= asked is not None

    def classes(self) -> Classes | None:
        return named_classes(self._names)

    def priority(self) -> NDArray[np.int64] | None:
        """[requests]"""
        return np.array(self._priorities, dtype=np.int64) if self._has_priorities else None

    def max_output_tokens(self) -> NDArray[np.int64] | None:
        """[requests]"""
        return np.array(self._asked, dtype=np.int64) if self._has_asked else None
