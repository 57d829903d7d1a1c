"""Why requests were not served: reasons that differ in their numbers alone are one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NUMBER = re.compile(r"(\d{1,18})")
Template = tuple[str, ...]
"""What stands between the numbers of a text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A way in which requests have ended."""

    status: str
    reason: str
    requests: int
    example: str
    """Id of the first of them."""


@dataclass(slots=True)
class _Group:
    requests: int
    example: str
    least: list[int]
    most: list[int]


@dataclass(slots=True)
class Outcomes:
    """Requests by how they ended; of numbers in reasons the range is kept."""

    _groups: dict[tuple[str, Template], _Group] = field(default_factory=dict)

    def add(self, status: str, reason: str, example: str, requests: int = 1) -> None:
        parts = NUMBER.split(reason)
        numbers = [int(number) for number in parts[1::2]]
        group = self._groups.setdefault((status, tuple(parts[::2])), _Group(0, example, list(numbers), list(numbers)))
        group.requests += requests
        group.least = [min(pair) for pair in zip(group.least, numbers, strict=True)]
        group.most = [max(pair) for pair in zip(group.most, numbers, strict=True)]

    def most_frequent(self) -> list[Outcome]:
        """The most frequent first, then by their text."""
        found = [
            Outcome(status, _text(template, group), group.requests, group.example)
            for (status, template), group in self._groups.items()
        ]
        return sorted(found, key=lambda outcome: (-outcome.requests, outcome.status, outcome.reason))


def _text(template: Template, group: _Group) -> str:
    shown = [
        str(least) if least == most else f"{least} to {most}"
        for least, most in zip(group.least, group.most, strict=True)
    ]
    return template[0] + "".join(number + text for number, text in zip(shown, template[1:], strict=True))
