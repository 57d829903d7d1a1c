"""Operands of a kernel that gathers the rows of experts by their indices, and the experts its pairs choose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from aicb.kernels.expert_points import experts_of_all_ranks
from aicb.kernels.point import Point
from aicb.profiling.kernel_library import normal
from aicb.profiling.libraries import reference

BLOCK = [reference.SCALE_COLUMNS, reference.SCALE_COLUMNS]
"""Of fp8 weights that share a scale."""


def pairs_of(point: Point) -> int:
    """(token, expert) pairs of all ranks."""
    return point.get("m", point["rows"])


@dataclass(frozen=True, slots=True)
class Operand:
    """Values with their scales, as the kernel takes them; bf16 has none."""

    values: torch.Tensor
    scales: torch.Tensor | None = None

    def rows(self, chosen: torch.Tensor) -> torch.Tensor:
        """Rows of activations in float32."""
        if self.scales is None:
            return self.values[chosen].float()
        return reference.dequantise_rows(self.values[chosen], self.scales[chosen])

    def expert(self, index: int) -> torch.Tensor:
        """[n, k] weights of one expert in float32."""
        if self.scales is None:
            return self.values[index].float()
        return reference.dequantise_blocks(self.values[index], self.scales[index])


def expert_operands(point: Point, rows: int, device: str = "cuda") -> tuple[Operand, Operand]:
    """Activations ``[rows, k]`` and weights ``[experts, n, k]``, normal in bf16.

    In fp8 both are quantised from these with the scales an engine would find: rows of 128 columns, blocks of 128x128.
    """
    experts, n, k = point["groups"], point["n"], point["k"]
    x = normal(rows, k, device=device)
    if point.dtype == "bf16":
        return Operand(x), Operand(normal(experts, n, k, device=device))
    values = torch.empty(experts, n, k, device=device, dtype=torch.float8_e4m3fn)
    scales = torch.empty(experts, n // BLOCK[0], k // BLOCK[1], device=device)
    for index in range(experts):
        values[index], scales[index] = reference.quantise_blocks(normal(n, k, device=device))
    return Operand(*reference.quantise_rows(x)), Operand(values, scales)


@dataclass(frozen=True, slots=True)
class Routing:
    """[tokens, k] int32 expert of each pair."""

    experts: torch.Tensor

    @classmethod
    def of(cls, point: Point) -> Routing:
        """Pairs of the stated rows per expert in random order, as a router leaves them; those of others' experts
        even."""
        counts = torch.tensor(point.lengths)
        owner = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(counts)
        others, elsewhere = experts_of_all_ranks(point) - point["groups"], pairs_of(point) - point["rows"]
        if elsewhere:
            owner = torch.cat([owner, point["groups"] + torch.arange(elsewhere, dtype=torch.int32) % others])
        shuffled = owner[torch.randperm(len(owner), generator=torch.Generator().manual_seed(len(owner)))]
        return cls(shuffled.view(point["batch"], -1).to("cuda"))


def assign(rows: NDArray[np.int64], tokens: int, top_k: int) -> NDArray[np.int64]:
    """[tokens, k] distinct experts of each token so that each expert has as many ``rows``.

    Every token takes the experts that have most left, which works out for all rows that any choice can have.
    """
    left, chosen = rows.astype(np.float64), np.empty((tokens, top_k), dtype=np.int64)
    tie = np.random.default_rng(tokens)
    for token in range(tokens):
        taken = np.argpartition(left + tie.random(len(left)) / 2, -top_k)[-top_k:]
        left[taken] -= 1.0
        chosen[token] = taken
    return chosen
