import dataclasses

import numpy as np
import pytest

from netsim import FlowGraph, FlowGraphError

GRAPH = FlowGraph.from_lists([0, 1], [2, 3], [10, 20], deps=[[], [0]], delay_ps=[5, 6], flow_label=[1, 2])


def changed(src: list[int], dst: list[int], size_bytes: list[int], ready_ps: list[int]) -> FlowGraph:
    return GRAPH.with_flows(
        src=np.array(src, dtype=np.int32),
        dst=np.array(dst, dtype=np.int32),
        size_bytes=np.array(size_bytes, dtype=np.int64),
        ready_ps=np.array(ready_ps, dtype=np.int64),
    )


def test_a_graph_with_other_flows_is_the_one_built_from_them() -> None:
    expected = FlowGraph.from_lists(
        [7, 8], [9, 4], [0, 1], deps=[[], [0]], delay_ps=[5, 6], flow_label=[1, 2], ready_ps=[3, 2]
    )
    found = changed([7, 8], [9, 4], [0, 1], [3, 2])
    for field in dataclasses.fields(FlowGraph):
        assert np.array_equal(getattr(found, field.name), getattr(expected, field.name)), field.name
    assert GRAPH.size_bytes.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0], [1], [1], [0]), "FlowGraph.src: found 1 entries, expected 2"),
        (([0, 1], [1], [1, 1], [0, 0]), "FlowGraph.dst: found 1 entries, expected 2"),
        (([0, 1], [1, 2], [1, -1], [0, 0]), "FlowGraph.size_bytes: found -1"),
        (([0, 1], [1, 2], [1, 1], [-2, 0]), "FlowGraph.ready_ps: found -2"),
    ],
)
def test_other_flows_that_do_not_fit_are_refused(columns: tuple[list[int], ...], message: str) -> None:
    with pytest.raises(FlowGraphError, match=message):
        changed(*columns)
