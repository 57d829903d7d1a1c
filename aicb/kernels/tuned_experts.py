"""Sites of bf16 experts for which vLLM ships tuned tiles; at others its kernel takes a rule of thumb.

vLLM 0.24.0, the names of the files in ``model_executor/layers/fused_moe/configs`` that are for the device and for no
other format than the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping

TUNED: Mapping[str, frozenset[tuple[int, int]]] = {
    "h200": frozenset(
        {(8, width) for width in (1792, 2048, 3584, 4096, 7168, 14336)}
        | {(16, width) for width in (1024, 2048)}
        | {(64, width) for width in (320, 640, 1280, 2560)}
        | {(128, width) for width in (96, 192, 384, 512, 768, 1024)}
        | {(512, width) for width in (64, 128, 256, 512)}
    ),
    "h100": frozenset(
        {(1, 3072), (32, 1792), (256, 512)}
        | {(8, width) for width in (1792, 2048, 3584, 4096, 7168)}
        | {(16, width) for width in (1344, 1792, 2688)}
        | {(62, width) for width in (256, 512)}
        | {(64, width) for width in (320, 640, 1280, 1536)}
        | {(72, width) for width in (384, 768)}
        | {(128, width) for width in (192, 384, 512, 928, 1856, 2880)}
        | {(512, width) for width in (128, 256, 512)}
    ),
}
"""By GPU: (experts of a rank, columns of each between its products). Of the H100 the SXM device with 80 GB."""

SGLANG_FP8: Mapping[str, frozenset[tuple[int, int]]] = {
    "h200": frozenset(
        {(64, 512), (72, 2048), (80, 640), (160, 640), (264, 256), (384, 128), (385, 128), (512, 128), (513, 512)}
        | {(128, width) for width in (384, 768)}
        | {(256, width) for width in (256, 512)}
        | {(257, width) for width in (128, 256, 512)}
    ),
}
"""The same of SGLang 0.5.23, of fp8 in blocks of 128 x 128 (``srt/layers/moe/moe_runner/triton_utils/configs``, all
versions of Triton, to the next of which it falls back)."""


def has_tuned_tiles(gpu: str, groups: int, n: int, k: int) -> bool:
    """Whether vLLM ships tiles for a product of ``groups`` experts with ``n`` columns and inner size ``k``.

    The width is half of ``n`` of the first product and ``k`` of the second, and a shape does not say which of both it
    is: where the hidden size is a width of the list for as many experts, a site counts as tuned that is not. GPUs
    without a list count as tuned everywhere.
    """
    known = TUNED.get(gpu)
    return known is None or (groups, k) in known or (n % 2 == 0 and (groups, n // 2) in known)


def has_sglang_tiles(gpu: str, groups: int, n: int, k: int) -> bool:
    """Whether SGLang ships tiles of fp8 in blocks for such a product (`has_tuned_tiles`); without a list: no."""
    known = SGLANG_FP8.get(gpu, frozenset())
    return (groups, n // 2) in known or (groups, k) in known
