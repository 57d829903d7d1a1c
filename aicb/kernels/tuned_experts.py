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

SGLANG_FP8: Mapping[str, frozenset[tuple[int, int]]] = {"h200": frozenset({(128, 768)})}
"""Likewise, sites of fp8 experts in blocks where SGLang's kernel was seen in its own tiles (Qwen3-30B-A3B). SGLang
0.5.23 ships tiles for 15 more on an H200."""


def has_tuned_tiles(gpu: str, groups: int, n: int, k: int) -> bool:
    """Whether vLLM ships tiles for a product of ``groups`` experts with ``n`` columns and inner size ``k``.

    The width is half of ``n`` of the first product and ``k`` of the second, and a shape does not say which of both it
    is: where the hidden size is a width of the list for as many experts, a site counts as tuned that is not. GPUs
    without a list count as tuned everywhere.
    """
    known = TUNED.get(gpu)
    return known is None or (groups, k) in known or (n % 2 == 0 and (groups, n // 2) in known)


def was_seen_in_sglang(gpu: str, groups: int, n: int, k: int) -> bool:
    """Whether SGLang's kernel was seen in its tiles for such a product (`has_tuned_tiles`)."""
    known = SGLANG_FP8.get(gpu, frozenset())
    return (groups, n // 2) in known or (groups, k) in known
