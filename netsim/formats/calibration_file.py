"""`netsim.backends.calibration` as JSON: agents, and for each pair what was measured and the lines through it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from boundary.errors import InputError
from boundary.fields import Section
from boundary.json_text import parse_json
from boundary.quoting import quoted
from boundary.text_files import read_text
from netsim.backends.calibration import Calibration, SizeRange
from netsim.backends.rdma.message_times import MeasuredAgent, MeasuredPairs, MessageSample, PairMeasurement

Bytes = Annotated[int, Field(ge=0, lt=2**63)]
Nanoseconds = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class _Range(Section):
    first_bytes: Bytes
    last_bytes: Bytes
    alpha_ns: Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]
    ns_per_byte: Nanoseconds
    largest_residual: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Sample(Section):
    size_bytes: Bytes
    median_ns: Nanoseconds
    shortest_ns: Nanoseconds
    longest_ns: Nanoseconds


class _Pair(Section):
    src: Annotated[int, Field(ge=0)]
    dst: Annotated[int, Field(ge=0)]
    lane: str
    retransmits: Annotated[int, Field(ge=0)]
    ranges: Annotated[tuple[_Range, ...], Field(min_length=1)]
    samples: Annotated[tuple[_Sample, ...], Field(min_length=1)]

    def measurement(self) -> PairMeasurement:
        return PairMeasurement(
            samples=tuple(MessageSample(**each.model_dump()) for each in self.samples),
            ranges=tuple(SizeRange(**each.model_dump()) for each in self.ranges),
            lane=self.lane,
            retransmits=self.retransmits,
        )


class _Agent(Section):
    nodes: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    address: str
    device: str | None
    gpu: Annotated[int, Field(ge=0)] | None = None


class _Content(Section):
    kind: Literal["netsim calibration"]
    engine: str
    agents: tuple[_Agent, ...]
    """By rank."""
    pairs: tuple[_Pair, ...]
    """``src`` and ``dst`` are ranks."""


_PARSER: Final = TypeAdapter(_Content)


def calibration_tree(measured: MeasuredPairs) -> dict[str, Any]:
    """What the file holds."""
    return {
        "kind": "netsim calibration",
        "engine": measured.engine,
        "agents": [asdict(agent) for agent in measured.agents],
        "pairs": [{"src": src, "dst": dst, **asdict(found)} for (src, dst), found in sorted(measured.pairs.items())],
    }


def format_calibration(measured: MeasuredPairs) -> str:
    """The file, a pair a line."""
    tree = calibration_tree(measured)
    pairs = ",\n  ".join(json.dumps(pair) for pair in tree.pop("pairs"))
    return f'{json.dumps(tree)[:-1]}, "pairs": [\n  {pairs}\n]}}\n'


def read_calibration(path: Path) -> Calibration:
    """Reads a file of `netsim calibrate-rdma`. Raises: InputError, naming file, field and what was found."""
    tree = parse_json(read_text(path, "a calibration"), str(path), "a calibration")
    return pairs_from_tree(tree, str(path)).calibration()


def pairs_from_tree(tree: Any, where: str) -> MeasuredPairs:
    """Inverse of `calibration_tree`. Raises: InputError, for a tree that anyone may have written."""
    try:
        content = _PARSER.validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "content"
        raise InputError(f"{where} {field}: found {quoted(first['input'])}: {first['msg']}") from None
    _check_agents(content.agents, where)
    pairs: dict[tuple[int, int], PairMeasurement] = {}
    for at, pair in enumerate(content.pairs):
        ends = (pair.src, pair.dst)
        if max(ends) >= len(content.agents) or ends in pairs:
            raise InputError(f"{where} pairs.{at}: found agents {ends[0]} and {ends[1]}, expected a new pair of agents")
        _check_ranges(pair.ranges, f"{where} pairs.{at}.ranges")
        pairs[ends] = pair.measurement()
    agents = tuple(MeasuredAgent(**agent.model_dump()) for agent in content.agents)
    return MeasuredPairs(content.engine, agents, pairs)


def _check_agents(agents: Sequence[_Agent], where: str) -> None:
    owners: dict[int, int] = {}
    for rank, agent in enumerate(agents):
        for node in agent.nodes:
            if owners.setdefault(node, rank) != rank:
                raise InputError(f"{where} agents.{rank}.nodes: found {node}, which agent {owners[node]} has already")


def _check_ranges(ranges: Sequence[_Range], where: str) -> None:
    last_bytes = -1
    for at, each in enumerate(ranges):
        if not last_bytes < each.first_bytes <= each.last_bytes:
            found = f"{each.first_bytes} to {each.last_bytes} bytes"
            raise InputError(f"{where}.{at}: found {found}, expected sizes that rise")
        if each.alpha_ns + each.ns_per_byte * (last_bytes + 1) < 0:
            raise InputError(
                f"{where}.{at}.alpha_ns: found {each.alpha_ns:g}, with which messages take less than no time"
            )
        last_bytes = each.last_bytes
