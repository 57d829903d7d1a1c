"""Products of mxfp4 experts in vLLM's Marlin kernel (``moe_wna16_marlin_gemm``), which it runs for gpt-oss where its
Triton kernels are not wanted (``VLLM_MXFP4_USE_MARLIN``) or not there.

bf16 rows are gathered by expert and multiplied by e2m1 weights with one e8m0 scale per 32, the second product times the
router's weights. Activation and sum over experts are kernels of their own, and not in these times, nor is sorting.
Hidden sizes are padded to a multiple of 256, columns of a sliced expert to one of 128, and the row tile follows from
the rows of an expert, as in vLLM 0.24 (``fused_moe/experts/marlin_moe.py``, ``oracle/mxfp4.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from aicb.kernels.expert_points import MARLIN_OPERATION
from aicb.kernels.point import Point
from aicb.kernels.reference.product_times import MARLIN_TILES, tile_of_marlin
from aicb.profiling.kernel_library import BF16_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries.gathered_experts import assign
from aicb.profiling.libraries.modules import load_operators, operators
from aicb.profiling.libraries.mxfp4 import dequantise, quantise

PADDED_HIDDEN, PADDED_WIDTH = 256, 128
"""Multiples to which hidden sizes and columns of an expert are padded."""
_E2M1 = 562949953487106
"""Identity of the number format in vLLM's operators (``scalar_types.float4_e2m1f``)."""
_BLOCKS_PER_SM = 4
_TILE, _PACKED = 16, 8
"""Rows and columns of a tile of the tensor cores; codes of an int32."""
_COLUMNS, _HALF = 64, 4
"""Scales are in another order within so many of their columns, and within half a vector of eight."""


