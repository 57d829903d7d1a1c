"""Settings of the RoCE model from YAML files and ``name=value`` texts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.yaml_text import parse_yaml, read_yaml_mapping
from netsim.roce.config import EcnThresholds, RoceConfig

Document = dict[str, object]


def parse_roce_config(document: Mapping[str, object], source: str) -> RoceConfig:
    """Validates settings.

    Raises:
        InputError: naming ``source``, the first wrong field, what was found and what was expected; for an unknown
            field also the nearest known one.
    """
    try:
        return RoceConfig.model_validate(dict(document))
    except ValidationError as error:
        raise InputError(f"{source} {_first_line(error)}") from error


def read_roce_document(path: Path) -> Document:
    """The mapping in a YAML file; not validated yet.

    Raises:
        InputError: naming the file.
    """
    return read_yaml_mapping(path, "settings of the RoCE model")


def apply_settings(document: Mapping[str, object], settings: Sequence[str]) -> Document:
    """A copy with ``name=value`` or ``section.name=value`` set; values are YAML.

    Raises:
        InputError: naming the setting.
    """
    changed = {name: dict(value) if isinstance(value, Mapping) else value for name, value in document.items()}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, dot, name = path.partition(".")
        if not equals or not section or (dot and not name):
            raise InputError(f"--set: found {quoted(setting)}, expected name=value, for example mtu_bytes=9000")
        value = parse_yaml(text, f"--set {path}")
        if not dot:
            changed[section] = value
            continue
        holder = changed.get(section)
        changed[section] = {**(holder if isinstance(holder, dict) else {}), name: value}
    return changed


def _first_line(error: ValidationError) -> str:
    """The first problem, unknown fields before others."""
    problems = error.errors(include_url=False)
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    path = [str(part) for part in first["loc"] if part != "[key]"]
    where = ".".join(path)
    if first["type"] == "extra_forbidden":
        model: type[BaseModel] = RoceConfig if len(path) == 1 else EcnThresholds
        nearest = difflib.get_close_matches(path[-1], list(model.model_fields), n=1, cutoff=0)
        return f"{where}: unknown field, expected one of {', '.join(model.model_fields)}; nearest: {nearest[0]}"
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return f"{where}: {str(cause).partition(': ')[2]}"
    if first["type"] == "value_error":
        return f"{where}: expected {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
    return f"{where}: found {quoted(first['input'])}, expected: {first['msg'].lower()}"


def merge_documents(base: Mapping[str, object], changes: Mapping[str, object]) -> Document:
    """``base`` with the fields of ``changes`` on top; sections are merged field by field."""
    merged = dict(base)
    for name, value in changes.items():
        present = merged.get(name)
        merged[name] = {**present, **value} if isinstance(present, dict) and isinstance(value, dict) else value
    return merged
