"""Valid documents made hostile: trees (YAML, JSON), tables of cells (CSV and texts with fields), and lines.

All randomness comes from the generator that is passed in, so a case follows from its seed; tests pass one that
Hypothesis controls and shrinks.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz import hostile

Tree = Any
"""Mappings, lists and scalars."""
Path = tuple[str | int, ...]
PLAUSIBLE = 0.35
"""Share of cases in which only numbers differ from what is valid."""


class Verbatim(str):
    """Text that stands in the written document as it is."""

    __slots__ = ()


def few(rng: random.Random) -> int:
    """How many mutations: mostly one, so that it is not hidden behind another."""
    return rng.choice((1, 1, 1, 1, 1, 2, 2, 4))


def mutated(tree: Tree, rng: random.Random, names: Sequence[str] = ()) -> Tree:
    """A copy with a few places changed; ``names`` are keys that the program knows."""
    changed = copy.deepcopy(tree)
    if rng.random() < PLAUSIBLE:
        return _with_other_numbers(changed, rng)
    for _ in range(few(rng)):
        places = list(paths(changed))
        if not places:
            return changed
        path = rng.choice(places)
        holder = changed
        for key in path[:-1]:
            holder = holder[key]
        _change(holder, path[-1], rng, names, lambda: _other_part(tree, rng))
    return changed


def _with_other_numbers(tree: Tree, rng: random.Random) -> Tree:
    """Numbers and quantities in place of others, so that more than the first check sees them."""
    places = [path for path in paths(tree) if _is_number(_at(tree, path))]
    for path in rng.sample(places, min(few(rng), len(places))):
        is_text = isinstance(_at(tree, path), str)
        _at(tree, path[:-1])[path[-1]] = Verbatim(
            rng.choice(hostile.VALID_QUANTITIES if is_text else hostile.VALID_NUMBERS)
        )
    return tree


def _at(tree: Tree, path: Path) -> Tree:
    for key in path:
        tree = tree[key]
    return tree


def _is_number(value: Tree) -> bool:
    is_quantity = isinstance(value, str) and value[:1].isdigit() and value[-1:].isalpha()
    return is_quantity or (isinstance(value, int | float) and not isinstance(value, bool))


def paths(tree: Tree, prefix: Path = ()) -> list[Path]:
    """Every place below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found: list[Path] = []
    for key, value in items:
        found.append((*prefix, key))
        found += paths(value, (*prefix, key))
    return found


def _change(holder: Any, key: Any, rng: random.Random, names: Sequence[str], other: Callable[[], Tree]) -> None:
    match rng.randrange(18):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 1, 2, 50))
        case 2 if isinstance(holder, dict):
            holder[rng.choice((*names, key + "s", key.upper(), key[:-1], "", "x" * 300, "a.b", "‮a", "kind"))] = (
                holder.pop(key)
            )
        case 3 if isinstance(holder, dict) and names:
            holder[rng.choice(names)] = scalar(rng, None)
        case 4:
            holder[key] = other()
        case 5:
            holder[key] = rng.choice(({}, [], [[]], [None], {"a": 1}, [holder[key]], {"kind": holder[key]}, None))
        case 6:
            holder[key] = Verbatim(hostile.yaml_value(rng))
        case 7:
            holder[key] = rng.choice(hostile.TEXTS)
        case _:
            holder[key] = scalar(rng, holder[key])


def scalar(rng: random.Random, present: Tree) -> Tree:
    """A number, quantity, text or constant, more often of the kind that stands there."""
    choice = rng.randrange(20)
    if isinstance(present, str) and present and present[0].isdigit() and choice < 15:
        return Verbatim(rng.choice(hostile.VALID_QUANTITIES if choice < 9 else hostile.QUANTITIES))
    if choice < 9:
        return Verbatim(rng.choice(hostile.VALID_NUMBERS))
    if choice < 13:
        number = rng.choice(hostile.NUMBERS)
        return Verbatim(number) if rng.random() < 0.8 else number
    if choice < 15:
        return Verbatim(rng.choice(hostile.QUANTITIES))
    return rng.choice(
        (None, True, False, "", [], {}, rng.choice(hostile.TEXTS), Verbatim(rng.choice(hostile.YAML_SCALARS)))
    )


def _other_part(tree: Tree, rng: random.Random) -> Tree:
    value = tree
    for key in rng.choice(paths(tree) or [()]):
        value = value[key]
    return copy.deepcopy(value)


def as_yaml(tree: Tree, rng: random.Random) -> bytes:
    """YAML: top-level keys in block style, values in flow style; sometimes a key twice, or a list in block style."""
    if not isinstance(tree, dict) or rng.random() < 0.05:
        return (_flow(tree) + "\n").encode("utf-8", "surrogatepass")
    lines = []
    for key, value in tree.items():
        if isinstance(value, list) and value and rng.random() < 0.5:
            lines += [f"{_key(key)}:", *(f"  - {_flow(item)}" for item in value)]
        else:
            lines.append(f"{_key(key)}: {_flow(value)}")
    if lines and rng.random() < 0.03:
        lines.append(rng.choice(lines))
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def _flow(value: Tree) -> str:
    match value:
        case Verbatim():
            return str(value)
        case dict():
            return "{" + ", ".join(f"{_key(key)}: {_flow(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_flow, value)) + "]"
        case str() if value.replace("_", "").replace("-", "").isalnum() and value.isascii() and value[0].isalpha():
            return value if value not in ("null", "true", "false", "yes", "no", "on", "off", "y", "n") else f'"{value}"'
        case _:
            return json.dumps(value)


