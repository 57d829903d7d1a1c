#!/usr/bin/env python3
"""How many experts a prompt reaches in an engine whose weights are random.

    python -m tests.validation.routing_of_random_weights SERVER [--tokens 128]

Engines that are compared have random weights (normal, standard deviation 0.02), chosen so that tokens route like a
trained model's: the projection after attention is ten times smaller, as what attention adds is much the same for all
tokens of a prompt, and would in deep models become all that the router sees. In fp8 it is not smaller, as such weights
are drawn with one scale. Layers are computed here in float32 with the sizes of the engine's configuration; experts
share one set of weights, of which each sees the hidden state rotated by a part of its own.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aicb.model.architecture import GroupedQueryAttention, Model, MoeFfn
from tests.validation.partitions_vs_engine import model_of

Floats = NDArray[np.float32]
STD = 0.02
"""Standard deviation of the engines' weights; that of embeddings is 1."""
SMALLER = 10.0
"""By how many times the engines' weights of the projection after attention are smaller in bf16."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of a layer that matter to routing."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    width: int


class RandomModel:
    """Layers with random weights, one after the other."""

    def __init__(self, layer: Layer, output_std: float, seed: int = 1):
        self.layer, self.output_std = layer, output_std
        self._random = np.random.default_rng(seed)

    def reached(self, tokens: int, layers: int) -> list[int]:
        """[layers] experts that some token of a prompt of random tokens chooses."""
        hidden = self._normal(tokens, self.layer.hidden, std=1.0)
        counts = []
        for _ in range(layers):
            hidden = hidden + self._attention(_normalised(hidden))
            chosen, added = self._experts(_normalised(hidden))
            hidden = hidden + added
            counts.append(len(np.unique(chosen)))
        return counts

    def _normal(self, *shape: int, std: float = STD) -> Floats:
        return self._random.standard_normal(shape, dtype=np.float32) * np.float32(std)

    def _attention(self, hidden: Floats) -> Floats:
        """Causal; without rotary positions, with which a prompt reached 27 experts instead of 26."""
        layer, tokens = self.layer, len(hidden)
        queries = hidden @ self._normal(layer.hidden, layer.heads * layer.head_dim)
        keys, values = (hidden @ self._normal(layer.hidden, layer.kv_heads * layer.head_dim) for _ in range(2))
        queries = _normalised(queries.reshape(tokens, layer.heads, -1))
        keys = _normalised(keys.reshape(tokens, layer.kv_heads, -1))
        future = np.triu(np.full((tokens, tokens), -1e9, dtype=np.float32), 1)
        seen = np.empty((tokens, layer.heads, layer.head_dim), dtype=np.float32)
        for head in range(layer.heads):
            shared = head * layer.kv_heads // layer.heads
            scores = queries[:, head] @ keys[:, shared].T / np.sqrt(np.float32(layer.head_dim))
            seen[:, head] = _softmax(scores + future) @ values.reshape(tokens, layer.kv_heads, -1)[:, shared]
        return seen.reshape(tokens, -1) @ self._normal(layer.heads * layer.head_dim, layer.hidden, std=self.output_std)

    def _experts(self, hidden: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Chosen experts ``[tokens, k]``, and the weighted sums of their outputs ``[tokens, hidden]``."""
        layer = self.layer
        scores = hidden @ self._normal(layer.hidden, layer.experts)
        chosen = np.argpartition(-scores, layer.experts_per_token, axis=1)[:, : layer.experts_per_token]
        weights = _softmax(np.take_along_axis(scores, chosen, 1))
        up, down = self._normal(layer.hidden, 2 * layer.width), self._normal(layer.width, layer.hidden)
        added = np.zeros_like(hidden)
        for expert in range(layer.experts):
            rows, places = np.nonzero(chosen == expert)
            turned = np.roll(hidden[rows], expert * (layer.hidden // layer.experts), axis=1) @ up
            gate, value = turned[:, : layer.width], turned[:, layer.width :]
            result = np.roll((gate / (1 + np.exp(-gate)) * value) @ down, expert, axis=1)
            np.add.at(added, rows, weights[rows, places][:, None] * result)
        return chosen, added


def _normalised(rows: Floats) -> Floats:
    return np.asarray(rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + 1e-6), dtype=np.float32)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float32)


def layer_of(model: Model) -> Layer:
    """Of a model whose layers are alike but for their number."""
    attention, ffn = model.layers[-1].attention, model.layers[-1].ffn
    assert isinstance(attention, GroupedQueryAttention)
    assert isinstance(ffn, MoeFfn)
    heads = attention.heads, attention.kv_heads, attention.head_dim
    return Layer(model.hidden, *heads, ffn.experts, ffn.experts_per_token, ffn.intermediate)


def share_of_uniform(counts: list[int], layer: Layer, tokens: int) -> float:
    """Experts reached over those that independent tokens would reach, in the mean."""
    missed = (1.0 - layer.experts_per_token / layer.experts) ** tokens
    return float(np.mean(counts)) / (layer.experts * (1.0 - missed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="name of an engine in tests/data/engine")
    parser.add_argument("--tokens", type=int, default=128)
    asked = parser.parse_args()
    model = model_of(asked.server)
    layer = layer_of(model)
    for name, std in (("fp8", STD), ("bf16", STD / SMALLER)):
        counts = RandomModel(layer, std).reached(asked.tokens, len(model.layers))
        share = share_of_uniform(counts, layer, asked.tokens)
        print(f"{name}: {np.mean(counts):.0f} of {layer.experts} experts in the mean, {share:.0%} of as many as if")
        print(f"  tokens were independent; by layer: {counts}")


if __name__ == "__main__":
    main()
