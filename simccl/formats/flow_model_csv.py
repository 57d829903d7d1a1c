"""Plans as the detailed flow list that SimCCL writes (``ncclFlowModel_detailed_flows.csv``), 15 columns.

Ends are global ranks; an NVSwitch has the number of ranks plus its node, as in plans. ``parent_flow_ids`` are the flows
whose data a flow needs. ``prev_flow_ids`` has ranks in files that SimCCL itself writes; here too: the ranks from which
a flow's sender has received what it needs. ``chunk_id`` counts the flows of one channel between the same two ends.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boundary.output_files import write_atomically
from simccl.algorithms.algorithm import CollectiveAlgorithm
from simccl.algorithms.registry import find
from simccl.collective import Collective, Protocol
from simccl.formats.busbw import Group
from simccl.plan.plan import Plan

HEADER = (
    "collective,op,data_size,algorithm,protocol,channel_id,flow_id,src,dest,flow_size,chunk_id,chunk_count,"
    "conn_type,parent_flow_ids,prev_flow_ids"
)
_PROTOCOLS = {Protocol.LL: 0, Protocol.LL128: 1, Protocol.SIMPLE: 2}
_OPERATION_CODES = {op: code for code, op in enumerate(Collective)}


def write_flow_model_csv(plan: Plan, destination: Path, *, group: Group = Group.TP) -> None:
    """One row per flow.

    ``collective`` is SimCCL's cache key ``<group>_<index>_<layer>_<state>_<op>_<bytes>`` with zeros for index, layer
    and state, which a plan does not have; ``op`` is the place of the operation in `Collective`; algorithm, protocol are
    NCCL's numbers, −1 where it has none.
    """
    flows = plan.flows
    ranks = np.array(plan.communicator.gpus, dtype=np.int64)
    ends = np.concatenate([ranks, plan.communicator.topology.gpus + np.arange(plan.communicator.nodes)])
    chunk, count = _numbered(flows.channel, flows.src, flows.dst)
    parents = np.split(flows.deps, flows.dep_offsets[1:-1]) if len(flows) else []
    key = f"{group.upper()}_0_0_0_{plan.op.upper()}_{plan.size_bytes}"
    known = find(plan.algorithm) or CollectiveAlgorithm
    algorithm, protocol, connection = known.flow_model_code, _PROTOCOLS[plan.protocol], known.flow_model_connection
    text = io.StringIO()
    text.write(HEADER + "\n")
    writer = csv.writer(text, lineterminator="\n")
    src, dst = ends[flows.src].tolist(), ends[flows.dst].tolist()
    for i, needed in enumerate(parents):
        above = needed.tolist()
        writer.writerow(
            (
                *(key, _OPERATION_CODES[plan.op], plan.size_bytes, algorithm, protocol),
                *(int(flows.channel[i]), i, src[i], dst[i], int(flows.payload_bytes[i])),
                *(int(chunk[i]), int(count[i]), connection),
                ";".join(map(str, above)),
                ";".join(map(str, sorted({src[flow] for flow in above}))),
            )
        )
    write_atomically(destination, text.getvalue())


def _numbered(*columns: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[flows] place of a flow among those with equal columns, and how many these are."""
    _, group = np.unique(np.stack(columns), axis=1, return_inverse=True)
    group = group.ravel()
    counts = np.bincount(group)
    order = np.argsort(group, kind="stable")
    place = np.empty(len(group), dtype=np.int64)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, counts[group]
