"""Pricing of collectives: by the cost model, with or without corrections, engines' kernels, or bus bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from boundary.errors import InputError
from simccl.collective import Collective
from simccl.engines.all_reduce import AllReduceKernels
from simccl.formats.busbw import BusBandwidths, Group
from simccl.formats.workload import Workload
from simccl.planning.calibration import Calibrated
from simccl.planning.timing import TimeTable, time_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One collective to be priced."""

    op: str
    size_bytes: int
    ranks: int
    nodes: int
    gpu: str
    group: Group = Group.TP
    """Matters to bus bandwidths only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Source of times."""

    calibration: Calibrated = "shipped"
    stack: AllReduceKernels = AllReduceKernels.NCCL
    may_use_nvls: bool = True
    busbw: BusBandwidths | None = None
    """Bus bandwidths in place of the cost model."""

    def times(self, requests: Sequence[Request]) -> TimeTable:
        """Times of the requests, in order.

        Raises:
            InputError: naming the row (from 0) and the field.
        """
        if self.busbw is not None:
            return _by_busbw(self.busbw, requests)
        return time_table(
            [r.op for r in requests],
            [r.size_bytes for r in requests],
            [r.ranks for r in requests],
            [r.nodes for r in requests],
            [r.gpu for r in requests],
            calibration=self.calibration,
            stack=self.stack,
            may_use_nvls=self.may_use_nvls,
        )


def requests_of(workload: Workload, *, gpu: str, gpus_per_node: int) -> list[Request]:
    """The collectives of a workload on consecutive GPUs of equal nodes.

    Raises:
        InputError: a group with unequal numbers of ranks on its nodes.
    """
    requests = []
    for collective in workload.collectives:
        members = workload.members(collective.group)
        nodes = len({member // gpus_per_node for member in members})
        if len(members) % nodes:
            raise InputError(f"gpus_per_node: found {gpus_per_node}, on which {collective.group} groups lie unevenly")
        requests.append(
            Request(
                op=collective.op,
                size_bytes=collective.size_bytes,
                ranks=len(members),
                nodes=nodes,
                gpu=gpu,
                group=collective.group,
            )
        )
    return requests


def _by_busbw(bandwidths: BusBandwidths, requests: Sequence[Request]) -> TimeTable:
    time_us = np.zeros(len(requests))
    for row, r in enumerate(requests):
        try:
            op = Collective.parse(r.op)
            time_us[row] = bandwidths.times_us(r.group, op, np.array([r.size_bytes]), np.array([r.ranks]))[0]
        except InputError as error:
            raise InputError(f"row {row}: {error}") from None
    count = len(requests)
    return TimeTable(
        time_us=time_us,
        latency_us=np.zeros(count),
        algorithm=np.full(count, "busbw", dtype="U14"),
        protocol=np.full(count, "", dtype="U6"),
        channels=np.zeros(count, dtype=np.int64),
    )
