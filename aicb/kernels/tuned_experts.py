"""Sites of experts for which vLLM and SGLang ship tuned tiles; at others their kernels take rules of thumb.

vLLM 0.24.0, the names of the files in ``model_executor/layers/fused_moe/configs`` that are for the device and for the
model's own format: bf16, or fp8 in blocks of 128 x 128.
"""

from __future__ import annotations

from collections.abc import Mapping

from aicb.model.precision import GemmDtype

TUNED: Mapping[str, Mapping[GemmDtype, frozenset[tuple[int, int]]]] = {
    "h200": {
        "bf16": frozenset(
            {(8, width) for width in (1792, 2048, 3584, 4096, 7168, 14336)}
            | {(16, width) for width in (1024, 2048)}
            | {(64, width) for width in (320, 640, 1280, 2560)}
            | {(128, width) for width in (96, 192, 384, 512, 768, 1024)}
            | {(512, width) for width in (64, 128, 256, 512)}
        ),
        "fp8": frozenset(
            {(8, 2048), (16, 4096), (32, 2048), (384, 128)}
            | {(128, width) for width in (384, 512, 768)}
            | {(256, width) for width in (256, 512)}
        ),
    },
    "h100": {
        "bf16": frozenset(
            {(1, 3072), (32, 1792), (256, 512)}
            | {(8, width) for width in (1792, 2048, 3584, 4096, 7168)}
            | {(16, width) for width in (1344, 1792, 2688)}
            | {(62, width) for width in (256, 512)}
            | {(64, width) for width in (320, 640, 1280, 1536)}
            | {(72, width) for width in (384, 768)}
            | {(128, width) for width in (192, 384, 512, 928, 1856, 2880)}
            | {(512, width) for width in (128, 256, 512)}
        ),
        "fp8": frozenset({(256, width) for width in (128, 384)} | {(512, width) for width in (128, 256)}),
    },
}
"""By GPU: (experts of a rank, columns of each between its products). Of the H100 the SXM device with 80 GB."""

SGLANG: Mapping[str, Mapping[GemmDtype, frozenset[tuple[int, int]]]] = {
    "h200": {
        "bf16": frozenset(
            {(16, 1024), (20, 1536), (40, 1536), (129, 384), (161, 192)}
            | {(8, width) for width in (1792, 2048, 3584, 4096, 7168, 14336)}
            | {(64, width) for width in (320, 640, 1280, 2560)}
            | {(128, width) for width in (192, 384, 704, 768)}
            | {(512, width) for width in (64, 128, 256)}
        ),
        "fp8": frozenset(
            {(64, 512), (80, 640), (160, 640), (256, 256), (264, 256), (384, 128), (385, 128)}
            | {(128, width) for width in (384, 768)}
            | {(257, width) for width in (128, 256, 512)}
        ),
    },
}
"""Likewise of SGLang 0.5.17, whatever the version of Triton (``moe_runner/triton_utils/configs``); with DeepSeek-V3's
shared expert among the routed ones there are 257."""


def has_tuned_tiles(gpu: str, dtype: GemmDtype, groups: int, n: int, k: int) -> bool:
    """Whether vLLM ships tiles for a product of ``groups`` experts with ``n`` columns and inner size ``k``.

    The width is half of ``n`` of the first product and ``k`` of the second, and a shape does not say which of both it
    is: where the hidden size is a width of the list for as many experts, a site counts as tuned that is not. GPUs
    without a list count as tuned everywhere.
    """
    return _is_listed(TUNED, gpu, dtype, groups, n, k)


def has_sglang_tiles(gpu: str, dtype: GemmDtype, groups: int, n: int, k: int) -> bool:
    """Likewise of SGLang, whose kernel was measured on the H200."""
    return _is_listed(SGLANG, gpu, dtype, groups, n, k)


def _is_listed(
    lists: Mapping[str, Mapping[GemmDtype, frozenset[tuple[int, int]]]],
    gpu: str,
    dtype: GemmDtype,
    groups: int,
    n: int,
    k: int,
) -> bool:
    if gpu not in lists:
        return True
    known = lists[gpu][dtype]
    return (groups, k) in known or (n % 2 == 0 and (groups, n // 2) in known)