def _key(key: object) -> str:
    text = str(key)
    return text if text.replace("_", "").isalnum() and text.isascii() else json.dumps(text)


def as_json(tree: Tree, rng: random.Random) -> bytes:
    """JSON, sometimes with a key twice."""
    if isinstance(tree, dict) and tree and rng.random() < 0.05:
        key = rng.choice(list(tree))
        body = ", ".join(f"{json.dumps(name)}: {_json(tree[name])}" for name in [*tree, key])
        return ("{" + body + "}").encode("utf-8", "surrogatepass")
    return _json(tree).encode("utf-8", "surrogatepass")


def _json(value: Tree) -> str:
    match value:
        case Verbatim():
            return str(value)
        case dict():
            return "{" + ", ".join(f"{json.dumps(str(key))}: {_json(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_json, value)) + "]"
        case _:
            return json.dumps(value)


Grid = list[list[str]]
"""Lines of cells."""


def cells_of(text: str, delimiter: str | None) -> Grid:
    """Cells of every line; ``None`` splits at white space."""
    return [line.split(delimiter) for line in text.splitlines()]


def mutated_cells(grid: Grid, rng: random.Random, names: Sequence[str] = ()) -> Grid:
    """A copy with a few cells, rows or columns changed."""
    changed = [list(row) for row in grid]
    if rng.random() < PLAUSIBLE:
        return _with_other_cells(changed, rng)
    for _ in range(few(rng)):
        if not changed:
            return changed
        _change_cells(changed, rng, names)
    return changed


def _with_other_cells(grid: Grid, rng: random.Random) -> Grid:
    """Numbers and quantities in place of others."""
    places = [(row, column) for row in grid for column, cell in enumerate(row) if cell[:1].isdigit()]
    for row, column in rng.sample(places, min(few(rng), len(places))):
        is_quantity = row[column][-1:].isalpha()
        row[column] = rng.choice(hostile.VALID_QUANTITIES if is_quantity else hostile.VALID_NUMBERS)
    return grid


def _change_cells(grid: Grid, rng: random.Random, names: Sequence[str]) -> None:
    at = rng.randrange(len(grid))
    row = grid[at]
    column = rng.randrange(len(row)) if row else 0
    match rng.randrange(24):
        case 0:
            del grid[at]
        case 1:
            grid[at:at] = [list(row)] * rng.choice((1, 1, 2, 100))
        case 2 if row:
            del row[column]
        case 3:
            row.insert(column, rng.choice((*hostile.NUMBERS, *hostile.TEXTS)))
        case 4:  # a column goes or comes twice
            for cells in grid:
                if column < len(cells):
                    cells[column : column + 1] = [] if at % 2 else [cells[column]] * 2
        case 5 if names:  # a column more
            value = rng.choice((*hostile.NUMBERS, "", "a"))
            for place, cells in enumerate(grid):
                cells.append(value if place else rng.choice(names))
        case 6 if row:
            grid[0][min(column, len(grid[0]) - 1) if grid[0] else 0 :][:1] = [rng.choice((*names, *hostile.TEXTS))]
        case 7:
            grid[at], grid[-1] = grid[-1], grid[at]
        case 8 if row:
            row[column] = rng.choice(hostile.TEXTS)
        case 9 if row:
            row[column] = "y" * rng.choice((131_072, 131_073, 1_000_000))
        case 10 if row:
            row[column] = rng.choice(hostile.QUANTITIES)
        case 11 if row:
            row[column] = rng.choice(rng.choice([cells for cells in grid if cells]))
        case 12 if row:
            row[column] = rng.choice(hostile.NUMBERS)
        case 13 if row and row[column][:1].isdigit() and row[column][-1:].isalpha():
            row[column] = rng.choice(hostile.VALID_QUANTITIES)
        case _ if row:
            row[column] = rng.choice(hostile.VALID_NUMBERS)
        case _:
            row.append("")


def as_csv(grid: Grid, rng: random.Random) -> bytes:
    """CSV, sometimes badly quoted, with other line ends or another delimiter."""
    delimiter = rng.choice((",",) * 12 + (";", "\t", "|"))
    end = rng.choice(("\n",) * 8 + ("\r\n", "\r", "\n\n"))
    if rng.random() < 0.3:
        text = end.join(delimiter.join(row) for row in grid) + end
    else:
        file = io.StringIO()
        csv.writer(file, delimiter=delimiter, lineterminator=end).writerows(grid)
        text = file.getvalue()
    if rng.random() < 0.05:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(('"', "\r", "\0", '"a"b', "\n", ",")) + text[at:]
    return text.encode("utf-8", "surrogatepass")


def as_fields(grid: Grid, rng: random.Random) -> bytes:
    """Lines of fields with white space between."""
    between = rng.choice((" ",) * 8 + ("  ", "\t", "\u00a0", "\u3000"))
    end = rng.choice(("\n",) * 8 + ("\r\n", "\r", "\x0b", "\u2028", "\n\n"))
    return (end.join(between.join(row) for row in grid) + end).encode("utf-8", "surrogatepass")


def document(rng: random.Random, made: Callable[[], bytes]) -> bytes:
    """Mostly what ``made`` gives, sometimes damaged."""
    content = made()
    return hostile.damaged_bytes(content, rng) if rng.random() < 0.08 else content


def option_value(rng: random.Random) -> str:
    """For an option that wants anything."""
    match rng.randrange(6):
        case 0 | 1:
            return rng.choice(hostile.VALID_NUMBERS)
        case 2:
            return rng.choice((*hostile.VALID_QUANTITIES, *hostile.QUANTITIES))
        case 3:
            return rng.choice(hostile.TEXTS)
    return rng.choice(hostile.NUMBERS)
