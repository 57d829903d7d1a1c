"""Registry of algorithms: one written here is chosen, timed, planned, proved and written like those of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simccl import (
    Algorithm,
    Collective,
    InputError,
    Plan,
    PlanError,
    PlannedFlows,
    choose,
    collective_time,
    plan_collective,
    time_table,
    verify_plan,
)
from simccl.algorithms.algorithm import FlowRequest, NcclAlgorithm, simple_only, simple_rate
from simccl.algorithms.flow_rates import Lanes
from simccl.algorithms.registry import names, register, registered
from simccl.collective import shares
from simccl.communicator.shape import CommunicatorShape
from simccl.formats.flow_model_csv import write_flow_model_csv
from simccl.nccl.search import Channels, Graph
from simccl.plan.edges import joined
from simccl.plan.flows import Operation
from tests.simccl.communicators import run_on_idle, spread

GATHER = Collective.ALL_GATHER


class FlatGather(NcclAlgorithm):
    """Every rank sends its block straight to every other one, 100 GB/s and 1 µs."""

    name = Algorithm("flat")
    flow_model_connection = "FLAT"
    ops = frozenset({GATHER})
    inside_us = (0.0, 0.0, 1.0)
    between_us = (0.0, 0.0, 1.0)

    def graph(self, channels: Channels) -> Graph:
        return channels.ring

    def is_enabled(self, at: CommunicatorShape, graph: Graph) -> NDArray[np.bool_]:
        return simple_only(at.nodes == 1)

    def steps(self, op: Collective, at: CommunicatorShape) -> tuple[int, int]:
        return 1, 0

    def bus_gbytes_per_s(self, op: Collective, at: CommunicatorShape, graph: Graph) -> NDArray[np.float64]:
        return simple_rate(100.0)

    def flows(self, request: FlowRequest) -> PlannedFlows:
        ranks = request.communicator.size
        bounds = shares(request.size_bytes, ranks)
        src, dst = (ends[~np.eye(ranks, dtype=np.bool_)] for ends in np.indices((ranks, ranks)))
        return Lanes(
            src=src,
            dst=dst,
            payload_bytes=np.diff(bounds)[src],
            channel=src,
            step=np.zeros_like(src),
            origin=src,
            offset=bounds[src],
            operation=Operation.COPY,
            latency_ps=request.rates.hop_latency_ps(np.zeros(len(src), dtype=np.bool_)),
            wire_rate=request.rates.wire_rate(1 / ranks),
            edges=joined([]),
        ).flows(request.choice.protocol)

    def payload_bytes(self, plan: Plan) -> int:
        return (plan.communicator.size - 1) * plan.size_bytes


@pytest.fixture
def flat() -> Iterator[None]:
    with registered(FlatGather()):
        yield


@pytest.mark.usefixtures("flat")
def test_an_algorithm_of_ones_own_is_planned_timed_and_proved_by_the_public_functions() -> None:
    """1 MiB at 100 GB/s take 10.48576 µs after 1 µs; 8 · 7 messages of 128 KiB."""
    communicator = spread(1, 8)
    plan = plan_collective("all_gather", 1 << 20, communicator, algorithm="flat")
    assert (plan.algorithm, len(plan)) == ("flat", 56)
    assert verify_plan(plan).payload_bytes == 7 << 20
    choice = choose(GATHER, 1 << 20, communicator, algorithm=Algorithm("flat"))
    assert choice.time_us == pytest.approx(11.48576)
    assert run_on_idle(plan) == pytest.approx(11_485_760, rel=1e-3)


@pytest.mark.usefixtures("flat")
def test_it_is_chosen_where_it_is_the_fastest_and_used_for_nothing_else() -> None:
    """Rings need 10.8 µs for 64 KiB between 8 H100s, 1 µs + 65,536 B / 100 GB/s = 1.65536 µs are less."""
    found = collective_time("all_gather", 64 << 10, spread(1, 8))
    assert (found.algorithm, found.time_ps) == ("flat", 1_655_360)
    table = time_table(["all_gather", "all_reduce"], [64 << 10] * 2, [8] * 2, [1] * 2, "h100")
    assert table.algorithm.tolist() == ["flat", "ring"]
    assert collective_time("all_gather", 64 << 10, spread(2, 8)).algorithm == "ring"


@pytest.mark.usefixtures("flat")
def test_its_connection_stands_in_flow_lists(tmp_path: Path) -> None:
    write_flow_model_csv(plan_collective("all_gather", 64, spread(1, 4)), tmp_path / "flows.csv")
    assert "FLAT" in (tmp_path / "flows.csv").read_text().splitlines()[1]


def test_a_plan_that_sends_other_bytes_than_its_theory_is_refused() -> None:
    class TwiceAsMuch(FlatGather):
        name = Algorithm("twice")

        def payload_bytes(self, plan: Plan) -> int:
            return 2 * super().payload_bytes(plan)

    with registered(TwiceAsMuch()), pytest.raises(PlanError, match="found 192 bytes sent, expected 384"):
        verify_plan(plan_collective("all_gather", 64, spread(1, 4), algorithm="twice"))


def test_it_is_forgotten_after_its_context_though_costs_are_remembered() -> None:
    with registered(FlatGather()):
        assert collective_time("all_gather", 64 << 10, spread(1, 8)).algorithm == "flat"
    assert collective_time("all_gather", 64 << 10, spread(1, 8)).algorithm == "ring"
    with pytest.raises(InputError, match="found 'flat', expected one of tree, ring,"):
        plan_collective("all_gather", 64, spread(1, 4), algorithm="flat")


@pytest.mark.parametrize("name", ["ring", "none"])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    class Again(FlatGather):
        pass

    Again.name = Algorithm(name)
    with pytest.raises(ValueError, match=f"found the name '{name}', which another one has"):
        register(Again())
    assert names().count(Algorithm(name)) == (name == "ring")
