"""Destinations of KV transfers: decode ranks are chosen, asked for blocks, and released."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.kv.transfer.open_transfers import OpenTransfers
from vidur_pd.kv.transfer.transfer import KvTransfer


class Destinations:
    """Destinations of transfers, and the transfers that wait for blocks or for a decode instance in service."""

    def __init__(self, transfers: OpenTransfers) -> None:
        self._transfers = transfers
        self._without_room: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """By index of the decode instance: number of requests that wait for blocks, by index of the rank; no zeros."""
        self._without_instance: dict[int, KvTransfer] = {}
        """Transfers that need a destination while no decode instance is in service, by index of the request."""
        self._some_reserve_early = False
        """Whether any request was queued for blocks before its prompt was computed."""

    def is_reserved(self, transfer: KvTransfer) -> bool:
        """Whether the transfer has a destination or waits for one."""
        return transfer.destination is not None or transfer.request.index in self._without_instance

    def assign(self, transfer: KvTransfer, rank: Rank) -> None:
        """Queues the request for blocks on a decode rank."""
        request = transfer.request
        self._transfers.assign(transfer, rank)
        self._some_reserve_early |= not transfer.is_prefilled
        request.decode_instance = rank.instance.index
        rank.state.add_remote(request)
        self._wait_for_room(rank, 1)
        rank.instance.wake()

    def wait_for_instance(self, transfer: KvTransfer) -> None:
        """Queues a transfer until some decode instance is back in service."""
        self._without_instance[transfer.request.index] = transfer

    @property
    def some_wait_for_instance(self) -> bool:
        """Whether any decode instance in service would be welcome."""
        return bool(self._without_instance)

    def take_waiting(self) -> list[KvTransfer]:
        """Empties the queue of transfers that wait for an instance, and returns them in order."""
        waiting, self._without_instance = list(self._without_instance.values()), {}
        return waiting

    def admit(self, instance: Instance) -> Iterator[KvTransfer]:
        """Reserves blocks for the requests that fit; yields their transfers, one by one."""
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

    def without_way(self, instance: Instance) -> list[KvTransfer]:
        """Transfers of prefilled requests that wait for blocks on an instance some of whose own KV waits for others.

        Instances that prefill and decode could so wait for each other in a circle. It is never closed if its last part
        is not: these requests have to go on where they are.
        """
        transfers = self._transfers.at(instance)
        waiting = [
            each for each in transfers if each.is_prefilled and not each.has_room and each.destination is not None
        ]
        holds = any(each.source.instance is instance for each in waiting)
        return [each for each in waiting if each.goes_to(instance)] if holds else []

    def let_pass(self, transfer: KvTransfer, *, was_reserved: bool) -> None:
        """Moves a prefilled request without blocks to the front of the queue, if others queued before their prefill.

        Otherwise there could be a deadlock: the request holds KV on the prefill instance that others need to go on,
        and waits for blocks that these hold on the decode rank.
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

        Requests that are not prefilled and have no KV under way lose their blocks, as many as it takes.
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
        """Tries again to make room for prefilled requests, as others can now give up blocks on this rank."""
        for stuck in self._transfers.stuck_at(rank):
            self._make_room(stuck)

    def leave(self, transfer: KvTransfer) -> None:
        """Releases the destination of a failed transfer, with its blocks, if it has one."""
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
        """The instance has failed: none of its requests waits for blocks any more."""
        self._without_room[instance.index].clear()
        instance.set_waits_for_room(False)

    def _wait_for_room(self, rank: Rank, more: int) -> None:
        """Adds to the number of requests that wait for blocks on a rank of a decode instance."""
        waiting = self._without_room[rank.instance.index]
        requests = waiting.pop(rank.index, 0) + more
        if requests:
            waiting[rank.index] = requests
        rank.instance.set_waits_for_room(bool(waiting))
