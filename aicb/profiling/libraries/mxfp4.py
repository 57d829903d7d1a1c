"""The format mxfp4: e2m1 codes, two a byte, with one e8m0 scale per 32 elements."""

from __future__ import annotations

from itertools import pairwise

import torch

BLOCK = 32
"""Elements of a scale."""
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of e2m1 by their code; the fourth bit is the sign."""
_MIDDLES = [(low + high) / 2 for low, high in pairwise(LEVELS)]
_EXPONENT_BIAS = 127


def quantise(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """([n, k / 2] two codes a byte, low one first; [n, k / 32] biased exponents) of ``[n, k]`` weights.

    The scale of a block is the power of two that brings its largest element below 8, the binade of the largest level.
    """
    blocks = weights.float().unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(-1).clamp_min(2.0**-100)
    exponent = torch.floor(torch.log2(largest)) - 2.0
    scaled = blocks / torch.exp2(exponent)[..., None]
    middles = torch.tensor(_MIDDLES, device=weights.device)
    codes = torch.bucketize(scaled.abs(), middles) + 8 * (scaled < 0)
    pairs = codes.flatten(1).to(torch.uint8).unflatten(1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4), (exponent + _EXPONENT_BIAS).to(torch.uint8)


def dequantise(packed: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """[n, k] in float32."""
    levels = torch.tensor([*LEVELS, *(-level for level in LEVELS)], device=packed.device)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()
    scales = torch.exp2(exponents.float() - _EXPONENT_BIAS)
    return (levels[codes].unflatten(1, (-1, BLOCK)) * scales[..., None]).flatten(1)
