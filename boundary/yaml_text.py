"""YAML that anyone may have written: bounded in depth and size before anything is built, and without surprises.

Read are mappings with text keys, lists, and scalars by the rules of YAML 1.2's core schema with 1.1's ``yes``, ``no``,
``on`` and ``off``; beyond that, ``1e3`` is a number, and dates and ``12:30`` are text. Anchors, aliases and merge keys
work, each use with a copy of its own. Refused are tags, keys that stand twice, several documents, and whatever exceeds
the bounds, aliases counted by what they stand for. A parser's events are turned into values one by one, so depth never
becomes recursion (PyYAML's own constructors overflow the C stack).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from boundary.errors import InputError
from boundary.numbers import MOST_DIGITS
from boundary.quoting import quoted
from boundary.text_files import read_text

MOST_DEPTH: Final = 64
"""Levels of nesting; configurations have up to eight."""
MOST_NODES: Final = 1_000_000
"""Keys, values and containers of a document, unless the caller expects more: a configuration with 10,000 faults has
100,000."""

_EXPONENT: Final = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+"
_WHOLE: Final = re.compile(r"[-+]?(?:0|[1-9](?:_?[0-9])*)")
_BASED: Final = re.compile(r"[-+]?0(?:x[0-9a-fA-F]+|o[0-7]+|b[01]+)")
_REAL: Final = re.compile(rf"{_EXPONENT}|[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)")
_INFINITE: Final = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_WORDS: Final[Mapping[str, bool | float | None]] = (
    dict.fromkeys(("", "~", "null", "Null", "NULL"))
    | dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True)
    | dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False)
    | dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan"))
)
_MERGE: Final = "<<"
_PARSER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml_mapping(path: Path, expected: str) -> dict[str, Any]:
    """The mapping that a file holds.

    Raises:
        InputError: naming the file, the line and what was found.
    """
    return parse_yaml_mapping(read_text(path, expected), str(path), expected)


def parse_yaml_mapping(text: str, source: str, expected: str, most_nodes: int = MOST_NODES) -> dict[str, Any]:
    """The mapping that a text holds; an empty text is an empty one.

    Raises:
        InputError: naming ``source``, the line and what was found.
    """
    value = parse_yaml(text, source, most_nodes)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{source}: found {quoted(value)}, expected {expected}: a mapping of fields")
    return value


def parse_yaml(text: str, source: str, most_nodes: int = MOST_NODES) -> Any:
    """The value that a text holds.

    Raises:
        InputError: naming ``source``, the line and what was found.
    """
    reader = _Reader(source, most_nodes)
    try:
        text.encode()  # a lone surrogate, as in an argument that is not UTF-8
        for event in yaml.parse(text, Loader=_PARSER):
            reader.take(event)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source} line {mark.line + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "what no YAML parser takes"
        if "maximum nesting depth" in problem:  # PyYAML has a limit of its own from 6.0.4 on
            raise InputError(_too_deep(where)) from None
        raise InputError(f"{where}: not YAML: {problem}") from None
    except UnicodeEncodeError:
        raise InputError(f"{source}: not YAML: found characters that are not Unicode text") from None
    return reader.document


def _too_deep(where: str) -> str:
    return f"{where}: found more than {MOST_DEPTH} levels of nesting, expected fewer"


def dump_yaml(tree: Mapping[str, object]) -> str:
    """YAML that `parse_yaml` reads back into an equal tree."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `parse_yaml` would take for numbers."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{_EXPONENT})\Z"), list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?0o[0-7]+\Z"), list("-+0"))


