"""``summary.json`` written and read as `Summary` defines it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from boundary.errors import InputError
from boundary.json_text import parse_json
from boundary.quoting import quoted
from boundary.text_files import read_text
from vidur_pd.metrics.summary import Summary

MOST: Final = 1e18
"""Largest size of any figure of a run, in whatever unit; charts hold numbers of single precision."""


def summary_tree(summary: Summary) -> dict[str, Any]:
    """What the file holds: objects, lists, texts and numbers."""
    tree: dict[str, Any] = _tree(summary)
    return tree


def _tree(value: Any) -> Any:
    if is_dataclass(value):
        named = {each: getattr(value, each.name) for each in fields(value)}
        return {each.name: _tree(part) for each, part in named.items() if not _is_left_out(each, part)}
    if isinstance(value, tuple):
        return [_tree(item) for item in value]
    return {key: _tree(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _is_left_out(each: Field[Any], value: object) -> bool:
    return value is None and "left_out" in each.metadata


def read_summary(path: Path) -> Summary:
    """Reads ``summary.json``. Raises: InputError where the file or a required field is missing or malformed."""
    tree = parse_json(read_text(path, "the summary of a run"), str(path), "the summary of a run")
    if not isinstance(tree, dict):
        raise InputError(f"{path}: found {quoted(tree)}, expected an object")
    reader = _Reader(path)
    summary: Summary = reader.section(Summary, tree, "")
    edges, counts = summary.itl_histogram.edges_s, summary.itl_histogram.counts
    if len(edges) != len(counts) + 1 and (edges or counts):
        found = f"{len(edges)} edges_s and {len(counts)} counts"
        raise InputError(f"{path}: itl_histogram: found {found}, expected one more edge than counts")
    return summary


@cache
def _hints(section: Any) -> tuple[tuple[Field[Any], Any], ...]:
    """Fields of a section with their types."""
    hints = get_type_hints(section)
    return tuple((each, hints[each.name]) for each in fields(section))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Values of a tree that anyone may have written; every complaint names the file and the field.

    A number larger than any of a run, and ``null``, count as missing.
    """

    path: Path

    def refusal(self, where: str, found: object, expected: str) -> InputError:
        return InputError(f"{self.path}: {where}: found {quoted(found)}, expected {expected}")

    def section(self, kind: Any, tree: object, where: str) -> Any:
        if not isinstance(tree, dict):
            raise self.refusal(where, tree, "an object")
        values = {}
        for each, hint in _hints(kind):
            place = f"{where}.{each.name}" if where else each.name
            value = self.value(hint, tree.get(each.name), place)
            if value is not None:
                values[each.name] = value
            elif each.default is MISSING and each.default_factory is MISSING:
                raise self.refusal(place, tree.get(each.name), "a count of at least 0")
        return kind(**values)

    def value(self, hint: Any, found: Any, where: str) -> Any:
        """A value of the type, or ``None`` for one that is missing."""
        if found is None:
            return None
        if get_origin(hint) in (Union, types.UnionType):  # with None
            hint = next(part for part in get_args(hint) if part is not type(None))
            if is_dataclass(hint) and found == {}:
                return None
        if is_dataclass(hint):
            return self.section(hint, found, where)
        if get_origin(hint) is tuple:
            return self.items(get_args(hint)[0], found, where)
        if get_origin(hint) is Mapping:
            return self.mapping(get_args(hint)[1], found, where)
        return self.plain(hint, found, where)

    def items(self, hint: Any, found: object, where: str) -> tuple[Any, ...]:
        if not isinstance(found, list):
            raise self.refusal(where, found, "a list")
        values = tuple(self.value(hint, item, f"{where}[{place}]") for place, item in enumerate(found))
        if None in values:
            raise self.refusal(where, found, f"no null in it, and numbers up to {MOST:g}")
        return values

    def mapping(self, hint: Any, found: object, where: str) -> Mapping[str, Any]:
        """What is not missing, by name."""
        if not isinstance(found, dict):
            raise self.refusal(where, found, "an object")
        values = {key: self.value(hint, item, f"{where}.{quoted(key)[1:-1]}") for key, item in found.items()}
        return {key: value for key, value in values.items() if value is not None}

    def plain(self, hint: Any, found: Any, where: str) -> Any:
        if hint is str:
            return plain_text(found)
        if hint is object:
            return found
        if hint is bool:
            if not isinstance(found, bool):
                raise self.refusal(where, found, "true or false")
            return found
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.refusal(where, found, "a number")
        if abs(found) > MOST:
            return None
        if hint is int and (found < 0 or found != int(found)):
            raise self.refusal(where, found, "a count of at least 0")
        return hint(found)


def plain_text(value: object) -> str:
    """A value as text; an object by its kind and what else it has."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        details = ", ".join(f"{key}: {plain_text(item)}" for key, item in value.items() if key != "kind")
        return f"{value['kind']} ({details})" if "kind" in value and details else str(value.get("kind", details))
    return str(value)
