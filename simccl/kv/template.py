"""Hand-off of one request's KV cache from the GPUs of a prefill instance to those of a decode instance.

`simccl.kv.layout` says who holds what and who fetches it. Hand-offs between two instances have the same flows but for
their tokens and times, so these are laid out once (`KvTemplate`), put on GPUs (`KvFlows`), and filled in per request.
The recurrent state of hybrid models is divided by its own heads and leaves at the end of prefill.

Assumed: decode starts empty (leave out what it already has). Ignored unless given: the control messages that precede
the first byte (``setup_ps``), and the cost of posting each descriptor (`Descriptors`). A pair of GPUs uses the NICs of
its two GPUs, or several rails of its nodes (`Striping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from boundary.errors import InputError
from netsim.flow import FlowGraph
from simccl.kv.handoff import Descriptors, KvHandoff, Striping, previous_of_same, striped
from simccl.kv.layout import KvLayout, LayerCache, layer_groups, rank_pairs

Times = Sequence[int] | NDArray[np.int64]
ALL_TOKENS: Final = 2**62
"""More than any prompt has."""


@dataclass(frozen=True, eq=False)
class KvTemplate:
    """The flows of all hand-offs between layouts of two shapes; GPUs, tokens and times are still open.

    Flows are in the order in which they become ready whatever the times, as layers do so in their order.
    """

    layers: int
    """Of the model."""
    source: NDArray[np.int32]
    """[flows] sender: its index among the GPUs of the source layout."""
    destination: NDArray[np.int32]
    """[flows] receiver: its index among the GPUs of the destination layout."""
    layer_bytes: tuple[NDArray[np.int64], ...]
    """[flows][layers of the flow] bytes per token; of recurrent state, bytes."""
    most_tokens: tuple[tuple[int | None, ...], ...]
    """[flows][layers of the flow] last tokens that are carried; ``None``: all."""
    first_layer: NDArray[np.int64]
    """[flows] first layer carried."""
    last_layer: NDArray[np.int64]
    """[flows] last layer carried."""
    is_state: NDArray[np.bool_]
    """[flows] recurrent state rather than KV."""
    ready_layer: NDArray[np.int64]
    """[flows] layer that it waits for."""
    pair: NDArray[np.int64]
    """[flows] pair of sender and receiver, numbered in the order of their first flows."""
    setup_ps: int

    @cached_property
    def previous(self) -> NDArray[np.int64]:
        """[flows] flow of the same pair that goes first, or -1."""
        return previous_of_same(self.pair.tolist())

    @cached_property
    def token_bytes(self) -> NDArray[np.int64]:
        """[flows] bytes per token; 0 for state."""
        return np.where(self.is_state, 0, self._flow_bytes)

    @cached_property
    def state_bytes(self) -> NDArray[np.int64]:
        """[flows] bytes of state; 0 for KV."""
        return np.where(self.is_state, self._flow_bytes, 0)

    def size_bytes(self, tokens: int) -> NDArray[np.int64]:
        """[flows] bytes of so many tokens, and of the state."""
        sizes = self.state_bytes
        for most, token_bytes in self._bytes_by_limit.items():
            sizes = sizes + token_bytes * (tokens if most is None else min(tokens, most))
        return sizes

    def total_bytes(self, tokens: int) -> int:
        """Bytes of all flows for so many tokens, and of the state."""
        kv_bytes = sum(each * (tokens if most is None else min(tokens, most)) for most, each in self._total_by_limit)
        return self._total_state_bytes + kv_bytes

    @cached_property
    def largest_token_bytes(self) -> int:
        """Bytes per token of the largest layer of any flow; 0 where only state travels."""
        pieces = zip(self.layer_bytes, self.is_state.tolist(), strict=True)
        return max((int(sizes.max()) for sizes, is_state in pieces if not is_state), default=0)

    def descriptors(self, tokens: int, of: Descriptors) -> NDArray[np.int64]:
        """[flows] the number of descriptors of so many tokens, and of the state."""
        per_token_bytes, most_tokens, first = self._layers_of_flows
        counts = of.counts(per_token_bytes * np.minimum(tokens, most_tokens))
        return np.add.reduceat(counts, first) if len(first) else counts

    @cached_property
    def _layers_of_flows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """[layers of all flows] bytes per token, or of state, and the most tokens, 1 for state; [flows] its first."""
        counts = [len(sizes) for sizes in self.layer_bytes]
        most_tokens = [
            1 if is_state else ALL_TOKENS if most is None else most
            for is_state, of_flow in zip(self.is_state.tolist(), self.most_tokens, strict=True)
            for most in of_flow
        ]
        first = np.cumsum([0, *counts[:-1]], dtype=np.int64) if counts else np.zeros(0, dtype=np.int64)
        flat = np.concatenate(self.layer_bytes) if counts else np.zeros(0, dtype=np.int64)
        return flat, np.array(most_tokens, dtype=np.int64), first

    @cached_property
    def _bytes_by_limit(self) -> dict[int | None, NDArray[np.int64]]:
        """[flows] bytes per token of the layers with each limit."""
        found: dict[int | None, NDArray[np.int64]] = {}
        for flow in np.flatnonzero(~self.is_state).tolist():
            for most, layer_bytes in zip(self.most_tokens[flow], self.layer_bytes[flow].tolist(), strict=True):
                found.setdefault(most, np.zeros(len(self.pair), dtype=np.int64))[flow] += layer_bytes
        return found

    @cached_property
    def _total_by_limit(self) -> list[tuple[int | None, int]]:
        """For each limit: bytes per token of all flows."""
        return [(most, int(token_bytes.sum())) for most, token_bytes in self._bytes_by_limit.items()]

    @cached_property
    def _total_state_bytes(self) -> int:
        return int(self.state_bytes.sum())

    @cached_property
    def carries_tokens(self) -> bool:
        """Whether any flow carries KV."""
        return bool(self.token_bytes.any())

    @cached_property
    def skeleton(self) -> FlowGraph:
        """Flow graph of one token, all of it ready, between indices of the layouts."""
        return KvFlows(self, self.source, self.destination).handoff(1).graph()

    @cached_property
    def _flow_bytes(self) -> NDArray[np.int64]:
        return np.array([sizes.sum() for sizes in self.layer_bytes], dtype=np.int64)

    def between(self, source: KvLayout, destination: KvLayout) -> KvFlows:
        """The flows on the GPUs of two layouts of the template's shapes."""
        src = np.array(source.gpus, dtype=np.int32)[self.source]
        dst = np.array(destination.gpus, dtype=np.int32)[self.destination]
        stays = src == dst
        if not stays.any():
            return KvFlows(self, src, dst)
        crosses = np.flatnonzero(~stays)
        return KvFlows(
            self._only(crosses),
            src[crosses],
            dst[crosses],
            local=self._only(np.flatnonzero(stays)),
        )

    def _only(self, flows: NDArray[np.int64]) -> KvTemplate:
        """Without the flows of some pairs."""
        return KvTemplate(
            layers=self.layers,
            source=self.source[flows],
            destination=self.destination[flows],
            layer_bytes=tuple(self.layer_bytes[flow] for flow in flows),
            most_tokens=tuple(self.most_tokens[flow] for flow in flows),
            first_layer=self.first_layer[flows],
            last_layer=self.last_layer[flows],
            is_state=self.is_state[flows],
            ready_layer=self.ready_layer[flows],
            pair=np.unique(self.pair[flows], return_inverse=True)[1],
            setup_ps=self.setup_ps,
        )


