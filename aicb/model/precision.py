"""Number formats of weights, KV cache and recurrent state, and the bytes they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

WeightDtype = Literal["bf16", "fp8", "mxfp4"]
"""Of weights in memory. ``mxfp4``: routed experts of e2m1 elements with an e8m0 scale per 32, all else bf16."""
KvDtype = Literal["bf16", "fp8"]
StateDtype = Literal["bf16", "fp32"]
GemmDtype = Literal["bf16", "fp8"]
"""What tensor cores multiply. ``fp8`` is e4m3 with 1x128 activation and 128x128 weight scales (DeepGEMM)."""

ELEMENT_BYTES = {"fp8": 1, "bf16": 2, "fp32": 4}

SCALE_BLOCK = 128
"""Columns per fp8 activation scale; rows and columns per fp8 weight scale (DeepSeek-V3 report, section 3.3.2)."""
SCALE_BYTES = 4
"""One fp32 per scale block on SM90 (DeepGEMM)."""
MX_BLOCK = 32
"""Elements of a row that share a scale byte (OCP Microscaling Formats v1.0, section 5.2): 4.25 bit per weight."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Formats of one instance. Activations follow the weights: fp8 GEMMs take activations quantised on the fly.

    Embedding, LM head, router, norms, convolutions and MLA absorb products stay bf16 with fp8 weights, as in the
    published fp8 checkpoints; so do biases, and with mxfp4 experts all that is no expert, activations included (as
    gpt-oss is published). The format on the wire of a KV transfer is not decided here.

    Raises:
        InputError: a format is unknown.
    """

    weights: WeightDtype = "bf16"
    kv: KvDtype = "bf16"
    state: StateDtype = "bf16"
    """Recurrent state of gated-delta-rule layers (vLLM: the model's type; SGLang: fp32)."""

    def __post_init__(self) -> None:
        for name, allowed in (("weights", WeightDtype), ("kv", KvDtype), ("state", StateDtype)):
            found = getattr(self, name)
            if found not in get_args(allowed):
                raise InputError(f"Precision.{name}: found {found!r}, expected one of {', '.join(get_args(allowed))}")

    @property
    def dense(self) -> GemmDtype:
        """Format of projections, dense and shared networks, and of the activations of all matrix products."""
        return "fp8" if self.weights == "fp8" else "bf16"


AnyNumber = TypeVar("AnyNumber", int, NDArray[np.float64])


def weight_matrix_bytes(n: AnyNumber, k: AnyNumber, dtype: WeightDtype) -> AnyNumber:
    """Bytes of an ``[n, k]`` weight with its block scales."""
    if dtype == "bf16":
        return 2 * n * k
    if dtype == "mxfp4":
        return n * (ceil_div(k, 2) + ceil_div(k, MX_BLOCK))
    return n * k + SCALE_BYTES * ceil_div(n, SCALE_BLOCK) * ceil_div(k, SCALE_BLOCK)


def activation_bytes_per_row(k: AnyNumber, dtype: GemmDtype) -> AnyNumber:
    """Bytes of one row of ``k`` activations as a GEMM of this type reads it, scales included."""
    return 2 * k if dtype == "bf16" else k + SCALE_BYTES * ceil_div(k, SCALE_BLOCK)


def ceil_div(numerator: AnyNumber, denominator: int) -> AnyNumber:
    """⌈numerator / denominator⌉ of whole numbers."""
    return -(-numerator // denominator)
