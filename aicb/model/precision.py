"""Number formats of weights, KV cache and recurrent state, and the bytes they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError

WeightDtype = Literal["bf16", "fp8"]
KvDtype = Literal["bf16", "fp8"]
StateDtype = Literal["bf16", "fp32"]
GemmDtype = WeightDtype
"""``fp8`` is e4m3 with 1x128 activation and 128x128 weight scales (DeepGEMM)."""

ELEMENT_BYTES = {"fp8": 1, "bf16": 2, "fp32": 4}

SCALE_BLOCK = 128
"""Columns per fp8 activation scale; rows and columns per fp8 weight scale (DeepSeek-V3 report, section 3.3.2)."""
SCALE_BYTES = 4
"""One fp32 per scale block on SM90 (DeepGEMM)."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Formats of one instance. Activations follow the weights: fp8 GEMMs take activations quantised on the fly.

    Embedding, LM head, router, norms, convolutions and MLA absorb products stay bf16 with fp8 weights, as in the
    published fp8 checkpoints. The format on the wire of a KV transfer is not decided here.

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


AnyNumber = TypeVar("AnyNumber", int, NDArray[np.float64])


def weight_matrix_bytes(n: AnyNumber, k: AnyNumber, dtype: WeightDtype) -> AnyNumber:
    """Bytes of an ``[n, k]`` weight with its block scales."""
    if dtype == "bf16":
        return 2 * n * k
    return n * k + SCALE_BYTES * ceil_div(n, SCALE_BLOCK) * ceil_div(k, SCALE_BLOCK)


def activation_bytes_per_row(k: AnyNumber, dtype: WeightDtype) -> AnyNumber:
    """Bytes of one row of ``k`` activations as a GEMM of this type reads it, scales included."""
    return 2 * k if dtype == "bf16" else k + SCALE_BYTES * ceil_div(k, SCALE_BLOCK)


def ceil_div(numerator: AnyNumber, denominator: int) -> AnyNumber:
    """⌈numerator / denominator⌉ of whole numbers."""
    return -(-numerator // denominator)
