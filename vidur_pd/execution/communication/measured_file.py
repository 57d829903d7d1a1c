"""Measurements of a run on backend `rdma`: ``measured.json``, from which another run repeats it without any host."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from boundary.errors import InputError
from boundary.fields import Section
from boundary.json_text import parse_json
from boundary.quoting import quoted
from boundary.text_files import read_text
from netsim.backends.rdma import MeasuredPairs
from netsim.formats.calibration_file import calibration_tree, pairs_from_tree

Count64 = Annotated[int, Field(ge=0, lt=2**63)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGraph:
    """A flow graph that was executed, alone on its hosts."""

    digest: str
    """SHA-256 of the graph and of who sends what; by it a later run finds the graph."""
    operation: str
    """The collective."""
    size_bytes: int
    gpus: tuple[int, ...]
    flows: int
    """Messages that it is made of."""
    duration_ps: int
    """From the common start to the last arrival, median of the executions."""
    shortest_ps: int
    """The shortest of them: other processes of a host can only delay an arrival."""
    longest_ps: int
    clock_error_ps: int
    """By which that may be wrong, as clocks of hosts have been compared."""
    retransmits: int
    """What a host has resent in all of them, by all that it did."""
    lanes: tuple[str, ...]
    """Transports and devices."""


class _Graph(Section):
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    operation: str
    size_bytes: Count64
    gpus: tuple[Count64, ...]
    flows: Count64
    duration_ps: Count64
    shortest_ps: Count64
    longest_ps: Count64
    clock_error_ps: Count64
    retransmits: Count64
    lanes: tuple[str, ...]


class _Content(Section):
    kind: Literal["vidur-pd measured"]
    graphs: tuple[_Graph, ...]
    calibration: Any


_PARSER: Final = TypeAdapter(_Content)


def format_measured(graphs: Iterable[MeasuredGraph], pairs: MeasuredPairs) -> str:
    """The file, a graph a line."""
    rows = ",\n  ".join(json.dumps(asdict(graph)) for graph in graphs)
    calibration = json.dumps(calibration_tree(pairs))
    return f'{{"kind": "vidur-pd measured", "graphs": [\n  {rows}\n], "calibration": {calibration}}}\n'


def read_measured(path: Path) -> tuple[dict[str, MeasuredGraph], MeasuredPairs]:
    """Inverse of `format_measured`, graphs by digest. Raises: InputError, naming file, field and what was found."""
    what = "measured.json of a run on backend rdma"
    tree = parse_json(read_text(path, what), str(path), what)
    try:
        content = _PARSER.validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "content"
        raise InputError(f"{path} {field}: found {quoted(first['input'])}: {first['msg']}") from None
    graphs = {each.digest: MeasuredGraph(**each.model_dump()) for each in content.graphs}
    return graphs, pairs_from_tree(content.calibration, f"{path} calibration")
