"""Configuration files: YAML and ``--set`` in, one line of text out when something is wrong."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from boundary.errors import InputError
from boundary.quoting import quoted
from boundary.yaml_text import dump_yaml, parse_yaml, read_yaml_mapping
from vidur_pd.config.division import divided

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

    from vidur_pd.config import SimulationConfig

Tree = dict[str, Any]


def load_config(path: Path, overrides: Sequence[str] = ()) -> SimulationConfig:
    """Reads a YAML file, applies ``a.b=value`` overrides and validates the whole tree.

    Raises: InputError, with file, field, what was found and what was expected.
    """
    return parse_config(read_yaml_mapping(path, "a configuration"), path.parent, str(path), overrides)


def parse_config(tree: Tree, folder: Path, where: str, overrides: Sequence[str] = ()) -> SimulationConfig:
    """Applies ``a.b=value`` overrides to a tree, in place, and validates it; relative paths start at ``folder``.

    Raises: InputError, with ``where``, field, what was found and what was expected.
    """
    from pydantic import ValidationError

    from vidur_pd.config import SimulationConfig

    for override in overrides:
        apply_override(tree, override)
    anchor_paths(tree, folder)
    try:
        return SimulationConfig.model_validate(tree)
    except ValidationError as error:
        raise InputError(f"{where}: {describe(error, SimulationConfig, tree)}") from None


def dump_config(config: SimulationConfig) -> str:
    """The resolved configuration as YAML; loading it gives an equal tree."""
    return dump_yaml(config.model_dump(mode="json", exclude_none=True))


def anchor_paths(tree: Tree, folder: Path) -> None:
    """Makes paths (of traces, topologies, hosts, models, GPUs …) absolute, as seen from the configuration's folder."""

    def anchor(section: Any, key: str) -> None:
        if isinstance(section, dict) and isinstance(section.get(key), str):
            section[key] = str((folder / section[key]).absolute())

    if isinstance(workload := tree.get("workload"), dict):
        parts = workload.get("parts")
        for part in (workload, *(parts.values() if isinstance(parts, dict) else ())):
            anchor(part, "path")
            arrivals = part.get("arrivals") if isinstance(part, dict) else None
            anchor(arrivals.get("rate") if isinstance(arrivals, dict) else None, "path")
    for key in ("policy", "decode_policy", "rank_policy"):
        _anchor_class(tree.get("routing"), key, folder)
    transfer = tree.get("kv_transfer")
    _anchor_class(transfer, "mode", folder)
    _anchor_named(transfer.get("connector") if isinstance(transfer, dict) else None, "measured_on", folder)
    _anchor_class(tree.get("planner"), "policy", folder)
    kv_cache = tree.get("kv_cache")
    tiers = kv_cache.get("tiers") if isinstance(kv_cache, dict) else None
    for tier in tiers if isinstance(tiers, list) else ():
        _anchor_class(tier, "eviction", folder)
    anchor(tree, "prices")
    for key in ("hosts", "measured", "calibration"):
        anchor(tree.get("network"), key)
    holders = [tree]
    if isinstance(cluster := tree.get("cluster"), dict):
        anchor(cluster.get("topology"), "file")
        pools = cluster.get("pools")
        holders += [pool for pool in pools if isinstance(pool, dict)] if isinstance(pools, list) else []
    for holder in holders:
        for key in ("model", "hardware"):
            _anchor_named(holder, key, folder)
        _anchor_named(holder.get("ffn"), "hardware", folder)
        _anchor_recording(holder.get("engine"), folder)
        engine = holder.get("engine")
        _anchor_named(engine, "host", folder)
        _anchor_named(engine.get("speculative") if isinstance(engine, dict) else None, "draft_model", folder)
        _anchor_class(holder.get("engine"), "policy", folder)


def _anchor_named(section: Any, key: str, folder: Path) -> None:
    """Makes the path of a model, GPU or host absolute; a name stays."""
    name = section.get(key) if isinstance(section, dict) else None
    if isinstance(name, str) and (name.endswith((".json", ".yaml", ".yml")) or "/" in name):
        section[key] = str((folder / name).absolute())


