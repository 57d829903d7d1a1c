"""Routes of KV between two ranks: the flows of a transfer, and the links that carry them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import simccl
from aicb import Model, Precision, stage_layers
from aicb.model.architecture import GatedDeltaNet, GroupedQueryAttention, LatentAttention, span_of
from netsim import Topology
from vidur_pd.execution.instances.instance import Rank

ROUTES_KEPT: Final = 16_384
"""Pairs of ranks whose flows and links are kept; a route has 2 to 4 KB."""


class Contents(NamedTuple):
    """What of a request a transfer carries, and how."""

    with_tokens: bool
    with_state: bool
    layer_by_layer: bool


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """What the layers of a model keep for a request: KV per token, and a recurrent state."""

    token_bytes: tuple[int, ...]
    """[layers] one copy"""
    kv_heads: int | None
    """Heads the KV is divided by; ``None``: a latent, whole on every rank."""
    most_tokens: tuple[int | None, ...]
    """[layers] tokens whose KV is kept at most; ``None``: all."""
    state: simccl.LayerCache | None


class RankPairRoutes:
    """The routes between pairs of ranks, as links are now; each is laid out at its first transfer.

    The GPUs of a prefill rank all hold an MLA latent; the one on the destination's rail sends it, which spreads
    transfers over NICs and keeps them off the spines.
    """

    def __init__(
        self, model: Model, precision: Precision, topology: Topology, *, setup_ps: int, draft_layers: int = 0
    ) -> None:
        """``draft_layers``: layers that draft, behind the model."""
        self._model = model
        self._draft_layers = draft_layers
        self._sizes = cache_sizes(model, precision, draft_layers)
        self._topology = topology
        self._setup_ps = setup_ps
        self._layouts: dict[tuple[Rank, int], simccl.KvLayout] = {}
        self._templates: dict[tuple[int, ...], simccl.KvTemplate] = {}
        self.between = lru_cache(ROUTES_KEPT)(self._between)
        """The route of some contents from one rank to another."""

    @property
    def regions(self) -> int:
        """Places that a layer's KV is kept in: keys and values, or one latent."""
        return 1 if self._sizes.kv_heads is None else 2

    @property
    def has_state(self) -> bool:
        """The model keeps a recurrent state that travels once, whatever the prompt."""
        return self._sizes.state is not None

    def _between(self, source: Rank, destination: Rank, contents: Contents) -> simccl.KvFlows:
        source_layout, destination_layout = self._source_layout(source, destination), self._layout(destination, shift=0)
        return self._template(source_layout, destination_layout, contents).between(source_layout, destination_layout)

    def _template(self, source: simccl.KvLayout, destination: simccl.KvLayout, contents: Contents) -> simccl.KvTemplate:
        """What routes between layouts of these shapes have in common."""
        key = (source.tp, source.pp, destination.tp, destination.pp, *contents)
        if key not in self._templates:
            token_bytes = self._sizes.token_bytes if contents.with_tokens else (0,) * len(self._sizes.token_bytes)
            self._templates[key] = simccl.kv_template(
                source,
                destination,
                kv=simccl.LayerCache(token_bytes, self._sizes.kv_heads, self._sizes.most_tokens),
                state=self._sizes.state if contents.with_state else None,
                layers_per_flow=1 if contents.layer_by_layer else None,
                setup_ps=self._setup_ps,
            )
        return self._templates[key]

    def _source_layout(self, source: Rank, destination: Rank) -> simccl.KvLayout:
        """The source's GPUs, turned so that a latent comes from the GPU on the destination's rail."""
        if self._sizes.kv_heads is not None or source.instance.placement.partition.tp == 1:
            return self._layout(source, shift=0)
        own_rail, other_rail = (
            self._topology.rail_of(rank.instance.placement.rank_gpus(rank.index)[0][0])
            for rank in (source, destination)
        )
        return self._layout(source, shift=other_rail - own_rail)

    def _layout(self, rank: Rank, *, shift: int) -> simccl.KvLayout:
        """GPUs of a rank by stage and tensor rank, turned by ``shift`` within each stage."""
        placement = rank.instance.placement
        tp, pp = placement.partition.tp, placement.partition.pp
        key = (rank, shift % tp)
        if key not in self._layouts:
            held = [len(layers) for layers in stage_layers(self._model, pp)]
            held[-1] += self._draft_layers
            stages = [[gpus[(i + shift) % tp] for i in range(tp)] for gpus in placement.rank_gpus(rank.index)]
            self._layouts[key] = simccl.KvLayout(
                gpus=tuple(gpu for stage in stages for gpu in stage),
                tp=tp,
                pp=pp,
                stage_layers=tuple(held),
            )
        return self._layouts[key]


def cache_sizes(model: Model, precision: Precision, draft_layers: int = 0) -> CacheSizes:
    """What each layer keeps, by the sizes that memory and schedulers use; layers that draft are as the model's last."""
    layers = [*model.layers, *[model.layers[-1]] * draft_layers]
    token_bytes, state_bytes = [], []
    kv_heads: int | None = None
    state_heads: int | None = None
    for layer in layers:
        in_layer = state_in_layer = 0
        match layer.attention:
            case GroupedQueryAttention() as attention:
                in_layer, kv_heads = attention.kv_bytes(precision.kv), attention.kv_heads
            case LatentAttention() as attention:
                in_layer = attention.kv_bytes(precision.kv)
            case GatedDeltaNet() as attention:
                state_in_layer, state_heads = attention.state_bytes(precision.state), attention.key_heads
        token_bytes.append(in_layer)
        state_bytes.append(state_in_layer)
    state = simccl.LayerCache(tuple(state_bytes), state_heads) if any(state_bytes) else None
    spans = (span_of(layer.attention) for layer in layers)
    most_tokens = tuple(None if span is None else span.tokens for span in spans)
    return CacheSizes(tuple(token_bytes), kv_heads, most_tokens, state)
