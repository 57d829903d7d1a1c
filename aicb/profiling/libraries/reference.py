"""References in higher precision, on parts of the output small enough to be cheap."""

from __future__ import annotations

import torch

FP8_LARGEST = 448.0
"""Largest finite e4m3 value."""
SCALE_COLUMNS = 128


def matmul_rows(a: torch.Tensor, b: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """[rows, n] of a·bᵀ in float32 products of float32 operands (TF32 must be off, which is torch's default)."""
    return a[rows].float() @ b.float().T


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[m, k] to e4m3 with one fp32 scale per row and 128 columns: (values, scales [m, ⌈k/128⌉])."""
    m, k = x.shape
    padded = torch.nn.functional.pad(x.float(), (0, -k % SCALE_COLUMNS)).view(m, -1, SCALE_COLUMNS)
    scales = padded.abs().amax(dim=2).clamp_min(1e-10) / FP8_LARGEST
    values = (padded / scales[:, :, None]).to(torch.float8_e4m3fn).view(m, -1)[:, :k].contiguous()
    return values, scales


def dequantise_rows(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Inverse of `quantise_rows`, in float32."""
    wide = scales.float().repeat_interleave(SCALE_COLUMNS, dim=-1)[..., : values.shape[-1]]
    return values.float() * wide


def quantise_blocks(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, k] of whole 128x128 blocks to e4m3 with one fp32 scale per block: (values, scales [n/128, k/128])."""
    n, k = w.shape
    blocks = w.view(n // SCALE_COLUMNS, SCALE_COLUMNS, k // SCALE_COLUMNS, SCALE_COLUMNS)
    scales = blocks.abs().amax(dim=(1, 3)).float().clamp_min(1e-10) / FP8_LARGEST
    values = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).view(n, k)
    return values, scales


def dequantise_blocks(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[n, k] e4m3 with fp32 scales per 128x128 block, in float32."""
    n, k = values.shape
    wide = scales.repeat_interleave(SCALE_COLUMNS, 0)[:n].repeat_interleave(SCALE_COLUMNS, 1)[:, :k]
    return values.float() * wide


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Causal attention of some queries of one sequence, in float32.

    Args:
        q: [queries, heads, d_qk]; k: [keys, kv_heads, d_qk]; v: [keys, kv_heads, d_v].
        positions: [queries] index of the last key each query sees.

    Returns:
        [queries, heads, d_v]
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.float(), keys) * q.shape[2] ** -0.5
    hidden = torch.arange(k.shape[0], device=q.device)[None, :] > positions[:, None]
    weights = scores.masked_fill(hidden[None], float("-inf")).softmax(dim=2)
    return torch.einsum("hqk,khd->qhd", weights, values)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """Over the last dimension, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + epsilon) * weight.float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, d] by halves (NeoX order); cos, sin: [tokens, d/2]."""
    first, second = x.float().chunk(2, dim=-1)
    c, s = cos.float()[:, None], sin.float()[:, None]
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)
