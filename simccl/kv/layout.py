"""Layout of a request's KV cache over the ranks of an instance, and pairs of ranks of which one fetches from the other.

Per layer: with grouped-query attention the KV heads are divided over the tensor-parallel ranks, and repeated where
there are more ranks than heads; the latent of multi-head latent attention is whole on every rank. A pipeline stage
holds its own layers. Every decode rank fetches exactly what it will hold, once: copies of a head or latent on several
prefill ranks serve different decode ranks. So the bytes that cross are S for as many ranks as heads or fewer,
S · tp / heads beyond, and S · tp for a latent (S: one full copy).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from simccl.collective import shares


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Layout of one request's KV in an instance: ``gpus[stage · tp + rank]``, ``tp`` GPUs per pipeline stage.

    With data-parallel attention these are the GPUs of the one attention rank that has the request.
    """

    gpus: tuple[int, ...]
    tp: int
    pp: int = 1
    stage_layers: tuple[int, ...] | None = None
    """Layers of each stage; ``None``: as even as possible, the surplus on the first stages."""

    def __post_init__(self) -> None:
        if self.tp < 1 or self.pp < 1:
            raise InputError(f"tp, pp: found {self.tp}, {self.pp}, expected at least 1")
        if len(self.gpus) != self.tp * self.pp or len(set(self.gpus)) != len(self.gpus):
            raise InputError(f"gpus: found {list(self.gpus)}, expected tp·pp = {self.tp * self.pp} different GPUs")
        if self.stage_layers is not None and (len(self.stage_layers) != self.pp or min(self.stage_layers) < 0):
            raise InputError(f"stage_layers: found {list(self.stage_layers)}, expected {self.pp} counts, one per stage")

    def stage_of_layer(self, layers: int) -> NDArray[np.int64]:
        """[layers] pipeline stage that holds each layer.

        Raises:
            InputError: if ``stage_layers`` do not sum to ``layers``.
        """
        counts = np.diff(shares(layers, self.pp)) if self.stage_layers is None else np.array(self.stage_layers)
        if counts.sum() != layers:
            raise InputError(f"stage_layers: found {counts.sum()} layers in all, expected {layers}")
        return np.repeat(np.arange(self.pp), counts)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Something that layers keep for a request: KV of its tokens, or a recurrent state."""

    layer_bytes: tuple[int, ...]
    """Bytes of one full copy per layer of the model; 0 where a layer keeps none."""
    heads: int | None
    """Heads it is divided by over tensor-parallel ranks; ``None``: whole on every rank (latent)."""
    most_tokens: tuple[int | None, ...] = ()
    """[layers] last tokens whose KV a layer keeps (a sliding window); ``None``: all. Empty: all in every layer."""

    def __post_init__(self) -> None:
        if self.heads is not None and self.heads < 1:
            raise InputError(f"heads: found {self.heads}, expected at least 1, or None for a latent")
        for layer, size in enumerate(self.layer_bytes):
            if size < 0 or (self.heads is not None and size % self.heads):
                raise InputError(
                    f"layer_bytes[{layer}]: found {size}, expected a multiple of {self.heads or 1} (heads), at least 0"
                )
        if self.most_tokens and len(self.most_tokens) != len(self.layer_bytes):
            raise InputError(f"most_tokens: found {len(self.most_tokens)}, expected {len(self.layer_bytes)}, or none")

    def most_tokens_of(self, layers: list[int]) -> tuple[int | None, ...]:
        """``most_tokens`` of these layers."""
        return tuple(self.most_tokens[layer] for layer in layers) if self.most_tokens else (None,) * len(layers)


def layer_groups(cache: LayerCache, stages: list[tuple[int, int]], span: int) -> list[list[int]]:
    """Layers that go in one flow: same pair of stages, same run of ``span`` layers, with something to send."""
    groups: dict[tuple[tuple[int, int], int], list[int]] = {}
    for layer, size in enumerate(cache.layer_bytes):
        if size:
            groups.setdefault((stages[layer], layer // span), []).append(layer)
    return list(groups.values())


def rank_pairs(source_tp: int, destination_tp: int, heads: int | None) -> list[tuple[int, int, int]]:
    """(source rank, destination rank, heads carried): what each destination rank fetches, from whom.

    A latent is fetched from source rank ``i mod tp``. Of the copies of a head, destination ranks that hold it use
    different ones as far as there are: with a common divisor this is NIXL's rule floor(i · tp_source / tp_destination).
    """
    if heads is None:
        return [(j % source_tp, j, 1) for j in range(destination_tp)]
    holders: list[list[int]] = [[] for _ in range(heads)]
    for i in range(source_tp):
        for head in _heads_of(i, source_tp, heads):
            holders[head].append(i)
    readers: list[list[int]] = [[] for _ in range(heads)]
    for j in range(destination_tp):
        for head in _heads_of(j, destination_tp, heads):
            readers[head].append(j)
    carried: dict[tuple[int, int], int] = {}
    for head in range(heads):
        for place, j in enumerate(readers[head]):
            i = holders[head][place * len(holders[head]) // len(readers[head])]
            carried[i, j] = carried.get((i, j), 0) + 1
    return [(i, j, count) for (i, j), count in carried.items()]


def _heads_of(rank: int, tp: int, heads: int) -> range:
    """Heads of a tensor-parallel rank: an equal share, or one head that several ranks hold.

    Raises:
        InputError: unless ranks divide heads or heads divide ranks.
    """
    if heads % tp == 0:
        return range(rank * heads // tp, (rank + 1) * heads // tp)
    if tp % heads == 0:
        return range(rank * heads // tp, rank * heads // tp + 1)
    raise InputError(f"tp: found {tp} ranks for {heads} heads, expected one to divide the other")
