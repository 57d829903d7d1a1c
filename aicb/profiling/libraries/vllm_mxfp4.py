"""Products of mxfp4 experts as vLLM runs them on Hopper: OpenAI's Triton kernels, which vLLM brings along.

``matmul_ogs`` multiplies bf16 rows by e2m1 weights with one e8m0 scale per 32. The first product gathers the rows of
its experts and applies the gated activation on the way out; the second scatters its rows back, times the router's
weights, and adds up those of a token in a kernel of its own, which is part of the time here. Weights are arranged for
the tensor cores as vLLM arranges them when it loads them, columns of a sliced expert padded to a multiple of 64.

Signatures of vLLM 0.24 (``oracle/mxfp4.py``, ``experts/gpt_oss_triton_kernels_moe.py``) and of the Triton kernels in it
are used. Routing, which sorts the rows, is not in these times.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from aicb.kernels.point import Point
from aicb.profiling.kernel_library import BF16_TOLERANCE, Kernel, normal, relative_error, some_rows
from aicb.profiling.libraries.gathered_experts import assign
from aicb.profiling.libraries.mxfp4 import BLOCK, dequantise, quantise

ALPHA, LIMIT = 1.702, 7.0
"""Of gpt-oss's activation: x·σ(α·x)·(y + 1), x cut at the limit and y at both ends of it."""
PADDED_COLUMNS = 64
"""vLLM pads the intermediate columns of a rank to a multiple of these (``mxfp4_round_up_…``)."""
SUM_TOLERANCE = 2 * BF16_TOLERANCE
"""Rows of a token are added up after each was rounded to bf16."""
_OPERATIONS = ("grouped_gemm_swiglu", "grouped_gemm_gathered")


