"""KV tiers of a cluster at work: loads that requests wait for, and writes of computed prompts, as flows on the network.

Assumptions: a load or write that has begun goes on, whatever is evicted or freed meanwhile; the KV blocks of a prompt
may be reused while its chunks are copied out; flows to a host on another server cross NICs and PCIe of the GPUs there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from netsim import Completion, FlowGraph, GraphHandle, NetworkBackend, NoPath
from vidur_pd._core import ChunkKeys, LayerArrivals, Loop, PromptsComputed, Request, TierLoad, TiersDue
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.execution.network_clock import catch_up
from vidur_pd.kv.store.disk import Disk
from vidur_pd.kv.store.prefetch import Prefetches
from vidur_pd.kv.store.rank_store import LoadPart, RankStore, Target, Write
from vidur_pd.kv.store.tier import Tier
from vidur_pd.kv.store.views import TierViews

RecomputePs = Callable[[Instance, int, int], int]
"""(instance, first token, token after the last): what it takes to compute these tokens of a prompt."""


@dataclass(slots=True, eq=False)
class OpenLoad:
    """A load that some request waits for."""

    store: RankStore
    load: TierLoad
    began_ps: int
    parts: list[LoadPart]
    on_network: dict[GraphHandle, LoadPart] = field(default_factory=dict)
    layers_ps: NDArray[np.int64] | None = None
    """[layers] latest arrival over the parts that have come; of layer-wise loads, whose request runs meanwhile."""

    def note_layers(self, end_ps: NDArray[np.int64]) -> None:
        """A part has come; ``end_ps``: [legs · layers] ends of its flows."""
        part_ps = end_ps.reshape(-1, self.store.place.layers).max(axis=0)
        self.layers_ps = part_ps if self.layers_ps is None else np.maximum(self.layers_ps, part_ps)


class KvStore:
    """Loads and writes of all ranks: their flows go on the network, requests run once their loads have come."""

    def __init__(
        self,
        keys: ChunkKeys,
        stores: Sequence[Sequence[RankStore]],
        network: NetworkBackend,
        loop: Loop,
        queue: EventQueue,
        recompute_ps: RecomputePs,
    ) -> None:
        """``stores``: [instances][ranks]; empty for instances that compute no prompts."""
        self._keys = keys
        self.stores = stores
        self._network, self._loop, self._queue = network, loop, queue
        self._recompute_ps = recompute_ps
        self._loads: dict[GraphHandle, OpenLoad] = {}
        self._writes: dict[GraphHandle, Write] = {}
        self._withdrawn: set[GraphHandle] = set()
        self._after: dict[Write, Callable[[], None]] = {}
        """Callback at the end of a write."""
        self._prefetches = Prefetches(queue, self._write)

    def seen_after(self, delay_ps: int) -> TierViews:
        """The tiers as routers see them, ``delay_ps`` late."""
        return TierViews(self.stores, self._keys, delay_ps, lambda: self._queue.now_ps)

    def due(self, notice: TiersDue) -> None:
        """Begins what a scheduling decision asks for: loads of requests, which hold KV blocks for them already, and
        write-backs of evicted chunks, whose blocks are reused once they have been copied."""
        for store in self.stores[notice.instance.index]:
            for write in store.written_back():
                self._write(write, self._let_wait(store.rank.instance))
            for load in store.rank.state.take_loads():
                self._load(store, load)

    def enters(self, request: Request, rank: Rank) -> None:
        """A request is about to queue on a rank: lower tiers prefetch what they have of it, those without a policy only
        behind other requests."""
        store = self.stores[rank.instance.index][rank.index]
        self._prefetches.begin(store, request)
        if rank.state.queued_requests:
            for write in store.prefetches(request, self._queue.now_ps):
                self._write(write)

    def prompts_computed(self, notice: PromptsComputed) -> None:
        """Writes the chunks of computed prompts that tiers lack."""
        for rank, request in notice.prompts:
            store = self.stores[notice.instance.index][rank]
            for write in store.writes(request, self._keys.of(request, request.prompt_tokens)):
                self._write(write)

    def arrived(self, completion: Completion) -> bool:
        """A graph has arrived or failed; returns False if it is neither of a load nor of a write."""
        handle = completion.handle
        if handle in self._withdrawn:
            return True
        if (write := self._writes.pop(handle, None)) is not None:
            self._network.forget(handle)
            self._settle(write, is_written=not completion.is_failed)
        elif (load := self._loads.pop(handle, None)) is not None:
            if load.load.arrivals is not None and not completion.is_failed:
                load.note_layers(self._network.flow_times(handle).end_ps)
            self._network.forget(handle)
            del load.on_network[handle]
            if completion.is_failed:
                self._give_up(load)
            elif not load.on_network:
                self._loaded(load)
        else:
            return False
        self._loop.traffic_changes(completion.at_ps)
        return True

    def instance_down(self, instance: Instance) -> None:
        """Cancels the loads of a failed instance and empties the tiers that fail with it."""
        for load in self._open():
            if load.store.rank.instance is instance:
                self._withdraw(load)
        self._prefetches.instance_down(instance)
        for store in self.stores[instance.index]:
            for access in store.tiers:
                if not access.outlives_instances:
                    assert isinstance(access.tier, Tier), "what several servers have outlives instances"
                    access.tier.clear()

    def end_all(self) -> bool:
        """Ends all waits where the network can deliver nothing any more: requests compute what they would have loaded,
        and nobody waits for a write. Returns whether anybody waited."""
        waiting = self._open()
        for load in waiting:
            self._give_up(load)
        has_held = self._prefetches.end_all()
        followed = list(self._after)
        for write in followed:
            self._after.pop(write)()
        return bool(waiting) or has_held or bool(followed)

    def _open(self) -> list[OpenLoad]:
        return list(dict.fromkeys(self._loads.values()))

    def _load(self, store: RankStore, load: TierLoad) -> None:
        now_ps = self._queue.now_ps
        opened = OpenLoad(store, load, now_ps, store.parts(load, now_ps))
        for part in opened.parts:
            for graph in part.graphs:
                handle = self._submit(graph)
                if handle is None:
                    self._give_up(opened)
                    return
                opened.on_network[handle] = part
                self._loads[handle] = opened

    def _loaded(self, opened: OpenLoad) -> None:
        request, now_ps, rank = opened.load.request, self._queue.now_ps, opened.store.rank
        start = opened.load.cached
        for part in opened.parts:
            counts = part.access.tier.counts
            counts.loads += 1
            counts.loaded_tokens += part.tokens
            counts.loaded_chunks += part.chunks
            counts.loaded_bytes += part.size_bytes
            counts.load_ps += now_ps - opened.began_ps
            counts.recompute_ps += self._recompute_ps(rank.instance, start, start + part.tokens)
            start += part.tokens
        if opened.load.arrivals is not None:
            assert opened.layers_ps is not None, "a load has a part"
            self._loop.set_arrivals(rank.instance, opened.load.arrivals, opened.layers_ps)
            return
        request.tier_tokens = (request.tier_tokens or 0) + opened.load.end - opened.load.cached
        request.tier_wait_ps = (request.tier_wait_ps or 0) + now_ps - opened.began_ps
        rank.state.loaded(request, opened.load.end)
        rank.instance.wake()

    def _give_up(self, opened: OpenLoad) -> None:
        """Fails a load: its request computes the tokens instead."""
        self._withdraw(opened)
        for part in opened.parts:
            part.access.tier.counts.failed_loads += 1
        if opened.load.arrivals is not None:
            self._compute_instead(opened, opened.load.arrivals)
            return
        opened.store.rank.state.abandon_load(opened.load.request)
        opened.store.rank.instance.note_kv_use()
        opened.store.rank.instance.wake()

    def _compute_instead(self, opened: OpenLoad, arrivals: LayerArrivals) -> None:
        """Fails a layer-wise load: the iteration that its request is in, or goes into, computes the tokens as well."""
        load, instance = opened.load, opened.store.rank.instance
        if not load.request.preemptions:
            load.request.cached_tokens -= load.end - load.cached
        now_ps = np.full(opened.store.place.layers, self._queue.now_ps)
        self._loop.set_arrivals(instance, arrivals, now_ps, self._recompute_ps(instance, load.cached, load.end))

    def _withdraw(self, opened: OpenLoad) -> None:
        catch_up(self._network, self._queue.now_ps)
        for handle in opened.on_network:
            del self._loads[handle]
            self._withdrawn.add(handle)
            self._network.cancel(handle)
            self._network.forget(handle)
        opened.on_network.clear()
        self._loop.traffic_changes(self._queue.now_ps)

    def _let_wait(self, instance: Instance) -> Callable[[], None] | None:
        """A wait of the batch that reuses the blocks of evicted chunks, until these have been copied, as in HiCache;
        returns the callback that ends it, ``None`` where no batch has to wait."""
        arrivals = self._loop.await_write(instance)
        if arrivals is None:
            return None
        return lambda: self._loop.set_arrivals(instance, arrivals, np.array([self._queue.now_ps]))

    def _write(self, write: Write, after: Callable[[], None] | None = None) -> None:
        """Begins a write; ``after`` is called when it is at its host."""
        if after is not None:
            self._after[write] = after
        for target in write.targets:
            target.tier.counts.stored_bytes += len(target.chunks) * target.access.chunk_bytes
        if write.graph is None:
            self._queue.schedule(write.read_ps, Priority.COMPLETION, lambda: self._settle(write, is_written=True))
            return
        handle = self._submit(write.graph)
        if handle is None:
            self._settle(write, is_written=False)
        else:
            self._writes[handle] = write

    def _settle(self, write: Write, *, is_written: bool) -> None:
        """The end of a write on the network: chunks are at their host, go on to its disks, or have failed."""
        for target in write.targets:
            if not is_written:
                target.tier.not_written(target.chunks)
            elif target.access.disk is None:
                target.tier.written(target.chunks)
            else:
                self._write_to_disk(target, target.access.disk)
        if (after := self._after.pop(write, None)) is not None:
            after()

    def _write_to_disk(self, target: Target, disk: Disk) -> None:
        at_ps = disk.write(len(target.chunks) * target.access.chunk_bytes, self._queue.now_ps)
        self._queue.schedule(at_ps, Priority.COMPLETION, lambda: target.tier.written(target.chunks))

    def _submit(self, graph: FlowGraph) -> GraphHandle | None:
        """Puts a graph on the network; ``None`` where links that are down leave no path."""
        now_ps = self._queue.now_ps
        try:
            handle = self._network.submit(graph, now_ps)
        except NoPath:
            return None
        self._loop.traffic_changes(now_ps)
        if len(graph) and (delay_ps := int(graph.delay_ps.max())) > 0:
            self._loop.traffic_changes(now_ps + delay_ps)
        return handle