@dataclass(frozen=True, eq=False)
class KvFlows:
    """A `KvTemplate` between the GPUs of two instances, without what stays on a GPU that both have."""

    template: KvTemplate
    src: NDArray[np.int32]
    """[flows] GPU that sends."""
    dst: NDArray[np.int32]
    """[flows] GPU that receives."""
    local: KvTemplate | None = None
    """What stays on its GPU."""

    def graph(
        self, tokens: int, layer_ready_ps: Times | None = None, max_rate_bps: NDArray[np.int64] | None = None
    ) -> FlowGraph:
        """The flow graph of ``handoff`` with the same arguments, by a few array operations.

        ``max_rate_bps``: [flows] what holds each back, 0 for nothing.

        Raises:
            InputError: as ``handoff`` does.
        """
        ready_ps = None if layer_ready_ps is None else self._ready_ps(layer_ready_ps)
        size_bytes = self._size_bytes(tokens)
        return self._one_token.with_flows(size_bytes=size_bytes, ready_ps=ready_ps, max_rate_bps=max_rate_bps)

    @cached_property
    def _one_token(self) -> FlowGraph:
        """The flow graph of one token, all of it ready."""
        return self.template.skeleton.with_flows(src=self.src, dst=self.dst)

    def handoff(
        self, tokens: int, layer_ready_ps: Times | None = None, descriptors: Descriptors | None = None
    ) -> KvHandoff:
        """The hand-off of so many tokens; ``layer_ready_ps`` and ``descriptors`` as in `kv_handoff_plan`.

        Raises:
            InputError: no tokens, but flows that would carry them; times that do not fit the layers.
        """
        template = self.template
        return KvHandoff(
            src=self.src,
            dst=self.dst,
            size_bytes=self._size_bytes(tokens),
            first_layer=template.first_layer,
            last_layer=template.last_layer,
            is_state=template.is_state,
            ready_ps=self._ready_ps(layer_ready_ps),
            previous=template.previous,
            posting_ps=self._posting_ps(tokens, descriptors),
            is_posting_overlapped=False,
            rail=np.zeros(len(self.src), dtype=np.int64),
            striping=None,
            setup_ps=template.setup_ps,
            local_bytes=0 if self.local is None else self.local.total_bytes(tokens),
        )

    def _size_bytes(self, tokens: int) -> NDArray[np.int64]:
        if tokens < 1 and (tokens < 0 or self.template.carries_tokens):
            raise InputError(f"tokens: found {tokens}, expected at least 1 where KV travels")
        return self.template.size_bytes(tokens)

    def _ready_ps(self, layer_ready_ps: Times | None) -> NDArray[np.int64]:
        template = self.template
        if layer_ready_ps is None:
            return np.zeros(len(template.ready_layer), dtype=np.int64)
        ready = np.asarray(layer_ready_ps, dtype=np.int64)
        if len(ready) != template.layers or (len(ready) and (ready[0] < 0 or (ready[1:] < ready[:-1]).any())):
            found = ready.tolist()
            raise InputError(f"layer_ready_ps: found {found}, expected {template.layers} times from 0, not decreasing")
        return ready[template.ready_layer]

    def _posting_ps(self, tokens: int, descriptors: Descriptors | None) -> NDArray[np.int64]:
        if descriptors is None:
            return np.zeros(len(self.src), dtype=np.int64)
        return descriptors.cost_ps * self.template.descriptors(tokens, descriptors)


