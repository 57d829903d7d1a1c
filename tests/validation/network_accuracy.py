"""Network models against each other and against published figures: ``python -m tests.validation.network_accuracy``.

The reference is `packet` with packets of 4,096 B. Compared with it: `fluid` on bare bytes, `fluid` with the wire format
of the packets, and `cell`, the packet model with 2, 4 and 8 packets as one unit. ``--write`` puts the tables into
``docs/accuracy/network.md``, between the markers of this script; it takes about three minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from netsim import FlowGraph, NetworkBackend, Topology, create_backend
from netsim.backends.packet import PacketBackend
from netsim.roce.config import RoceConfig
from tests.validation.accuracy_document import ACCURACY, written
from tests.validation.network_cases import Case, all_cases
from tests.validation.network_references import reference_tables

HORIZON_PS: Final = 10**14
CELLS: Final = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Run:
    """What a model says of one graph."""

    duration_ps: NDArray[np.int64]
    """[flows] from the instant at which a flow may start to its last byte"""
    end_ps: int
    seconds: float
    packet_hops: int
    """0 for models without packets"""


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of a model on a case."""

    makespan: float
    """of the run in which it is the largest, with its sign"""
    mean: float
    """of the absolute errors of all flows' durations; as are ``p99`` and ``worst``"""
    p99: float
    worst: float
    speed: float
    """how many times less processor time than packets take"""
    hops: float
    """how many times fewer packet hops; 0 for models without packets"""


MODELS: Final[dict[str, Callable[[Topology, RoceConfig], NetworkBackend]]] = {
    "fluid": lambda topology, _: create_backend("fluid", topology),
    "fluid, wire format": lambda topology, config: create_backend("fluid", topology, wire=config.wire),
} | {
    f"cell of {cell}": lambda topology, config, cell=cell: create_backend(
        "packet", topology, config.model_copy(update={"cell_packets": cell})
    )
    for cell in CELLS
}


def run(backend: NetworkBackend, graph: FlowGraph) -> Run:
    begin = time.process_time()
    handle = backend.submit(graph, 0)
    while not any(c.flow is None for c in backend.advance(HORIZON_PS)):
        assert backend.now_ps < HORIZON_PS, "flows that never end"
    seconds = time.process_time() - begin
    ends = backend.flow_times(handle).end_ps
    hops = backend.packet_hops() if isinstance(backend, PacketBackend) else 0
    return Run(ends - graph.ready_ps, int(ends.max()), seconds, hops)


def errors_of(case: Case) -> Iterator[tuple[str, Errors]]:
    """Each model and what it is off by."""
    config = RoceConfig.model_validate(case.config)
    truth = [run(PacketBackend(case.topology, config), graph) for graph in case.graphs]
    for name, make in MODELS.items():
        found = [run(make(case.topology, config), graph) for graph in case.graphs]
        makespans = [f.end_ps / t.end_ps - 1 for f, t in zip(found, truth, strict=True)]
        pairs = zip(found, truth, strict=True)
        of_flows = np.abs(np.concatenate([f.duration_ps / t.duration_ps - 1 for f, t in pairs]))
        hops = sum(f.packet_hops for f in found)
        yield (
            name,
            Errors(
                max(makespans, key=abs),
                float(of_flows.mean()),
                float(np.quantile(of_flows, 0.99)),
                float(of_flows.max()),
                sum(t.seconds for t in truth) / sum(f.seconds for f in found),
                sum(t.packet_hops for t in truth) / hops if hops else 0,
            ),
        )


def model_table(cases: list[Case]) -> str:
    lines = [
        "| case | model | makespan | flows, mean | p99 | worst | fewer hops | faster |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        for i, (model, e) in enumerate(errors_of(case)):
            hops = f"{e.hops:.1f} ×" if e.hops else "–"
            lines.append(
                f"| {case.name if i == 0 else ''} | {model} | {100 * e.makespan:+.1f} % | {100 * e.mean:.1f} % "
                f"| {100 * e.p99:.1f} % | {100 * e.worst:.1f} % | {hops} | {e.speed:,.0f} × |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy/network.md")
    is_to_write = parser.parse_args().write
    tables: dict[str, Callable[[], str]] = {"models": lambda: model_table(all_cases())} | reference_tables()
    for section, table_of in tables.items():
        table = table_of()
        print(f"\n{section}\n{table}", flush=True)
        if is_to_write:
            ACCURACY.write_text(written(ACCURACY.read_text(), f"network_accuracy: {section}", table))


if __name__ == "__main__":
    main()
