"""Costs of posting the descriptors of KV transfers, by the way between two GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import simccl
from netsim.units import PS_PER_S, PS_PER_US
from vidur_pd.config.kv_transfer import ConnectorConfig, WayCosts
from vidur_pd.kv.transfer.rank_pairs import ROUTES_KEPT

Times = NDArray[np.int64]
STATE_PIECE_BYTES: Final = 1 << 20
"""Bytes of a descriptor where only recurrent state travels, which is whole in each layer: about what there is."""


@dataclass(frozen=True, slots=True)
class KvMemory:
    """How a rank keeps KV, as far as descriptors show it."""

    layers: int
    block_tokens: int
    regions: int
    """Places that a layer is kept in: keys and values, or one latent."""


class Posting(NamedTuple):
    """What posting the descriptors of a transfer takes."""

    flows_ps: Times | None
    """[flows] time to post each while its GPU posts its other flows too; ``None``: all take none."""
    gpu_ps: int
    """Of the GPU that posts longest."""
    held_ps: int
    """Time for which steps of the engine stand still meanwhile."""
    listing_ps: int
    """To list all slots before, of the GPU that lists longest. Threads of an engine list transfers side by side."""


FREE: Final = Posting(None, 0, 0, 0)


class Places(NamedTuple):
    """Who posts the flows of a route, and on which way they travel."""

    gpu: NDArray[np.int64]
    """[flows] that posts it, numbered."""
    at_once: NDArray[np.int64]
    """[flows] pairs of GPUs that this one posts for at the same time."""
    of_way: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Flows between nodes, and within one."""


class PostingCosts:
    """Times to post the descriptors of transfers, by a connector's costs of each way."""

    def __init__(self, config: ConnectorConfig, memory: KvMemory, gpus_per_node: int) -> None:
        self._config = config
        self._memory = memory
        self._gpus_per_node = gpus_per_node
        ways = [config.way(is_within_node=within) for within in (False, True)]
        self._ways = None if all(way.is_free for way in ways) else ways
        """Between nodes, and within one."""
        self._places = lru_cache(ROUTES_KEPT)(self._places_of)

    def of(self, flows: simccl.KvFlows, tokens: int) -> Posting:
        """Time to post the KV of ``tokens``."""
        if self._ways is None or not len(flows.src):
            return FREE
        template = flows.template
        descriptors = self._pieces_of(template, self._config.descriptor_tokens or self._memory.block_tokens)
        counts = template.descriptors(tokens, descriptors)
        of_pair = np.bincount(template.pair, weights=counts).astype(np.int64)[template.pair]
        places = self._places(flows)
        each_ps, copied_ps, shares, slot_us = np.zeros((4, len(counts)))
        for way, here in zip(self._ways, places.of_way, strict=True):
            if len(here):
                each_ps[here] = _each_us(way, of_pair[here]) * PS_PER_US
                copied_ps[here] = _copy_ps(way, flows.template.size_bytes(tokens)[here])
                shares[here], slot_us[here] = way.step_share, way.slot_us
        posting_ps = np.rint(counts * each_ps + copied_ps).astype(np.int64)
        gpu_ps, held_ps = (int(np.bincount(places.gpu, posting_ps * share).max()) for share in (1.0, shares))
        listing_ps = 0
        if slot_us.any():
            slots = template.descriptors(tokens, self._pieces_of(template, self._memory.block_tokens))
            listing_ps = round(float(np.bincount(places.gpu, slots * slot_us).max()) * PS_PER_US)
        return Posting(posting_ps * places.at_once, gpu_ps, held_ps, listing_ps)

    def _places_of(self, flows: simccl.KvFlows) -> Places:
        _, gpu = np.unique(flows.dst if self._config.posted_by == "decode" else flows.src, return_inverse=True)
        pairs = np.bincount(np.unique(np.stack((gpu, flows.template.pair)), axis=1)[0])
        is_within_node = flows.src // self._gpus_per_node == flows.dst // self._gpus_per_node
        return Places(gpu, pairs[gpu], (np.flatnonzero(~is_within_node), np.flatnonzero(is_within_node)))

    def _pieces_of(self, template: simccl.KvTemplate, tokens: int) -> simccl.Descriptors:
        """Pieces of so many tokens of the largest layer, whose size all have."""
        regions = self._memory.regions
        size_bytes = template.largest_token_bytes * tokens // regions or STATE_PIECE_BYTES
        return simccl.Descriptors(size_bytes, 0, regions)


def _each_us(way: WayCosts, descriptors: Times) -> NDArray[np.float64]:
    """[transfers] time to post one of so many descriptors, without copies."""
    if way.threads_from is None:
        return np.full(len(descriptors), way.descriptor_us)
    by_threads_us = np.maximum(way.threads_us, way.thread_us * way.threads_from / np.maximum(descriptors, 1))
    return np.where(descriptors < way.threads_from, way.descriptor_us, by_threads_us)


def _copy_ps(way: WayCosts, size_bytes: Times) -> NDArray[np.float64]:
    """[flows] time to copy their KV."""
    if way.gbytes_per_s is None:
        return np.zeros(len(size_bytes))
    return np.asarray(size_bytes / (way.gbytes_per_s * 1e9) * PS_PER_S)