def _anchor_recording(engine: Any, folder: Path) -> None:
    """Makes the file of ``expert_load: recorded:FILE`` absolute."""
    kind, separator, file = str(engine.get("expert_load", "")).partition(":") if isinstance(engine, dict) else ("",) * 3
    if kind == "recorded" and separator and file:
        engine["expert_load"] = f"{kind}:{(folder / file).absolute()}"


def _anchor_class(section: Any, key: str, folder: Path) -> None:
    """Makes the file of ``file.py:Class`` absolute."""
    place, separator, name = str(section.get(key, "")).rpartition(":") if isinstance(section, dict) else ("",) * 3
    if separator and place.endswith(".py"):
        section[key] = f"{(folder / place).absolute()}:{name}"


def apply_override(tree: Tree, override: str) -> None:
    """Sets one ``path=value`` in place; list items are named by index or, for pools, by their name."""
    path, separator, text = override.partition("=")
    if not separator or not path:
        raise InputError(f"--set {override}: expected path=value, for example engine.max_seqs=128")
    set_field(tree, path, parse_yaml(text, f"--set {path}"), f"--set {override}")


FIELD_OF_WORD: Final = {"connector": "kind"}
"""Sections that a word may stand for, by the field that it is."""


_KEYS: Final = re.compile(r"(?<!\.p\d\d)\.")
"""Between the keys of a path: percentiles have a point of their own (``slo.ttft.p99.9``)."""


def set_field(tree: Tree, path: str, value: Any, where: str) -> None:
    """Sets the field at a dotted path in place; ``where`` begins the message of what cannot be set.

    A mapping for a named item of a list, as a pool, sets its fields; others of the item stay.

    Raises: InputError.
    """
    node: Any = tree
    keys = _KEYS.split(path)
    for key in keys[:-1]:
        if isinstance(node, dict) and node.get(key) is None:
            node[key] = {}
        elif isinstance(node, dict) and key in FIELD_OF_WORD and isinstance(node[key], str):
            node[key] = {FIELD_OF_WORD[key]: node[key]}
        node = _child(node, key, where)
    if isinstance(node, list):
        place = _position(node, keys[-1], where)
        is_part = isinstance(value, dict) and isinstance(node[place], dict)
        node[place] = {**node[place], **value} if is_part else value
    elif isinstance(node, dict):
        node[keys[-1]] = value
    else:
        raise InputError(f"{where}: {'.'.join(keys[:-1])} holds a plain value, expected a section")


def _child(node: Any, key: str, where: str) -> Any:
    if isinstance(node, list):
        return node[_position(node, key, where)]
    if isinstance(node, dict):
        return node[key]
    raise InputError(f"{where}: {quoted(key)} lies below a plain value, expected a section")


def _position(items: list[Any], key: str, where: str) -> int:
    for position, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == key:
            return position
    if key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(items):
        return int(key)
    names = [str(item["name"]) for item in items if isinstance(item, dict) and "name" in item]
    known = ", ".join(names) or f"0…{len(items) - 1}"
    raise InputError(f"{where}: found no item {quoted(key)}, expected one of {known}")


def describe(error: ValidationError, root: type, tree: Tree | None = None) -> str:
    """The first problem of a validation as one line; items of lists by the names that they have in ``tree``."""
    problems = error.errors(include_url=False)
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    problem = unknown[0] if unknown else problems[0]
    path, _ = _follow(problem["loc"], root)
    field = ".".join(_with_names(path, tree)) or "configuration"
    choices = [each for each in problems if each["type"] == "literal_error" and _follow(each["loc"], root)[0] == path]
    if problem in choices:  # of a union, one for each of its members
        listed = ", ".join(dict.fromkeys(_choices(each) for each in choices))
        return f"{field}: found {quoted(problem['input'])}, expected one of {listed}"
    return f"{field}: {_reason(problem, root)}"


def _with_names(path: Sequence[int | str], tree: Tree | None) -> Iterator[str]:
    """A path by the names of items, as ``--set`` has them; by places where an item has no name of its own."""
    node: Any = tree
    for part in path:
        if not isinstance(node, list | tuple) or not isinstance(part, int):
            node = node.get(part) if isinstance(node, Mapping) else None
            yield str(part)
            continue
        place = [place for place, item in enumerate(node) for _ in divided(item)][part]
        names = [item.get("name") if isinstance(item, Mapping) else None for item in node]
        name, node = names[place], node[place]
        yield name if isinstance(name, str) and names.count(name) == 1 else str(place)


