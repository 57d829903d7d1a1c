"""Memory-bound Triton kernels: norms, activation, quantisation, RoPE. One program per row or per group of rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FP8_LARGEST = tl.constexpr(448.0)


@triton.jit  # type: ignore[untyped-decorator]
def _norm(x, residual, weight, out, columns, epsilon, HAS_RESIDUAL: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < columns
    at = row * columns + column
    value = tl.load(x + at, inside, 0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + at, inside, 0.0).to(tl.float32)
        tl.store(residual + at, value.to(tl.bfloat16), inside)
    scale = tl.rsqrt(tl.sum(value * value) / columns + epsilon)
    tl.store(out + at, (value * scale * tl.load(weight + column, inside, 0.0)).to(tl.bfloat16), inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    """RMSNorm of the rows of x (plus ``residual``, which becomes the sum)."""
    rows, columns = x.shape
    width = triton.next_power_of_2(columns)
    warps = min(max(width // 512, 1), 16)
    _norm[(rows,)](x, residual, weight, out, columns, 1e-6, residual is not None, width, num_warps=warps)


@triton.jit  # type: ignore[untyped-decorator]
def _head_norm(x, weight, out, rows, epsilon, WIDTH: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    at = row[:, None] * WIDTH + column[None, :]
    inside = row[:, None] < rows
    value = tl.load(x + at, inside, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + epsilon)
    tl.store(out + at, (value * scale[:, None] * tl.load(weight + column)[None, :]).to(tl.bfloat16), inside)


def head_norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """RMSNorm of many short rows (heads), eight per program; the width is a power of two."""
    rows, columns = x.shape
    _head_norm[(triton.cdiv(rows, 8),)](x, weight, out, rows, 1e-6, columns, 8, num_warps=4)


@triton.jit  # type: ignore[untyped-decorator]
def _silu_mul(x, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    gate = tl.load(x + row * 2 * columns + column, inside, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * columns + columns + column, inside, 0.0).to(tl.float32)
    tl.store(out + row * columns + column, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), inside)


def silu_mul(x: torch.Tensor, out: torch.Tensor) -> None:
    """[rows, 2n] → silu(first half) · second half, [rows, n]."""
    rows, columns = out.shape
    block = min(triton.next_power_of_2(columns), 2048)
    _silu_mul[(rows, triton.cdiv(columns, block))](x, out, columns, block, num_warps=max(block // 512, 1))


@triton.jit  # type: ignore[untyped-decorator]
def _quant(x, out, scales, columns, scale_stride, IS_GATED: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = column < columns
    if IS_GATED:
        gate = tl.load(x + row * 2 * columns + column, inside, 0.0).to(tl.float32)
        up = tl.load(x + row * 2 * columns + columns + column, inside, 0.0).to(tl.float32)
        value = gate * tl.sigmoid(gate) * up
    else:
        value = tl.load(x + row * columns + column, inside, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), axis=1), 1e-10) / FP8_LARGEST
    tl.store(out + row * columns + column, (value / scale[:, None]).to(tl.float8e4nv), inside)
    tl.store(scales + group * scale_stride + row, scale, group * 128 < columns)


def quant(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, *, is_gated: bool) -> None:
    """1x128 quantisation to e4m3, of silu(gate)·up if ``is_gated``; ``scales`` is [columns/128, rows] in memory."""
    rows, columns = out.shape
    groups = min(triton.next_power_of_2(triton.cdiv(columns, 128)), 16)
    grid = (rows, triton.cdiv(columns, 128 * groups))
    _quant[grid](x, out, scales, columns, scales.shape[1], is_gated, groups, num_warps=max(groups // 4, 1))


@triton.jit  # type: ignore[untyped-decorator]
def _rope(x, table, positions, heads, HALF: tl.constexpr, HEADS: tl.constexpr):  # type: ignore[no-untyped-def]
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    lane = tl.arange(0, HALF)
    position = tl.load(positions + token)
    cos = tl.load(table + position * 2 * HALF + lane).to(tl.float32)[None, :]
    sin = tl.load(table + position * 2 * HALF + HALF + lane).to(tl.float32)[None, :]
    at = (token * heads + head[:, None]) * 2 * HALF + lane[None, :]
    inside = head[:, None] < heads
    first = tl.load(x + at, inside, 0.0).to(tl.float32)
    second = tl.load(x + at + HALF, inside, 0.0).to(tl.float32)
    tl.store(x + at, (first * cos - second * sin).to(tl.bfloat16), inside)
    tl.store(x + at + HALF, (second * cos + first * sin).to(tl.bfloat16), inside)


def rope(x: torch.Tensor, table: torch.Tensor, positions: torch.Tensor, d: int) -> None:
    """Rotates [tokens, heads·d] in place by halves; ``table`` is [positions, d] of cosines then sines."""
    tokens, heads = x.shape[0], x.shape[1] // d
    per_program = min(triton.next_power_of_2(heads), 16)
    _rope[(tokens, triton.cdiv(heads, per_program))](x, table, positions, heads, d // 2, per_program, num_warps=4)


@triton.jit  # type: ignore[untyped-decorator]
def _conv(x, weight, out, starts, channels, WIDTH: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    sequence = tl.program_id(2)
    start, stop = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    token = start + tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (token < stop)[:, None] & (channel < channels)[None, :]
    total = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for tap in tl.static_range(WIDTH):
        source = token - (WIDTH - 1) + tap
        seen = inside & (source >= start)[:, None]
        value = tl.load(x + source.to(tl.int64)[:, None] * channels + channel[None, :], seen, 0.0).to(tl.float32)
        tap_weight = tl.load(weight + channel * WIDTH + tap, channel < channels, 0.0).to(tl.float32)
        total += value * tap_weight[None, :]
    at = token.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out + at, (total * tl.sigmoid(total)).to(tl.bfloat16), inside)


def causal_conv(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, starts: torch.Tensor, longest: int) -> None:
    """Depthwise causal convolution and SiLU of packed sequences [tokens, channels], zero history."""
    channels = x.shape[1]
    block = 16 if longest > 1 else 1
    grid = (triton.cdiv(longest, block), triton.cdiv(channels, 128), len(starts) - 1)
    _conv[grid](x, weight, out, starts, channels, weight.shape[1], block, 128, num_warps=4)