class VllmMarlinExperts:
    """``torch.ops._moe_C.moe_wna16_marlin_gemm``.

    Weights of a shape are kept, as arranging them takes seconds. Kernels of one shape draw other experts each time, so
    that operand sets in turns read other weights.
    """

    def __init__(self, moe: Path | None = None):
        self._missing = load_operators("_moe_C_stable_libtorch", moe)
        self._weights: dict[tuple[int, int, int, bool], _Weights] = {}
        self._made = 0

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        return "vLLM extension module _moe_C (stable ABI)"

    def refusal(self, point: Point) -> str | None:
        if point.op != MARLIN_OPERATION:
            return "products of mxfp4 experts only"
        if operators("_moe_C", "moe_wna16_marlin_gemm") is None:
            return "torch.ops._moe_C.moe_wna16_marlin_gemm is not registered"
        return None

    def kernel(self, point: Point) -> Kernel:
        self._made += 1
        site = point["groups"], point["n"], point["k"], _is_up(point)
        if site not in self._weights:
            self._weights[site] = _Weights.made_for(point)
        weights, pairs = self._weights[site], _Pairs.of(point, self._made)
        per_row = point["experts_per_token"]
        x = normal(point["rows"] // per_row, weights.inner, device="cuda")
        out = torch.empty(point["rows"], weights.columns, device="cuda", dtype=torch.bfloat16)
        bias = torch.zeros(point["groups"], weights.columns, device="cuda", dtype=torch.bfloat16)
        workspace = _workspace()

        def run() -> None:
            torch.ops._moe_C.moe_wna16_marlin_gemm(
                x,
                out,
                weights.values,
                bias,
                weights.scales,
                *(None,) * 5,  # scales of activations and in all, zero points, and an order of the inner index
                workspace,
                pairs.order,
                pairs.owners,
                pairs.padded,
                pairs.router,
                pairs.tile,
                per_row,
                not _is_up(point),
                _E2M1,
                len(x),
                weights.columns,
                weights.inner,
                True,
                False,
                True,
                False,
                *(-1,) * 3,  # tiles as the kernel chooses them
            )

        def error() -> float:
            rows = torch.tensor(some_rows(point["rows"], 16), device="cuda")
            experts = pairs.experts.flatten()[rows]
            expected = torch.stack(
                [
                    x[row // per_row].float() @ weights.of(expert)
                    for row, expert in zip(rows.tolist(), experts.tolist(), strict=True)
                ]
            )
            if not _is_up(point):
                expected *= pairs.router.flatten()[rows][:, None]
            return relative_error(out[rows], expected)

        settings = {"row_tile": pairs.tile}
        return Kernel("vllm/marlin_moe", run, [out], error, BF16_TOLERANCE, settings)


def _is_up(point: Point) -> bool:
    """Whether it is the first product, which gathers the rows of tokens."""
    return point["experts_per_token"] > 1


def _workspace() -> torch.Tensor:
    sms = torch.cuda.get_device_properties("cuda").multi_processor_count
    return torch.zeros(_BLOCKS_PER_SM * sms, device="cuda", dtype=torch.int32)


def row_tile(pairs: int, experts: int) -> int:
    """Rows of a tile by which the pairs of an expert are padded."""
    return MARLIN_TILES[int(tile_of_marlin(np.array([pairs / experts]))[0])]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """(token, expert) pairs, sorted by expert."""

    experts: torch.Tensor
    """[tokens, k]"""
    router: torch.Tensor
    """[tokens, k] weights."""
    tile: int
    order: torch.Tensor
    owners: torch.Tensor
    padded: torch.Tensor

    @classmethod
    def of(cls, point: Point, made: int) -> _Pairs:
        """The point's rows per expert, of other experts for every kernel that is made."""
        tokens, experts = point["batch"], point["groups"]
        lengths = np.roll(point.lengths, made * point["active_groups"])
        chosen = torch.from_numpy(assign(lengths, tokens, point["rows"] // tokens)).to("cuda", torch.int32)
        tile = row_tile(chosen.numel(), experts)
        most = chosen.numel() + experts * (tile - 1)
        if chosen.numel() < experts:
            most = min(most, chosen.numel() * tile)
        order = torch.empty(most, device="cuda", dtype=torch.int32)
        owners = torch.empty(-(-most // tile), device="cuda", dtype=torch.int32)
        padded = torch.empty(1, device="cuda", dtype=torch.int32)
        torch.ops._moe_C.moe_align_block_size(chosen, experts, tile, order, owners, padded, None)
        return cls(chosen, torch.rand(chosen.shape, device="cuda"), tile, order, owners, padded)


class _Weights:
    """``[experts, columns, inner]`` normal weights in e2m1 with scales, as the kernel takes them."""

    def __init__(self, packed: torch.Tensor, exponents: torch.Tensor, values: torch.Tensor, scales: torch.Tensor):
        self._packed, self._exponents = packed, exponents
        self.values, self.scales = values, scales
        self.columns, self.inner = packed.shape[1], 2 * packed.shape[2]

    @classmethod
    def made_for(cls, point: Point) -> _Weights:
        columns, inner = point["n"], point["k"]
        if _is_up(point):
            columns, inner = 2 * _padded(columns // 2, PADDED_WIDTH), _padded(inner, PADDED_HIDDEN)
        else:
            columns, inner = _padded(columns, PADDED_HIDDEN), _padded(inner, PADDED_WIDTH)
        packed, exponents, values, scales = [], [], [], []
        for _ in range(point["groups"]):
            codes, exponent = quantise(normal(columns, inner, device="cuda", scale=inner**-0.5))
            packed.append(codes)
            exponents.append(exponent)
            values.append(arranged(codes))
            scales.append(ordered(exponent))
        return cls(*(torch.stack(each) for each in (packed, exponents, values, scales)))

    def of(self, expert: int) -> torch.Tensor:
        """[inner, columns] of an expert in float32."""
        return dequantise(self._packed[expert], self._exponents[expert]).T


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def arranged(packed: torch.Tensor) -> torch.Tensor:
    """``[inner / 16, 2 · columns]`` words of eight codes, from ``[columns, inner / 2]`` bytes of two.

    A thread finds those of its 16x16 tile, and of the next three, in order: rows 2t, 2t + 1, 2t + 8 and 2t + 9
    of columns c and c + 8, for t = lane mod 4 and c = lane div 4, even places first (vLLM's ``gptq_marlin_repack``).
    """
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).T
    inner, columns = codes.shape
    tiles = codes.reshape(inner // _TILE, _TILE, columns // _TILE, _TILE).transpose(1, 2)
    rows = torch.tensor([0, 1, 8, 9, 0, 1, 8, 9])
    across = torch.tensor([0, 0, 0, 0, 8, 8, 8, 8])
    lanes, neighbours = torch.arange(32)[:, None, None], torch.arange(4)[None, :, None]
    places = _TILE * _TILE * neighbours + _TILE * (2 * (lanes % 4) + rows) + lanes // 4 + across
    places = places[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten().to(codes.device)
    words = tiles.reshape(-1, len(places))[:, places].view(-1, _PACKED).int()
    shifts = 4 * torch.arange(_PACKED, device=codes.device, dtype=torch.int32)
    return (words << shifts).sum(-1, dtype=torch.int32).view(inner // _TILE, 2 * columns)


def ordered(exponents: torch.Tensor) -> torch.Tensor:
    """[inner / 32, columns] e8m0 scales in the order in which threads read them, from ``[columns, inner / 32]``."""
    rows = exponents.T.contiguous()
    within = torch.arange(_COLUMNS).view(8, 8).T.flatten().to(rows.device)
    rows = rows.view(-1, _COLUMNS)[:, within]
    rows = rows.view(-1, _HALF)[:, [0, 2, 1, 3]]
    return rows.view(exponents.shape[1], exponents.shape[0]).contiguous().view(torch.float8_e8m0fnu)