def kv_template(
    source: KvLayout,
    destination: KvLayout,
    *,
    kv: LayerCache,
    state: LayerCache | None = None,
    layers_per_flow: int | None = None,
    setup_ps: int = 0,
) -> KvTemplate:
    """The template of hand-offs between layouts of these shapes; see `kv_handoff_plan`. ``kv`` is that of a token.

    Raises:
        InputError: layouts or layers that do not fit together.
    """
    layers = len(kv.layer_bytes)
    if state is not None and len(state.layer_bytes) != layers:
        raise InputError(f"state.layer_bytes: found {len(state.layer_bytes)} layers, expected {layers} as in kv")
    if layers_per_flow is not None and layers_per_flow < 1:
        raise InputError(f"layers_per_flow: found {layers_per_flow}, expected at least 1")
    if setup_ps < 0:
        raise InputError(f"setup_ps: found {setup_ps}, expected at least 0")
    flows = _flows(kv, source, destination, layers_per_flow or layers)
    kv_flows = len(flows)
    if state is not None:
        flows += _flows(state, source, destination, layers)
    is_state = np.arange(len(flows)) >= kv_flows
    last_layer = np.array([flow.members[-1] for flow in flows], dtype=np.int64)
    return KvTemplate(
        layers=layers,
        source=np.array([flow.source for flow in flows], dtype=np.int32),
        destination=np.array([flow.destination for flow in flows], dtype=np.int32),
        layer_bytes=tuple(flow.layer_bytes for flow in flows),
        most_tokens=tuple(flow.most_tokens for flow in flows),
        first_layer=np.array([flow.members[0] for flow in flows], dtype=np.int64),
        last_layer=last_layer,
        is_state=is_state,
        ready_layer=np.where(is_state, layers - 1, last_layer),
        pair=_numbered([(flow.source, flow.destination) for flow in flows]),
        setup_ps=setup_ps,
    )


