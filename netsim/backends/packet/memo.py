"""Completed flow graphs, remembered: the same traffic on the same idle part of a fabric takes the same time again."""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from netsim._core import LinkLog
from netsim.backends.contract import FIRST_WINDOW_PS, Completion, FlowTimes, GraphHandle, LinkStats
from netsim.backends.packet.backend import LinkCounters, PacketBackend
from netsim.errors import BackendError
from netsim.flow import FlowGraph
from netsim.roce.config import RoceConfig

_PAYLOAD = [field.name for field in fields(LinkCounters)].index("payload_bytes")


@dataclass(frozen=True, slots=True, eq=False)
class _Remembered:
    """How a graph ran alone; times count from its submission."""

    start_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    counters: tuple[NDArray[np.int64], ...]
    """The fields of `LinkCounters`, each [canonical links]."""


@dataclass(slots=True, eq=False)
class _Graph:
    graph: FlowGraph
    at_ps: int
    key: bytes
    links: NDArray[np.uint32]
    """Canonical order."""
    inner: GraphHandle | None = None
    """In the backend beneath; ``None`` while it is replayed, and after."""
    replays: _Remembered | None = None
    counters_before: LinkCounters | None = None
    """Where it runs alone, for the first time."""
    has_begun: bool = False
    """Somebody has advanced while it was replayed."""
    is_over: bool = False


def remembering(backend: PacketBackend, roce: RoceConfig | None) -> PacketBackend | MemoisedBackend:
    """The backend, with a memory in front where the settings ask for it."""
    if roce is None or not roce.memoise:
        return backend
    return MemoisedBackend(backend, has_fixed_routes=roce.load_balancing == "ecmp")


