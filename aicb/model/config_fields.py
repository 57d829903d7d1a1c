"""Fields of a Hugging Face ``config.json``, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from boundary.errors import InputError
from boundary.quoting import quoted

MOST_ELEMENTS = 2**24
"""Of one dimension: hidden, intermediate or head size, vocabulary; a hundred times those in use."""
MOST_LAYERS = 10_000
MOST_EXPERTS = 4096
"""Of a layer; their loads are drawn one by one. The largest published models have some hundreds."""
MOST_CONTEXT_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fields:
    """A configuration whose fields are checked as they are read."""

    values: Mapping[str, object]
    where: str
    read: set[str] = field(default_factory=set)
    """Names that have been asked for."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Values of names that are absent; they precede a caller's."""

    def refuse(self, name: str, expected: str) -> InputError:
        default = f"nothing (by default {quoted(self.defaults[name])})" if name in self.defaults else "nothing"
        found = quoted(self.values[name]) if name in self.values else default
        return InputError(f"{self.where}: {name}: found {found}, expected {expected}")

    def value(self, name: str, default: object = None) -> object:
        self.read.add(name)
        return self.values.get(name, self.defaults.get(name, default))

    def has(self, name: str) -> bool:
        return self.value(name) is not None

    def integer(self, name: str, default: int | None = None, *, at_least: int = 1, at_most: int = MOST_ELEMENTS) -> int:
        if default is not None and not self.has(name):
            return default
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.refuse(name, f"an integer, {at_least} to {at_most}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.value(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def fraction(self, name: str, default: float) -> float:
        value = self.value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
            raise self.refuse(name, "a number above 0 and at most 1")
        return float(value)

    def number(self, name: str, *, at_least: int, at_most: int) -> float:
        value = self.value(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.refuse(name, f"a number, {at_least} to {at_most}")
        return float(value)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.value(name, default)
        if value not in allowed:
            raise self.refuse(name, f"one of {', '.join(allowed)}")
        return str(value)

    def indices(self, name: str) -> list[int]:
        value = self.value(name) or []
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.refuse(name, "a list of layer indices")
        return value

    def section(self, name: str) -> Fields:
        value = self.value(name)
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return Fields(value, f"{self.where}: {name}")
