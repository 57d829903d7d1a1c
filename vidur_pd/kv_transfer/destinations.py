"""Decode ranks that KV transfers go to: chosen, asked for blocks, and left again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from vidur_pd.cluster.instance import Instance, Rank
from vidur_pd.kv_transfer.open_transfers import OpenTransfers
from vidur_pd.kv_transfer.transfer import KvTransfer
from vidur_pd.workload.request import Request


class Destinations:
    """Where transfers go, and which of them wait for blocks there or for an instance to come into service."""

    def __init__(self, transfers: OpenTransfers, choose: Callable[[Request], Rank | None]) -> None:
        """``choose`` gives nothing while no decode instance is in service."""
        self._transfers = transfers
        self._choose = choose
        self._without_room: dict[int, Counter[int]] = defaultdict(Counter)
        """By index of the decode instance: requests that wait for blocks, by number of the rank; no zeros."""
        self._without_instance: dict[int, KvTransfer] = {}
        """Transfers that need a destination while no decode instance is in service, by index of the request."""
        self._some_reserve_early = False
        """Some request has been queued for blocks before its prompt was computed."""

    def is_reserved(self, transfer: KvTransfer) -> bool:
        """The transfer has a destination, or waits for one."""
        return transfer.destination is not None or transfer.request.index in self._without_instance

    def assign(self, transfer: KvTransfer) -> bool:
        """Queues the request for blocks on a decode rank; False while no instance is in service."""
        request = transfer.request
        rank = self._choose(request)
        if rank is None:
            return False
        self._transfers.assign(transfer, rank)
        self._some_reserve_early |= not transfer.is_prefilled
        request.decode_instance = rank.instance.index
        rank.state.add_remote(request)
        self._wait_for_room(rank, 1)
        rank.instance.wake()
        return True

    def wait_for_instance(self, transfer: KvTransfer) -> None:
        """The transfer gets a destination once some instance is back."""
        self._without_instance[transfer.request.index] = transfer

    def take_waiting(self) -> list[KvTransfer]:
        """Those that have waited for an instance, in their order; none waits any more."""
        waiting, self._without_instance = list(self._without_instance.values()), {}
        return waiting

    def admit(self, instance: Instance) -> Iterator[KvTransfer]:
        """Reserves blocks for the requests that fit: their transfers, one by one."""
        waiting = self._without_room[instance.index]
        for rank in instance.ranks:
            if rank.index not in waiting:
                continue
            for request in rank.state.admit_remote():
                self._wait_for_room(rank, -1)
                transfer = self._transfers[request]
                transfer.has_room = True
                transfer.sent_tokens = request.resident_tokens
                self._transfers.unstick(transfer)
                yield transfer

    def let_pass(self, transfer: KvTransfer, *, was_reserved: bool) -> None:
        """A request is prefilled: without room it goes before others if it or some of them are queued since earlier.

        One that has overtaken them in the prefill would otherwise hold KV there that they need to go on, and wait for
        blocks that they hold here.
        """
        rank = transfer.destination
        if transfer.has_room or rank is None:
            return
        if was_reserved or (self._some_reserve_early and self._some_not_prefilled(rank)):
            self._make_room(transfer)

    def _some_not_prefilled(self, rank: Rank) -> bool:
        return any(not other.is_prefilled for other in self._transfers.to(rank))

    def _make_room(self, transfer: KvTransfer) -> None:
        """Puts a request first in the queue for blocks.

        Those that are not prefilled and have no KV under way lose theirs as far as it takes.
        """
        self._transfers.stick(transfer)
        rank = transfer.destination
        assert rank is not None
        losing = {
            other.request.index: other
            for other in self._transfers.to(rank)
            if other.has_room and not other.is_prefilled and not other.is_under_way
        }
        candidates = [other.request for other in losing.values()]
        for request in rank.state.make_room_for_remote(transfer.request, candidates):
            self._transfers.lose_room(losing[request.index])
            self._wait_for_room(rank, 1)
        rank.instance.note_kv_use()
        rank.instance.wake()

    def try_stuck(self, rank: Rank) -> None:
        """Requests may lose blocks here now that could not before."""
        for stuck in self._transfers.stuck_at(rank):
            self._make_room(stuck)

    def leave(self, transfer: KvTransfer) -> None:
        """The transfer leads nowhere: its destination, if it has one, lets go of blocks and request."""
        self._without_instance.pop(transfer.request.index, None)
        rank = transfer.destination
        if rank is None:
            return
        if not transfer.has_room:
            self._wait_for_room(rank, -1)
        self._transfers.lose_destination(transfer)
        rank.state.abandon_remote(transfer.request)
        rank.instance.note_kv_use()
        rank.instance.wake()

    def instance_down(self, instance: Instance) -> None:
        """The instance has forgotten all requests."""
        self._without_room[instance.index].clear()
        instance.set_waits_for_room(False)

    def _wait_for_room(self, rank: Rank, more: int) -> None:
        """So many more requests wait for blocks on a rank of a decode instance."""
        waiting = self._without_room[rank.instance.index]
        waiting[rank.index] += more
        if not waiting[rank.index]:
            del waiting[rank.index]
        rank.instance.set_waits_for_room(bool(waiting))
