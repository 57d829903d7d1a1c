"""Decode attention of grouped queries: whole blocks of keys, and what unequal lengths cost."""

from __future__ import annotations

import numpy as np
import pytest

from aicb import get_gpu
from aicb.estimators.interpolation import InterpolationEstimator
from aicb.kernels.decode_attention import (
    SGLANG_UNEQUAL_SHARES,
    UNEQUAL_SHARES,
    CapturedDecodeAttention,
    DecodeAttention,
    SglangDecodeAttention,
)
from scripts.fit_unequal_decodes import ALONE, CAPTURED, OF_SGLANG, errors, fitted, unequal_rows

H200 = InterpolationEstimator(get_gpu("h200"))
KERNELS = (DecodeAttention, CapturedDecodeAttention)
ALL_KERNELS = (*KERNELS, SglangDecodeAttention)


def time_us(kind: type[DecodeAttention], lengths: list[int]) -> float:
    """Of 32 query heads that share 8 KV heads of 128, as Qwen3-8B's."""
    return H200.price(kind(np.array(lengths), 32, 8, 128)).time_us


def test_the_shares_are_those_that_the_measurements_give() -> None:
    assert np.round(fitted(unequal_rows(*CAPTURED)), 3).tolist() == list(UNEQUAL_SHARES)


def test_those_of_sglang_lose_less_where_there_are_many_units() -> None:
    """At the most units nothing that could be told from none: -0.013 by least squares."""
    rows = unequal_rows(*OF_SGLANG)
    assert len(rows) == 675
    assert np.round(fitted(rows).clip(0.0), 3).tolist() == list(SGLANG_UNEQUAL_SHARES)
    own, theirs = (np.percentile(np.abs(errors(rows, each)), 90) for each in (SGLANG_UNEQUAL_SHARES, UNEQUAL_SHARES))
    assert own < 0.14 < 0.17 < theirs


def test_rows_that_were_not_fitted_are_met() -> None:
    """The same kernel called alone, with its own choice of splits: 12 and 22 % without the penalty."""
    rows = unequal_rows(*ALONE)
    assert len(rows) == 604
    median, p90 = np.percentile(np.abs(errors(rows, UNEQUAL_SHARES)), [50, 90])
    assert median <= 0.05
    assert p90 <= 0.13


@pytest.mark.parametrize("kind", ALL_KERNELS)
def test_a_block_that_is_begun_is_paid_whole(kind: type[DecodeAttention]) -> None:
    """Blocks of 128 keys: 1,025 to 1,152 tokens take nine, 1,024 take eight."""
    times_us = [time_us(kind, [tokens] * 64) for tokens in (1024, 1025, 1090, 1152)]
    assert times_us[0] < times_us[1]
    assert times_us[1:] == pytest.approx([times_us[3]] * 3, rel=1e-9)


@pytest.mark.parametrize("kind", KERNELS)
def test_unequal_lengths_cost_more_than_equal_ones_of_as_many_blocks(kind: type[DecodeAttention]) -> None:
    """32 requests are 1.9 KV heads per SM, whose share is 0.186: of the time beyond 8 µs, in full from a spread of
    0.1 on; half of it at half that spread."""
    equal_us = time_us(kind, [4096] * 32)
    far, near = ([4096 + shift, 4096 - shift] * 16 for shift in (2048, 128))
    full_us = (0.181 + (0.291 - 0.181) * np.log2(2.0 / (32 * 8 / 132))) * (equal_us - 8.0)
    assert time_us(kind, far) == pytest.approx(equal_us + full_us, rel=1e-6)
    assert time_us(kind, near) == pytest.approx(equal_us + full_us * (128 / 4096) / 0.1, rel=1e-6)