class MemoisedBackend:
    """A packet backend that does not simulate twice what runs alone.

    A graph that is submitted while no other runs, nor packets of a cancelled or failed one, and that has the canonical
    form (``core/canonical.hpp``: traffic, routes of data and acknowledgements, capacities and latencies, up to the
    names of nodes and links) of one that has run alone is replayed. When something else is submitted meanwhile, the
    replay is taken back: the graph is simulated from its start up to now, and both go on together. So results are
    those of the backend beneath, with two exceptions: ECN marks of a replay are those of the first run, and
    acknowledgements that trail behind a completed graph do not count as traffic.

    Statistics of a replay are added when it completes, to a log of links evenly over its time. Once a link has failed,
    become slower or stormed, nothing is replayed any more.
    """

    def __init__(self, inner: PacketBackend, *, has_fixed_routes: bool) -> None:
        self._inner = inner
        self._has_fixed_routes = has_fixed_routes
        self._now_ps = 0
        self._graphs: dict[GraphHandle, _Graph] = {}
        self._by_inner: dict[GraphHandle, GraphHandle] = {}
        self._running = 0
        self._may_have_leftovers = False
        self._next = 0
        self._replaying: GraphHandle | None = None
        self._memory: dict[bytes, _Remembered] = {}
        self._keys: weakref.WeakKeyDictionary[FlowGraph, tuple[bytes, NDArray[np.uint32]]] = weakref.WeakKeyDictionary()
        self._replayed: list[NDArray[np.int64]] = []
        self._hits = 0
        self._link_log: LinkLog | None = None
        self._is_sound = True
        """The fabric is as it was when graphs were remembered."""

    @property
    def now_ps(self) -> int:
        self._inner.check_open()
        return self._now_ps

    @property
    def stepped(self) -> None:
        """Replays are known here alone."""
        return None

    @property
    def hits(self) -> int:
        """Graphs that were replayed to their end."""
        return self._hits

    def submit(self, graph: FlowGraph, at_ps: int) -> GraphHandle:
        """See `NetworkBackend.submit`."""
        if at_ps < self.now_ps:
            raise BackendError(f"submit: found a start at {at_ps} ps, expected no time before now, {self._now_ps} ps")
        key, links = self._key_of(graph) if self._is_sound else (b"", np.zeros(0, dtype=np.uint32))
        entry = _Graph(graph, at_ps, key, links)
        self._take_back_replay()
        is_alone = self._is_sound and self._running == 0 and not self._has_leftovers()
        if is_alone and key in self._memory:
            entry.replays = self._memory[key]
        else:
            self._catch_up()
            if is_alone:
                entry.counters_before = self._inner.counters()
            else:
                for other in self._graphs.values():
                    other.counters_before = None
            entry.inner = self._inner.submit(graph, at_ps)
        handle = GraphHandle(self._next)
        self._next += 1
        self._graphs[handle] = entry
        self._running += 1
        if entry.inner is None:
            self._replaying = handle
        else:
            self._by_inner[entry.inner] = handle
        return handle

    def advance(self, until_ps: int) -> list[Completion]:
        if self._replaying is None:
            return self._advance_inner(until_ps)
        if until_ps < self._now_ps:
            raise BackendError(f"advance: found {until_ps} ps, expected no time before now, {self._now_ps} ps")
        handle = self._replaying
        entry = self._graphs[handle]
        entry.has_begun = True
        due = self._due_ps(entry)
        if due is None or due > until_ps:
            self._now_ps = until_ps
            return []
        self._now_ps = due
        assert entry.replays is not None
        ends = entry.replays.end_ps + entry.at_ps
        flows = np.flatnonzero((ends == due) & entry.graph.notify)
        completions = [Completion(handle, int(flow), due) for flow in flows]
        if due == self._end_ps(entry):
            completions.append(Completion(handle, None, due))
            self._end_replay(handle)
        return completions

    def next_event_ps(self) -> int | None:
        if self._replaying is None:
            self._catch_up()
            return self._inner.next_event_ps()
        return self._due_ps(self._graphs[self._replaying])

    def cancel(self, handle: GraphHandle) -> None:
        entry = self._entry(handle)
        if entry.is_over:
            return
        self._take_back_replay()
        self._catch_up()
        assert entry.inner is not None
        self._inner.cancel(entry.inner)
        entry.is_over = True
        self._running -= 1
        self._may_have_leftovers = True

    def flow_times(self, handle: GraphHandle) -> FlowTimes:
        entry = self._entry(handle)
        if entry.inner is not None:
            return self._inner.flow_times(entry.inner)
        assert entry.replays is not None
        start, end = (
            np.where(times + entry.at_ps <= self._now_ps, times + entry.at_ps, -1)
            for times in (entry.replays.start_ps, entry.replays.end_ps)
        )
        return FlowTimes(start, end, np.zeros(len(start), dtype=np.bool_))

    def sent_bytes(self, handle: GraphHandle) -> NDArray[np.int64]:
        entry = self._entry(handle)
        if entry.inner is None and not entry.is_over:
            self._take_back_replay()
        if entry.inner is None:
            return np.asarray(entry.graph.size_bytes, dtype=np.int64)
        self._catch_up()
        return self._inner.sent_bytes(entry.inner)

    def set_link_up(self, link: int, is_up: bool) -> None:
        """See `PacketBackend.set_link_up`."""
        self._simulate_from_now()
        self._inner.set_link_up(link, is_up)

    def set_capacity_share(self, link: int, share: float) -> None:
        """See `PacketBackend.set_capacity_share`."""
        self._simulate_from_now()
        self._inner.set_capacity_share(link, share)

    def set_storm(self, link: int, priority: int, is_storming: bool) -> None:
        """See `PacketBackend.set_storm`."""
        self._simulate_from_now()
        self._inner.set_storm(link, priority, is_storming)

    def forget(self, handle: GraphHandle) -> None:
        entry = self._entry(handle)
        if not entry.is_over:
            raise BackendError(f"forget: graph {handle} is running, expected a completed or cancelled one")
        if entry.inner is not None:
            self._inner.forget(entry.inner)
            del self._by_inner[entry.inner]
        del self._graphs[handle]

    def link_stats(self, links: NDArray[np.int64] | None = None) -> LinkStats:
        counters = self.counters()
        wanted = slice(None) if links is None else links
        return LinkStats(counters.payload_bytes[wanted].astype(np.float64), counters.busy_ps[wanted])

    def log_links(self, windows: int, window_ps: int = FIRST_WINDOW_PS) -> LinkLog:
        """See `netsim.backends.contract.LogsLinks`."""
        self._simulate_so_far()
        self._link_log = self._inner.log_links(windows, window_ps)
        return self._link_log

    def update_link_log(self) -> None:
        """See `netsim.backends.contract.LogsLinks`; of a graph that is being replayed, nothing is known yet."""
        self._inner.update_link_log()

    def counters(self) -> LinkCounters:
        """See `PacketBackend.counters`."""
        counters = self._inner.counters()
        if not self._replayed:
            return counters
        names = [field.name for field in fields(LinkCounters)]
        return LinkCounters(*(getattr(counters, name) + more for name, more in zip(names, self._replayed, strict=True)))

    def close(self) -> None:
        self._inner.close()

    def _entry(self, handle: GraphHandle) -> _Graph:
        self._inner.check_open()
        if handle not in self._graphs:
            raise BackendError(f"unknown handle: found {handle}, expected one that submit returned")
        return self._graphs[handle]

    def _key_of(self, graph: FlowGraph) -> tuple[bytes, NDArray[np.uint32]]:
        known = self._keys.get(graph)
        if known is None:
            form, links = self._inner.canonical(graph, names_by_use=self._has_fixed_routes)
            known = hashlib.blake2b(form.tobytes(), digest_size=32).digest(), links
            self._keys[graph] = known
        return known

    def _simulate_so_far(self) -> None:
        self._take_back_replay()
        self._catch_up()

    def _simulate_from_now(self) -> None:
        """The fabric changes: nothing that was remembered holds any more."""
        self._simulate_so_far()
        self._is_sound = False
        for entry in self._graphs.values():
            entry.counters_before = None

    def _catch_up(self) -> None:
        """Brings the clock of the backend beneath to ours; nothing can complete on the way."""
        if self._inner.now_ps < self._now_ps:
            self._inner.advance(self._now_ps)

    def _has_leftovers(self) -> bool:
        """Packets of cancelled or failed graphs are under way; asked while no graph runs."""
        if self._may_have_leftovers:
            self._catch_up()
            self._may_have_leftovers = self._inner.next_event_ps() is not None
        return self._may_have_leftovers

    def _advance_inner(self, until_ps: int) -> list[Completion]:
        self._catch_up()
        completions = self._inner.advance(until_ps)
        self._now_ps = self._inner.now_ps
        result = []
        for completion in completions:
            handle = self._by_inner[completion.handle]
            result.append(Completion(handle, completion.flow, completion.at_ps, completion.is_failed))
            if completion.flow is None:
                self._end_run(handle, completion.is_failed)
        return result

    def _end_run(self, handle: GraphHandle, is_failed: bool) -> None:
        entry = self._graphs[handle]
        entry.is_over = True
        self._running -= 1
        self._may_have_leftovers |= is_failed
        before, entry.counters_before = entry.counters_before, None
        if before is None or is_failed or not len(entry.graph):
            return
        assert entry.inner is not None
        times, after = self._inner.flow_times(entry.inner), self._inner.counters()
        self._memory[entry.key] = _Remembered(
            times.start_ps - entry.at_ps,
            times.end_ps - entry.at_ps,
            tuple((getattr(after, f.name) - getattr(before, f.name))[entry.links] for f in fields(LinkCounters)),
        )

    def _end_ps(self, entry: _Graph) -> int:
        assert entry.replays is not None
        return entry.at_ps + int(entry.replays.end_ps.max())

    def _due_ps(self, entry: _Graph) -> int | None:
        """The next completion of a replay that has not been reported."""
        assert entry.replays is not None
        ends = entry.replays.end_ps[entry.graph.notify] + entry.at_ps
        later = ends[ends > self._now_ps]
        end = self._end_ps(entry)
        return min(int(later.min()), end) if len(later) else end

    def _end_replay(self, handle: GraphHandle) -> None:
        entry = self._graphs[handle]
        assert entry.replays is not None
        entry.is_over = True
        self._running -= 1
        self._replaying = None
        self._hits += 1
        if not self._replayed:
            links = len(self._inner.counters().packets)
            self._replayed = [np.zeros(links, dtype=np.int64) for _ in fields(LinkCounters)]
        for total, more in zip(self._replayed, entry.replays.counters, strict=True):
            total[entry.links] += more
        if self._link_log is not None:
            payload = entry.replays.counters[_PAYLOAD].astype(np.float64)
            span_ps = entry.at_ps, self._end_ps(entry)
            self._link_log.spread(entry.graph.traffic, entry.links.astype(np.int64), payload, span_ps)

    def _take_back_replay(self) -> None:
        """Simulates what was replayed so far, as it will not stay alone."""
        if self._replaying is None:
            return
        entry = self._graphs[self._replaying]
        entry.inner = self._inner.submit(entry.graph, entry.at_ps)
        self._by_inner[entry.inner] = self._replaying
        entry.replays = None
        self._replaying = None
        while entry.has_begun and self._inner.advance(self._now_ps):
            pass  # what completes here was reported by the replay
