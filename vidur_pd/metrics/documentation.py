"""``docs/results.md``: columns and fields of the result files, from the lists that write and read them.

python -m vidur_pd.metrics.documentation docs/results.md
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from vidur_pd.execution.communication.measured_file import MeasuredGraph
from vidur_pd.metrics import summary
from vidur_pd.metrics.attribution import ATTRIBUTION_COLUMNS
from vidur_pd.metrics.columns import Column
from vidur_pd.metrics.iteration_columns import ITERATION_COLUMNS
from vidur_pd.metrics.link_columns import LINK_COLUMNS
from vidur_pd.metrics.request_figures import OPTIONAL_COLUMNS, REQUEST_COLUMNS
from vidur_pd.metrics.result import BATCH_COLUMNS, FLOW_COLUMNS

OPENING: Final = """# Result files

Written by `python -m vidur_pd.metrics.documentation docs/results.md` from the definitions in `vidur_pd/metrics/`.
How figures are defined is in [vidur_pd/README.md](../vidur_pd/README.md#metrics).
"""
TABLES: Final[tuple[tuple[str, str, Sequence[Column[Any]]], ...]] = (
    (
        "requests.csv",
        "One row per request, in order of arrival; empty where something does not apply. `requests.parquet` "
        "(with `--stream`) has the same columns in the order in which requests end, and those marked * also as integer "
        "picoseconds (`…_ps`). The last ones, from `session` on, are there if the workload has them.",
        (*REQUEST_COLUMNS, *OPTIONAL_COLUMNS),
    ),
    ("iterations.parquet", "One row per iteration, ordered by its end on each instance.", ITERATION_COLUMNS),
    (
        "attribution.parquet",
        "One row per completed request: where its time went, in picoseconds. Parts add up to `e2e_ps` exactly; "
        "`vidur-pd explain` prints them.",
        ATTRIBUTION_COLUMNS,
    ),
    (
        "batches.parquet",
        "On request (`output.batches`): one row for every request of every batch of `iterations.parquet`.",
        BATCH_COLUMNS,
    ),
    ("links.parquet", "One row for every window, link and class of traffic that it carried.", LINK_COLUMNS),
    ("flows.parquet", "On request: one row per flow of a KV transfer.", FLOW_COLUMNS),
)
MEASURED: Final = (
    "Of backend `rdma`: the collectives that the run has used, in the order in which it met them, and the messages "
    "from which KV transfers get their times. `network.measured: measured.json` repeats the run without hosts, to the "
    "byte."
)
CALIBRATION: Final = (
    "Messages between agents, as `netsim calibrate-rdma` writes them ([meaning](../netsim/README.md#calibration))."
)
UNITS: Final = (
    ("_ps", "ps"),
    ("_bps", "bit/s"),
    ("_per_s", "1/s"),
    ("_j_per_output_token", "J"),
    ("_s", "s"),
    ("pools_j", "J"),
    ("pools_w", "W"),
    ("_j", "J"),
    ("_bytes", "bytes"),
    ("_minutes", "min"),
    ("_under_load", "share"),
    ("_use", "share"),
    ("mfu", "share"),
    ("goodput", "1/s"),
    *(
        (name, "share")
        for name in ("share", "shares", "estimates", "attainment", "objective", "kv_use_mean", "kv_use_max")
    ),
)
"""Units by how a name ends."""


def page() -> str:
    """The whole page."""
    parts = [OPENING]
    for name, about, columns in TABLES:
        rows = [(f"`{each.name}`{'*' if each.is_exact else ''}", each.unit, each.meaning) for each in columns]
        parts.append(f"## {name}\n\n{about}\n\n{_table(('column', 'unit', 'what it is'), rows)}")
    about = _markdown(" ".join((inspect.getdoc(summary) or "").split("\n\n")[1].split()))
    rows = [(f"`{path}`", unit, meaning) for path, unit, meaning in _fields(summary.Summary, "", "")]
    parts.append(f"## summary.json\n\n{about}\n\n{_table(('field', 'unit', 'what it is'), rows)}")
    rows = [(f"`{path}`", unit, meaning) for path, unit, meaning in _fields(MeasuredGraph, "graphs[].", "")]
    rows.append(("`calibration`", "", CALIBRATION))
    parts.append(f"## measured.json\n\n{MEASURED}\n\n{_table(('field', 'unit', 'what it is'), rows)}")
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def _fields(section: type[Any], prefix: str, unit: str) -> Iterator[tuple[str, str, str]]:
    """(path, unit, meaning) of every field, those of its sections below it."""
    texts, hints = _docstrings(section), get_type_hints(section)
    for each in fields(section):
        own = next((name for suffix, name in UNITS if each.name.endswith(suffix)), unit)
        hint, path = hints[each.name], prefix + each.name
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(part for part in get_args(hint) if part is not type(None))
        if get_origin(hint) is tuple:
            hint, path = get_args(hint)[0], path + "[]"
        if get_origin(hint) is Mapping:
            hint, path = get_args(hint)[1], path + ".*"
        if is_dataclass(hint):
            about = (inspect.getdoc(hint) or "").split("\n\n")[0].replace("\n", " ")
            yield path, "", _markdown(" ".join((*([texts[each.name]] if each.name in texts else []), about)))
            yield from _fields(hint, f"{path}.", own)  # type: ignore[arg-type]
        else:
            yield path, "text" if hint is str else own, _markdown(texts.get(each.name, ""))


def _markdown(text: str) -> str:
    return text.replace("``None``", "`null`").replace("``", "`")


def _docstrings(section: type[Any]) -> dict[str, str]:
    """Texts below the fields of a class."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(node.target)] = " ".join(str(below.value.value).split())
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
