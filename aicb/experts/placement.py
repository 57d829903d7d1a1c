"""Placement of the physical expert slots of an EP group on its ranks, and the rows each rank gets.

Without redundant slots rank r holds experts r·G … (r + 1)·G − 1. With them, slots are filled and placed by the greedy
rule of DeepSeek's expert-parallel load balancer (github.com/deepseek-ai/EPLB, global policy):

    replicate: one more slot to the expert with the largest load per replica, until no slot is free;
    place:     slots in descending load, each on the least-loaded rank that has a free slot.

Assumes that the balancer knows the loads it places for, and that tokens spread evenly over the replicas of an expert.
The hierarchical policy, which keeps expert groups on nodes, is ignored.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Experts in the slots of every rank."""

    expert_of_slot: NDArray[np.int64]
    """[ranks, slots per rank]"""
    replica_of_slot: NDArray[np.int64]
    """[ranks, slots per rank] 0 for the first slot of an expert, 1 for the second, …"""
    replicas: NDArray[np.int64]
    """[experts] slots of each expert"""

    def slot_rows(self, expert_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """[ranks, slots per rank] rows of each slot; replicas of an expert differ by at most one row."""
        replicas = self.replicas[self.expert_of_slot]
        share, rest = np.divmod(expert_rows[self.expert_of_slot], replicas)
        return np.asarray(share + (self.replica_of_slot < rest))


def place_in_order(experts: int, ranks: int) -> Placement:
    """One slot per expert, in order; ``experts`` is a multiple of ``ranks``."""
    slots = np.arange(experts, dtype=np.int64).reshape(ranks, -1)
    return Placement(slots, np.zeros_like(slots), np.ones(experts, dtype=np.int64))


def place_balanced(loads: NDArray[np.float64], slots: int, ranks: int) -> Placement:
    """The greedy rule for ``slots`` ≥ experts slots on ``ranks`` ranks; equal loads keep the order of experts.

    Args:
        loads: [experts] expected load of each expert, in any unit.
        slots: physical slots, a multiple of ``ranks``.
        ranks: of the EP group.
    """
    replicas = _replicate(loads, slots)
    per_replica = loads / replicas
    experts = np.repeat(np.arange(len(loads)), replicas)
    order = np.argsort(-per_replica[experts], kind="stable")
    free_ranks = [(0.0, rank) for rank in range(ranks)]
    placed: list[list[int]] = [[] for _ in range(ranks)]
    for expert in experts[order].tolist():
        load, rank = heapq.heappop(free_ranks)
        placed[rank].append(expert)
        if len(placed[rank]) < slots // ranks:
            heapq.heappush(free_ranks, (load + float(per_replica[expert]), rank))
    expert_of_slot = np.array(placed, dtype=np.int64)
    return Placement(expert_of_slot, _replica_numbers(expert_of_slot, len(loads)), replicas)


def _replicate(loads: NDArray[np.float64], slots: int) -> NDArray[np.int64]:
    """[experts] slots of each expert."""
    replicas = np.ones(len(loads), dtype=np.int64)
    heap = [(-load, expert) for expert, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    for _ in range(slots - len(loads)):
        _, expert = heap[0]
        replicas[expert] += 1
        heapq.heapreplace(heap, (-float(loads[expert]) / int(replicas[expert]), expert))
    return replicas


def _replica_numbers(expert_of_slot: NDArray[np.int64], experts: int) -> NDArray[np.int64]:
    seen = [0] * experts
    numbers = np.empty_like(expert_of_slot)
    for slot, expert in enumerate(expert_of_slot.ravel().tolist()):
        numbers.ravel()[slot] = seen[expert]
        seen[expert] += 1
    return numbers
