"""Loads on the power budget, against the clocks that kernels settled at on an H200."""

from __future__ import annotations

import numpy as np
import pytest

from aicb.estimators.estimator import CostTable
from aicb.kernels.decode_attention import DecodeAttention
from aicb.kernels.mla_decode import MlaDecode
from aicb.kernels.prefill_attention import PrefillAttention
from aicb.measurements.clock import DECODE_ATTENTION, DENSE_PRODUCTS, LATENT_DECODES, PROMPT_ATTENTION, PowerLoad
from aicb.measurements.gpu import get_gpu
from aicb.model.precision import Precision
from scripts.fit_power_loads import KINDS, errors_mhz, fitted, rows_of

H200 = get_gpu("h200")


@pytest.mark.parametrize("name", ["attention over prompts", "decodes", "decodes of latents"])
def test_loads_are_those_that_settled_clocks_give(name: str) -> None:
    kind = KINDS[name]
    found = fitted(kind)
    assert [round(getattr(found, part), 2) for part in kind.fitted] == [
        getattr(kind.load, part) for part in kind.fitted
    ]


@pytest.mark.parametrize(
    ("name", "rows", "mhz", "as_products"),
    [("attention over prompts", 20, 40.0, 85.0), ("decodes", 20, 105.0, 320.0), ("decodes of latents", 6, 50.0, 295.0)],
)
def test_they_meet_clocks_that_those_of_products_do_not(name: str, rows: int, mhz: float, as_products: float) -> None:
    kind = KINDS[name]
    assert len(rows_of(kind).mhz) == rows
    own, dense = (np.sqrt((errors_mhz(kind, load) ** 2).mean()) for load in (kind.load, DENSE_PRODUCTS))
    assert own < mhz < as_products < dense


def test_kernels_of_attention_have_them() -> None:
    one = np.array([4096])
    prompt, latents = (PrefillAttention(one, one, 32, 32, width, 128) for width in (128, 192))
    loads = [
        each.power_load for each in (prompt, latents, DecodeAttention(one, 32, 8, 128), MlaDecode(one, 128, 576, 512))
    ]
    assert loads == [PROMPT_ATTENTION, DENSE_PRODUCTS, DECODE_ATTENTION, LATENT_DECODES]


def test_a_decode_that_streams_its_cache_counts_by_its_bytes() -> None:
    """64 requests of 8,192 tokens, 2.15 GB: 539 us at 83 % of 4.8 TB/s, of which 0.45 load the budget."""
    kernel = DecodeAttention(np.full(64, 8192), 32, 8, 128)
    cost = kernel.cost(Precision())
    load_us = CostTable.of([kernel], Precision()).loads_us(H200, np.array([500.0]))[2, 0]
    tensor_us = cost.flops / H200.peak_flops["bf16"] * 1e6
    assert load_us - tensor_us == pytest.approx(0.45 * cost.moved_bytes / (0.83 * 4.8e12) * 1e6)
    assert 240.0 < load_us < 260.0
    assert PowerLoad() == DENSE_PRODUCTS
