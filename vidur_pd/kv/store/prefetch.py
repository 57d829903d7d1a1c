"""Prefetches of requests that queue: what lower tiers have of them comes to CPU memory before their turn.

Rules from SGLang 0.5.23's HiCache, python/sglang/srt/mem_cache/hiradix_cache.py (``prefetch_from_storage``,
``can_terminate_prefetch``) and managers/cache_controller.py (``storage_batch_size``). A request keeps its place in the
queue and is passed over until its prefetch has ended. What has not come by then is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from vidur_pd._core import Request
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.kv.store.rank_store import Piece, PrefetchPolicy, RankStore, Write

PIECE_CHUNKS: Final = 128
"""Chunks that are fetched at a time (``storage_batch_size``)."""

Put = Callable[[Write, Callable[[], None]], None]
"""Begins a write, and says what follows its end."""


@dataclass(slots=True, eq=False)
class Prefetch:
    """Prefetch of one request, piece by piece."""

    store: RankStore
    request: Request
    left: list[Piece] = field(default_factory=list)
    """Pieces that have not been begun."""


class Prefetches:
    """All prefetches of a cluster that are under way."""

    def __init__(self, queue: EventQueue, put: Put) -> None:
        self._queue, self._put = queue, put
        self._open: dict[int, Prefetch] = {}
        """By index of the request: prefetches that it waits for."""

    def begin(self, store: RankStore, request: Request) -> None:
        """A request is about to queue on a rank: begins its prefetch, for which it waits as long as policies say."""
        pieces = store.pieces(request, PIECE_CHUNKS)
        if not pieces:
            return
        prefetch = Prefetch(store, request, pieces)
        waits = [wait_ps for policy, tokens in _tokens_of(pieces) if (wait_ps := policy.wait_ps(tokens)) != 0]
        if waits:
            self._open[request.index] = prefetch
            store.rank.state.hold(request, is_held=True)
            if None not in waits:
                deadline_ps = self._queue.now_ps + sum(wait_ps for wait_ps in waits if wait_ps is not None)
                self._queue.schedule(deadline_ps, Priority.COMPLETION, lambda: self._end(prefetch))
        self._go_on(prefetch)

    def instance_down(self, instance: Instance) -> None:
        """Stops the prefetches of a failed instance, whose requests begin again elsewhere."""
        for prefetch in list(self._open.values()):
            if prefetch.store.rank.instance is instance:
                self._stop(prefetch)
                del self._open[prefetch.request.index]

    def end_all(self) -> bool:
        """Ends all waits, where nothing moves any more; returns whether a request waited."""
        waiting = list(self._open.values())
        for prefetch in waiting:
            self._end(prefetch)
        return bool(waiting)

    def _go_on(self, prefetch: Prefetch) -> None:
        """Begins the next piece, or ends the prefetch after the last one."""
        if not prefetch.left:
            self._end(prefetch)
            return
        write = prefetch.store.fetch(prefetch.left.pop(0), self._queue.now_ps)
        self._put(write, lambda: self._go_on(prefetch))

    def _end(self, prefetch: Prefetch) -> None:
        """Ends a wait: the request may run, with the tokens that have come."""
        self._stop(prefetch)
        if self._open.get(prefetch.request.index) is prefetch:
            del self._open[prefetch.request.index]
            rank = prefetch.store.rank
            rank.state.hold(prefetch.request, is_held=False)
            rank.instance.wake()

    def _stop(self, prefetch: Prefetch) -> None:
        """Cancels the pieces that have not been begun."""
        for piece in prefetch.left:
            prefetch.store.forget(piece)
        prefetch.left.clear()


def _tokens_of(pieces: list[Piece]) -> list[tuple[PrefetchPolicy, int]]:
    """(policy, tokens that it prefetches) of each tier."""
    tokens: dict[PrefetchPolicy, int] = {}
    for piece in pieces:
        policy = piece.access.prefetch
        assert policy is not None, "it has been asked"
        tokens[policy] = tokens.get(policy, 0) + piece.tokens
    return list(tokens.items())