class VllmMxfp4Experts:
    """``matmul_ogs`` of an installed vLLM.

    Weights of a shape are kept, as arranging them takes seconds. Kernels of one shape draw other experts each time, so
    that operand sets in turns read other weights.
    """

    def __init__(self) -> None:
        self._missing: str | None = None
        self._weights: dict[tuple[str, int, int, int], _Weights] = {}
        self._made = 0
        if importlib.util.find_spec("vllm") is None:
            self._missing = "vllm: not installed"
            return
        try:
            if not importlib.import_module("vllm.utils.import_utils").has_triton_kernels():
                self._missing = "vllm: brings no triton_kernels"
                return
            layers = "vllm.model_executor.layers.quantization.utils.mxfp4_utils"
            self._arrange = importlib.import_module(layers)._swizzle_mxfp4
            self._kernels = importlib.import_module("triton_kernels.matmul_ogs")
            self._swiglu = importlib.import_module("triton_kernels.swiglu").swiglu_fn
            self._route = importlib.import_module("triton_kernels.routing").routing
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            self._missing = f"vllm: {type(error).__name__}: {error}".splitlines()[0]

    def missing(self) -> str | None:
        return self._missing

    def version(self) -> str:
        from importlib.metadata import version

        return f"vllm {version('vllm')}, triton_kernels in it"

    def refusal(self, point: Point) -> str | None:
        if point.op not in _OPERATIONS or point.dtype != "mxfp4":
            return "grouped products of mxfp4 weights only"
        if point["rows"] % point["batch"]:
            return "all experts of a layer only"
        return None

    def kernel(self, point: Point) -> Kernel:
        self._made += 1
        site = point.op, point["groups"], point["n"], point["k"]
        if site not in self._weights:
            self._weights[site] = _Weights.made_for(
                point, is_up=point.op == "grouped_gemm_swiglu", arrange=self._arrange
            )
        weights, routing = self._weights[site], _Routing.of(point, self._route, self._made)
        flexible = self._kernels.FlexCtx(rhs_data=weights.flexible)
        precision = self._kernels.PrecisionConfig(weight_scale=weights.scales, flex_ctx=flexible)
        bias = torch.zeros(point["groups"], weights.columns, device="cuda")
        make = self._up if point.op == "grouped_gemm_swiglu" else self._down
        return make(point, routing, weights, bias, precision)

    def _up(self, point: Point, routing: _Routing, weights: _Weights, bias: torch.Tensor, precision: Any) -> Kernel:
        x = normal(point["batch"], point["k"], device="cuda")
        out = torch.empty(1, point["rows"], weights.columns // 2, device="cuda", dtype=torch.bfloat16)
        kernels = self._kernels
        functions = kernels.FnSpecs("swiglu", self._swiglu, ("alpha", "limit"))
        activation = kernels.FusedActivation(functions, (ALPHA, LIMIT), 2)

        def run() -> None:
            kernels.matmul_ogs(
                x,
                weights.values,
                bias,
                routing.data,
                gather_indx=routing.gather,
                precision_config=precision,
                fused_activation=activation,
                y=out,
            )

        def error() -> float:
            rows = routing.rows_of(routing.busiest)
            tokens = routing.gather.src_indx[rows].long() // routing.top_k
            product = x[tokens].float() @ weights.of(routing.busiest)
            gate, linear = product[:, ::2].clamp(max=LIMIT), product[:, 1::2].clamp(-LIMIT, LIMIT)
            return relative_error(out[0, rows], gate * torch.sigmoid(ALPHA * gate) * (linear + 1.0))

        return Kernel("vllm/mxfp4_up", run, [out], error, BF16_TOLERANCE)

    def _down(self, point: Point, routing: _Routing, weights: _Weights, bias: torch.Tensor, precision: Any) -> Kernel:
        x = normal(point["rows"], weights.inner, device="cuda")
        out = torch.empty(1, point["batch"], point["n"], device="cuda", dtype=torch.bfloat16)

        def run() -> None:
            self._kernels.matmul_ogs(
                x,
                weights.values,
                bias,
                routing.data,
                scatter_indx=routing.scatter,
                precision_config=precision,
                gammas=routing.data.gate_scal,
                y=out,
            )

        def error() -> float:
            tokens = torch.tensor(some_rows(point["batch"], 4), device="cuda")
            token_of = routing.gather.src_indx.long() // routing.top_k
            expected = torch.zeros(len(tokens), point["n"], device="cuda")
            for place, token in enumerate(tokens.tolist()):
                for row in (token_of == token).nonzero()[:, 0].tolist():
                    product = x[row].float() @ weights.of(routing.expert_of(row))
                    expected[place] += product * routing.data.gate_scal[row].float()
            return relative_error(out[0, tokens], expected)

        return Kernel("vllm/mxfp4_down", run, [out], error, SUM_TOLERANCE)


@dataclass(frozen=True, slots=True)
class _Routing:
    """How rows are sorted by expert."""

    data: Any
    gather: Any
    scatter: Any
    top_k: int
    first: tuple[int, ...]
    """[experts + 1] first row of each expert."""

    @classmethod
    def of(cls, point: Point, route: Any, made: int) -> _Routing:
        """The point's rows per expert, of other experts for every kernel that is made."""
        top_k = point["rows"] // point["batch"]
        chosen = assign(np.roll(point.lengths, made * point["active_groups"]), point["batch"], top_k)
        logits = torch.rand(point["batch"], point["groups"])
        logits.scatter_(1, torch.from_numpy(chosen), torch.rand(point["batch"], top_k) + 4.0)
        data, gather, scatter = route(logits.to("cuda"), top_k, sm_first=False)
        ends = torch.cumsum(data.expt_hist.cpu(), 0).tolist()
        return cls(data, gather, scatter, top_k, (0, *(int(end) for end in ends)))

    @property
    def busiest(self) -> int:
        return max(range(len(self.first) - 1), key=lambda expert: self.first[expert + 1] - self.first[expert])

    def rows_of(self, expert: int) -> torch.Tensor:
        """Some rows of an expert."""
        begin, end = self.first[expert], self.first[expert + 1]
        return begin + torch.tensor(some_rows(end - begin), device="cuda")

    def expert_of(self, row: int) -> int:
        return next(expert for expert, end in enumerate(self.first[1:]) if row < end)


class _Weights:
    """``[experts, columns, inner]`` normal weights in e2m1 with scales, as the kernel takes them."""

    def __init__(self, arranged: tuple[Any, Any, Any], packed: torch.Tensor, exponents: torch.Tensor):
        self.values, self.flexible, self.scales = arranged
        self._packed, self._exponents = packed, exponents
        self.columns, self.inner = packed.shape[1], 2 * packed.shape[2]

    @classmethod
    def made_for(cls, point: Point, *, is_up: bool, arrange: Any) -> _Weights:
        columns, inner = point["n"], point["k"]
        if is_up:
            columns = 2 * _padded(columns // 2)
        else:
            inner = _padded(inner)
        packed = torch.empty(point["groups"], columns, inner // 2, device="cuda", dtype=torch.uint8)
        exponents = torch.empty(point["groups"], columns, inner // BLOCK, device="cuda", dtype=torch.uint8)
        for expert in range(point["groups"]):
            packed[expert], exponents[expert] = quantise(normal(columns, inner, device="cuda", scale=inner**-0.5))
        return cls(arrange(packed, exponents), packed, exponents)

    def of(self, expert: int) -> torch.Tensor:
        """[inner, columns] of an expert in float32."""
        return dequantise(self._packed[expert], self._exponents[expert]).T


def _padded(columns: int) -> int:
    return -(-columns // PADDED_COLUMNS) * PADDED_COLUMNS
