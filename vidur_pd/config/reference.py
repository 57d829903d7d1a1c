"""``docs/options.md``: every field of a configuration, from the schema that checks them.

python -m vidur_pd.config.reference docs/options.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from vidur_pd.config.json_schema import json_schema

Schema = Mapping[str, Any]

OPENING: Final = """# Options

Written by `python -m vidur_pd.config.reference docs/options.md` from the classes in `vidur_pd/config`. For editors,
`vidur-pd schema` writes the same; `vidur-pd init` writes a file to begin with, `vidur-pd list` prints what is built in,
and `--set a.b=value` overrides a field. What engines fill in where a field has no default is in
`vidur_pd/config/data/engines`. Quantities may carry their unit: `400Gbps`, `25ns`, `10/s`.
"""
FAR: Final = 1e6
"""Bounds beyond are there for the arithmetic alone."""
EXAMPLES: Final = {"rate": "400Gbps", "time": "25ns"}
"""Of what is written with a unit, by its format in the schema."""
ROOT: Final = "The configuration"


def page() -> str:
    """The whole page: a table for every section, those that it mentions after it."""
    schema = json_schema()
    parts, sections = [OPENING, *_section(ROOT, schema)], schema["$defs"]
    for name in _reached(schema, sections):
        if "properties" in sections[name]:
            parts += _section(name, sections[name])
    return "\n".join(parts)


def _reached(schema: Schema, sections: Schema) -> list[str]:
    """Names of the sections in the order in which they are met, those of a field before those of the next one."""
    found: list[str] = []

    def visit(node: Any) -> None:
        for name in _mentioned(node):
            if name not in found:
                found.append(name)
                visit(sections[name])

    visit({key: value for key, value in schema.items() if key != "$defs"})
    return found


def _mentioned(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _mentioned(item)
    elif isinstance(node, Mapping):
        if isinstance(ref := node.get("$ref"), str):
            yield _name_of(ref)
        for key, value in node.items():
            if key != "discriminator":
                yield from _mentioned(value)


def _section(name: str, section: Schema) -> Iterator[str]:
    yield f"## {name}\n"
    if about := section.get("description"):
        yield _cell(about.split("\n\n")[0]) + "\n"
    yield "| field | what it may be | default | what it is |\n|---|---|---|---|"
    for field, of in section["properties"].items():
        default = _value(of["default"]) if "default" in of and of["default"] is not None else ""
        yield f"| `{field}` | {_kind(of)} | {default} | {_cell(of.get('description', ''))} |"
    yield ""


def _kind(of: Schema) -> str:
    """Types, choices and bounds in words; sections as links."""
    if "$ref" in of:
        name = _name_of(of["$ref"])
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in of:
            kinds = dict.fromkeys(_kind(each) for each in of[key])
            return " or ".join(kind for kind in kinds if kind)
    if "allOf" in of:
        return _kind(of["allOf"][0])
    if "const" in of:
        return _value(of["const"])
    if "enum" in of:
        return ", ".join(map(_value, of["enum"]))
    return _plain(of)


def _plain(of: Schema) -> str:
    kinds = of.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if "integer" in kinds or "number" in kinds:
        return " ".join(["integer" if "integer" in kinds else "number", *_bounds(of)])
    if "array" in kinds:
        items = of.get("items") or (of.get("prefixItems") or [{}])[0]
        return f"list of {_kind(items) or 'anything'}"
    if "object" in kinds:
        values = of.get("additionalProperties")
        return f"mapping to {_kind(values) or 'anything'}" if isinstance(values, Mapping) else "mapping"
    if (quantity := of.get("format")) in EXAMPLES:
        return f"{quantity}, as `{EXAMPLES[quantity]}`"
    names = {"string": "text", "boolean": "true or false"}
    return " or ".join(names[kind] for kind in kinds if kind in names)


def _bounds(of: Schema) -> Iterator[str]:
    words = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    for name, word in words:
        if name in of and abs(of[name]) < FAR:
            yield f"{word} {of[name]:g}"


def _name_of(ref: str) -> str:
    return ref.rpartition("/")[2]


def _value(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