class _Flow(NamedTuple):
    """One flow of a template, or a copy that stays on its GPU."""

    source: int
    destination: int
    layer_bytes: NDArray[np.int64]
    most_tokens: tuple[int | None, ...]
    members: list[int]


def _flows(cache: LayerCache, source: KvLayout, destination: KvLayout, span: int) -> list[_Flow]:
    """The flows that carry a cache, ``span`` layers at a time."""
    layers = len(cache.layer_bytes)
    stages = list(zip(source.stage_of_layer(layers).tolist(), destination.stage_of_layer(layers).tolist(), strict=True))
    pairs = rank_pairs(source.tp, destination.tp, cache.heads)
    flows = []
    for members in layer_groups(cache, stages, span):
        from_stage, to_stage = stages[members[0]]
        copy_bytes = np.array([cache.layer_bytes[layer] for layer in members], dtype=np.int64)
        for i, j, heads in pairs:
            ends = from_stage * source.tp + i, to_stage * destination.tp + j
            carried_bytes = copy_bytes * heads // (cache.heads or 1)
            flows.append(_Flow(*ends, carried_bytes, cache.most_tokens_of(members), members))
    return flows


def _numbered(pairs: list[tuple[int, int]]) -> NDArray[np.int64]:
    """[pairs] the number of each, equal ones the same, in the order of first appearance."""
    numbers: dict[tuple[int, int], int] = {}
    return np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], dtype=np.int64)


def kv_handoff_plan(
    source: KvLayout,
    destination: KvLayout,
    *,
    kv: LayerCache,
    state: LayerCache | None = None,
    layer_ready_ps: Times | None = None,
    layers_per_flow: int | None = None,
    setup_ps: int = 0,
    descriptors: Descriptors | None = None,
    striping: Striping | None = None,
) -> KvHandoff:
    """The hand-off of one request: ``kv`` of the tokens that decode lacks, and the recurrent ``state`` if there is one.

    Without ``layers_per_flow`` each pair of GPUs has one flow; with it, one per so many layers, so that a flow can
    leave as soon as its last layer is ready. ``layer_ready_ps`` are times after submission, in the order of layers and
    not decreasing; the state leaves with the last of them. A flow posts the ``descriptors`` of its layers before it
    leaves; ``striping`` divides flows between nodes over several NICs.

    Raises:
        InputError: layouts, layers or times that do not fit together.
    """
    template = kv_template(source, destination, kv=kv, state=state, layers_per_flow=layers_per_flow, setup_ps=setup_ps)
    handoff = template.between(source, destination).handoff(1, layer_ready_ps, descriptors)
    return handoff if striping is None else striped(handoff, striping)
