"""Graphs that ranks can execute. Apart from `share`, as agents do without scipy and so start sooner."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from boundary.errors import InputError
from netsim.backends.rdma.share import waits_of
from netsim.flow import FlowGraph


def check_executable(graph: FlowGraph) -> None:
    """Refuses a graph that no rank could finish, or that asks for what no engine does.

    Raises:
        InputError: flows wait for each other in a circle, or there are several traffic classes.
    """
    classes = np.unique(graph.priority).tolist()
    if len(classes) > 1:
        raise InputError(f"priority: found classes {classes[0]} and {classes[1]}, expected one on backend rdma")
    event, waiting = waits_of(graph)
    before = csr_matrix((np.ones(len(event), dtype=np.int8), (event // 2, waiting)), shape=(len(graph), len(graph)))
    components, _ = connected_components(before, connection="strong")
    if components != len(graph) or bool(np.any(event // 2 == waiting)):
        raise InputError("deps: found flows that wait for each other in a circle, expected none")
