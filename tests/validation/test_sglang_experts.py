"""Products of experts as engines of SGLang ran them."""

from __future__ import annotations

from tests.validation.sglang_experts import MODELS, compare_products

SKEWED = "qwen3-30b-a3b-fp8, 1,024 tokens"
"""Alone both products take 35 % longer than in this prompt: presumably tokens of random fp8 weights choose the same
experts."""


def test_products_are_met_by_their_times_without_an_engine() -> None:
    """Of one token +5 and +13 %, of others within 6.5 %."""
    rows = [row for row in compare_products() if not row.name.startswith(SKEWED)]
    assert len(rows) == 16
    assert sum(abs(row.error) for row in rows) / len(rows) < 0.035
    assert all(-0.06 < row.error < 0.065 for row in rows if ", 1 tokens" not in row.name)
    assert all(0.0 < row.error < 0.14 for row in rows if ", 1 tokens" in row.name)


def test_a_prompt_whose_tokens_choose_the_same_experts_is_not_met() -> None:
    assert [round(row.error, 2) for row in compare_products() if row.name.startswith(SKEWED)] == [0.35, 0.35]


def test_every_engine_was_traced() -> None:
    assert {row.name.partition(",")[0] for row in compare_products()} == set(MODELS)
