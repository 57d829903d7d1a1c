"""JSON schema of a configuration, for editors: fields, what they are, choices and bounds.

It is wider than what is accepted: a quantity may be written as text (``400Gbps``, ``10/s``), several sections have
short forms, and what goes with what is checked when a configuration is read. Descriptions are the docstrings of the
fields.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from boundary.fields import Section
from netsim.units import format_rate_bps, format_time_ps
from vidur_pd.config import SimulationConfig

BOUNDS: Final = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
"""Names of JSON Schema for those that pydantic leaves where a check comes before."""
QUANTITIES: Final[Mapping[str, Callable[[int], str]]] = {"rate": format_rate_bps, "time": format_time_ps}
"""Formats of numbers that are only taken as text with a unit (`netsim.units.fields`)."""

SHORT_FORMS: Final = {
    "PoolConfig": {
        "pd_node_ratio": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "Share of the instances that prefill, instead of role: the pool becomes two "
            "(`config.division`).",
        }
    }
}
"""Fields that stand for others, by section."""


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12)."""
    schema = SimulationConfig.model_json_schema()
    sections: list[type[BaseModel]] = [SimulationConfig, *_sections(Section)]
    classes = {each.__name__: each for each in sections}
    _describe(schema, SimulationConfig)
    for name, definition in schema.get("$defs", {}).items():
        if name in classes and "properties" in definition:
            _describe(definition, classes[name])
            definition["properties"] |= SHORT_FORMS.get(name, {})
    _widen(schema)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "vidur-pd configuration"}
    return {**head, **{key: value for key, value in schema.items() if key != "title"}}


def _sections(parent: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in parent.__subclasses__():
        yield each
        yield from _sections(each)


def _describe(definition: dict[str, Any], section: type[BaseModel]) -> None:
    """Puts docstrings of fields into a definition; those of a parent hold where a class has none of its own."""
    texts: dict[str, str] = {}
    for each in reversed(section.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            texts |= _docstrings(each)
    for name, field in definition["properties"].items():
        field.pop("title", None)
        if name in texts:
            field["description"] = texts[name]
    definition.pop("required", None)  # short forms stand for fields that are required


def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Texts below the fields of a class."""
    try:
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    except (OSError, TypeError):  # made at run time
        return {}
    assert isinstance(found, ast.ClassDef)
    texts = {}
    for node, below in zip(found.body, found.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            texts[ast.unparse(node.target)] = " ".join(str(below.value.value).replace("``", "").split())
    return texts


def _widen(node: Any) -> None:
    """Bounds by their names in JSON Schema; numbers may be text with a unit, sections may have a short form."""
    if isinstance(node, list):
        for item in node:
            _widen(item)
    if not isinstance(node, dict):
        return
    for ours, theirs in BOUNDS.items():
        if ours in node and isinstance(node[ours], int | float):
            node[theirs] = node.pop(ours)
    node.pop("default", None) if isinstance(node.get("default"), dict) else None
    if isinstance(quantity := node.get("format"), str) and quantity in QUANTITIES:
        _as_text(node, QUANTITIES[quantity])
    if node.get("type") in ("integer", "number"):
        node["type"] = [node["type"], "string"]
    if node.get("type") == "object" and "properties" in node:
        node["type"] = ["object", "string"]
    for value in node.values():
        _widen(value)


def _as_text(node: dict[str, Any], write: Callable[[int], str]) -> None:
    """A quantity as it is written: with its unit, which bounds in bit/s or picoseconds would not tell."""
    node["type"] = "string"
    for bound in BOUNDS.values():
        node.pop(bound, None)
    if isinstance(default := node.get("default"), int):
        node["default"] = write(default)