def _scalar(text: str, where: str) -> str | int | float | bool | None:
    """What a plain scalar stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text) or _BASED.fullmatch(text):
        if len(text) > MOST_DIGITS:
            raise InputError(f"{where}: found a number of {len(text)} digits, expected at most {MOST_DIGITS}")
        return int(text, 0) if text.lstrip("+-")[:1] == "0" else int(text)
    if _REAL.fullmatch(text):
        return float(text)
    if infinite := _INFINITE.fullmatch(text):
        return float(infinite[1] + "inf")
    return text


@dataclass(frozen=True, slots=True)
class _Anchored:
    """A value that aliases stand for."""

    value: Any
    nodes: int
    levels: int
    """Of nesting; 0 for a scalar."""


def _copied(value: Any) -> Any:
    """A copy of a value of at most `MOST_DEPTH` levels, an order of magnitude faster than ``copy.deepcopy``."""
    match value:
        case list():
            return [_copied(part) for part in value]
        case dict():
            return {key: _copied(part) for key, part in value.items()}
    return value


@dataclass(slots=True)
class _Container:
    """A list or mapping whose end has not been read."""

    value: list[Any] | dict[str, Any]
    anchor: str | None
    first_node: int
    """Nodes read before it."""
    levels: int = 1
    """Of nesting, itself included."""
    key: str | None = None
    """Of a mapping: what the next value belongs to."""
    merged: list[dict[str, Any]] = field(default_factory=list)
    """Mappings under ``<<``; own keys go before theirs."""


class _Reader:
    """Takes a parser's events in their order; then `document` is the value."""

    def __init__(self, source: str, most_nodes: int) -> None:
        self._source = source
        self._most_nodes = most_nodes
        self._nodes = 0
        self._aliased = 0
        """Nodes that came from aliases; even a large document has few."""
        self._open: list[_Container] = []
        self._anchored: dict[str, _Anchored] = {}
        self._documents = 0
        self.document: Any = None

    def take(self, event: yaml.Event) -> None:
        where = f"{self._source} line {event.start_mark.line + 1}" if event.start_mark else self._source
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise InputError(f"{where}: found a second document, expected one")
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._begin(event, where)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end(where)
            case yaml.AliasEvent():
                self._take_alias(str(event.anchor), where)
            case yaml.ScalarEvent():
                self._refuse_tag(event.tag, where)
                self._take_scalar(event, where)

    def _begin(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent, where: str) -> None:
        self._refuse_tag(event.tag, where)
        self._check_depth(1, where)
        if self._expects_key():
            raise InputError(f"{where}: found a list or mapping as a key, expected a text")
        self._count(1, where)
        value: list[Any] | dict[str, Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._open.append(_Container(value, event.anchor, self._nodes - 1))

    def _end(self, where: str) -> None:
        closed = self._open.pop()
        if isinstance(closed.value, dict):
            for merged in closed.merged:
                for key, value in merged.items():
                    closed.value.setdefault(key, value)
        if closed.anchor is not None:
            self._anchored[closed.anchor] = _Anchored(closed.value, self._nodes - closed.first_node, closed.levels)
        self._attach(closed.value, closed.levels, where)

    def _take_scalar(self, event: yaml.ScalarEvent, where: str) -> None:
        is_plain = event.implicit[0]
        if self._expects_key():
            self._count(1, where)
            self._take_key(event.value, is_plain, where)
            return
        value = _scalar(event.value, where) if is_plain else event.value
        if event.anchor is not None:
            self._anchored[event.anchor] = _Anchored(value, 1, 0)
        self._count(1, where)
        self._attach(value, 0, where)

    def _take_key(self, key: str, is_plain: bool, where: str) -> None:
        container = self._open[-1]
        assert isinstance(container.value, dict)
        if key in container.value and not (key == _MERGE and is_plain):
            raise InputError(f"{where}: found the key {quoted(key)} twice, expected it once")
        container.key = key
        if key != _MERGE or not is_plain:
            container.value[key] = None  # holds its place in the order of keys

    def _take_alias(self, anchor: str, where: str) -> None:
        if anchor not in self._anchored:
            raise InputError(f"{where}: found an alias of {quoted(anchor)}, expected an anchor that ended before it")
        if self._expects_key():
            raise InputError(f"{where}: found an alias as a key, expected a text")
        found = self._anchored[anchor]
        self._count(found.nodes, where)
        self._aliased += found.nodes
        if self._aliased > MOST_NODES:
            raise InputError(f"{where}: found aliases of more than {MOST_NODES} keys and values, expected fewer")
        self._check_depth(found.levels, where)
        self._attach(_copied(found.value), found.levels, where)

    def _attach(self, value: Any, levels: int, where: str) -> None:
        """Puts a complete value where the document has it."""
        if not self._open:
            self.document = value
            return
        container = self._open[-1]
        container.levels = max(container.levels, levels + 1)
        if isinstance(container.value, list):
            container.value.append(value)
            return
        assert container.key is not None
        if container.key == _MERGE and _MERGE not in container.value:
            container.merged.extend(self._mappings(value, where))
        else:
            container.value[container.key] = value
        container.key = None

    def _mappings(self, value: Any, where: str) -> Iterator[dict[str, Any]]:
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise InputError(f"{where}: found {quoted(part)} under <<, expected a mapping or a list of them")
            yield part

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _count(self, nodes: int, where: str) -> None:
        self._nodes += nodes
        if self._nodes > self._most_nodes:
            raise InputError(f"{where}: found more than {self._most_nodes} keys and values, expected fewer")

    def _check_depth(self, levels: int, where: str) -> None:
        if len(self._open) + levels > MOST_DEPTH:
            raise InputError(_too_deep(where))

    def _refuse_tag(self, tag: str | None, where: str) -> None:
        if tag not in (None, "!"):
            raise InputError(f"{where}: found the tag {quoted(tag)}, expected a plain value")
