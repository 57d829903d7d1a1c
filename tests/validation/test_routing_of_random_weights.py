"""How many experts prompts reach with random weights, and the popularities that stand for it."""

from __future__ import annotations

import numpy as np
import pytest

from aicb.kernels.routing import expert_rows
from tests.validation.partitions_vs_engine import PROMPT_LOADS, model_of
from tests.validation.routing_of_random_weights import SMALLER, STD, Layer, RandomModel, layer_of, share_of_uniform

SMALL = Layer(hidden=1024, heads=16, kv_heads=4, head_dim=64, experts=64, experts_per_token=8, width=128)
TOKENS, LAYERS = 48, 24
WIDER = 4.0
"""Weights of few columns add less; so much larger, they add as much as in the models."""
REACHED = {"tp2-ep2-minimax-m2-l12": 100, "h200-tp2-qwen3-235b-a22b-fp8": 26}
"""Of prompts of so many tokens, in the mean of the layers, as the module prints."""
TOKENS_COUNTED = 128


@pytest.mark.parametrize(("output_std", "least", "most"), [(STD / SMALLER, 0.97, 1.01), (STD, 0.0, 0.6)])
def test_tokens_keep_apart_only_if_attention_adds_little(output_std: float, least: float, most: float) -> None:
    counts = RandomModel(SMALL, WIDER * output_std).reached(TOKENS, LAYERS)
    assert least <= share_of_uniform(counts[-8:], SMALL, TOKENS) <= most


@pytest.mark.parametrize("server", PROMPT_LOADS)
def test_popularities_reach_as_many_experts_as_computed(server: str) -> None:
    layer = layer_of(model_of(server))
    law, experts = PROMPT_LOADS[server].replace(":", ""), (layer.experts, TOKENS_COUNTED, layer.experts_per_token)
    reached = [np.count_nonzero(expert_rows(law, *experts, seed)) for seed in range(40)]
    assert np.mean(reached) == pytest.approx(REACHED[server], rel=0.04)