def _reason(problem: ErrorDetails, root: type) -> str:
    found = problem.get("input")
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown field{_nearest(problem['loc'], root)}"
        case "missing":
            return f"missing, expected {_wanted(problem['loc'], root)}"
        case "value_error":
            return str(problem["msg"]).removeprefix("Value error, ")
        case "union_tag_not_found" | "union_tag_invalid":
            kinds = sorted({str(tag) for model in _follow(problem["loc"], root)[1] for tag in _tags(model)[1:]})
            kind = found.get("kind") if isinstance(found, dict) else found
            return f"found kind {quoted(kind)}, expected one of {', '.join(kinds)}"
        case "too_short":
            return "found an empty list, expected at least one item"
        case _:
            return f"found {quoted(found)}, expected {_expected(problem)}"


KEY_OF_MAPPING = "[key]"
"""What pydantic ends the location of a wrong key with."""
_EXPECTED = {
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "literal_error": "one of {expected}",
    "enum": "one of {expected}",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_short": "text of at least {min_length} characters",
    "too_long": "at most {max_length} items",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number below 2^63",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of fields",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
}
"""By pydantic's kinds of error, with the names of their context."""


def _choices(problem: ErrorDetails) -> str:
    """The words of a choice."""
    return str(problem.get("ctx", {}).get("expected", "")).replace("'", "").replace(" or ", ", ")


def _expected(problem: ErrorDetails) -> str:
    """What would have been right, in the words of the other errors."""
    context = {name: str(value) for name, value in problem.get("ctx", {}).items()} | {"expected": _choices(problem)}
    if problem["type"] in _EXPECTED:
        return _EXPECTED[problem["type"]].format_map(context)
    return str(problem["msg"][0].lower() + problem["msg"][1:]).removeprefix("input should be ")


def _wanted(loc: tuple[int | str, ...], root: type) -> str:
    """What a field that is missing may be, where it is a choice of words."""
    _, models = _follow(loc[:-1], root)
    fields = [model.model_fields[name] for model in models if (name := str(loc[-1])) in model.model_fields]
    choices = [
        str(choice)
        for field in fields
        if get_origin(field.annotation) is Literal
        for choice in get_args(field.annotation)
    ]
    return f"one of {', '.join(dict.fromkeys(choices))}" if choices else "a value"


def _nearest(loc: tuple[int | str, ...], root: type) -> str:
    _, models = _follow(loc[:-1], root)
    known = sorted({name for model in models for name in model.model_fields})
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; expected one of {', '.join(known)}" if known else ""


def _follow(loc: tuple[int | str, ...], root: type) -> tuple[list[int | str], list[type[BaseModel]]]:
    """A location without the tags that unions insert, and the model(s) it leads to."""
    path: list[int | str] = []
    current = _models(root)
    for part in loc:
        fields = [model.model_fields[part] for model in current if part in model.model_fields]
        named = bool(fields)
        tagged = [model for model in current if part in _tags(model)]
        if tagged and (len(current) > 1 or not named):  # `file` is a kind of topology and the field of this kind
            current = tagged
            continue
        if named:
            current = [model for field in fields for model in _models(field.annotation)]
        if part == KEY_OF_MAPPING:
            continue
        path.append(part)
        if named and not any(_holds_others(field.annotation) for field in fields):
            break  # what follows names a member of a union of plain values
    return path, current


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Models that an annotation mentions."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _holds_others(annotation: Any) -> bool:
    """Whether a value has items or fields."""
    origin = get_origin(annotation)
    is_collection = any(isinstance(each, type) and issubclass(each, Collection) for each in (annotation, origin))
    is_text = isinstance(annotation, type) and issubclass(annotation, str | bytes)
    if bool(_models(annotation)) or (is_collection and not is_text):
        return True
    return origin is not Literal and any(_holds_others(each) for each in get_args(annotation))


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """What selects a model in a union: the values of its ``kind``, or its own name."""
    kind = model.model_fields.get("kind")
    return (model.__name__, *(get_args(kind.annotation) if kind is not None else ()))
