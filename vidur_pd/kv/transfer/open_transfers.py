"""The transfers that are open, found by request and by the ranks and instances at their ends."""

from __future__ import annotations

from collections import defaultdict

from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.kv.transfer.transfer import Actions, KvTransfer
from vidur_pd.workload.request import Request


class OpenTransfers:
    """Transfers in the order in which they began; those of one rank or instance are found without a search."""

    def __init__(self) -> None:
        self._of_request: dict[int, KvTransfer] = {}
        self._begun = 0
        self._from: defaultdict[int, dict[int, KvTransfer]] = defaultdict(dict)
        """By index of the prefill instance, then by number of the transfer."""
        self._to: defaultdict[Rank, dict[int, KvTransfer]] = defaultdict(dict)
        """By decode rank, then by number of the transfer."""
        self._stuck: defaultdict[Rank, dict[int, KvTransfer]] = defaultdict(dict)
        """The same of prefilled requests that their decode rank has no blocks for yet, in the order of their trying."""

    def __len__(self) -> int:
        return len(self._of_request)

    def __getitem__(self, request: Request) -> KvTransfer:
        return self._of_request[request.index]

    def get(self, request: Request) -> KvTransfer | None:
        """The transfer of a request, if it is between two instances."""
        return self._of_request.get(request.index)

    def involve(self, instance: Instance) -> bool:
        """Whether any is from or to the instance."""
        return bool(self._from.get(instance.index)) or any(self._to.get(rank) for rank in instance.ranks)

    def all(self) -> list[KvTransfer]:
        return list(self._of_request.values())

    def begin(self, request: Request, source: Rank, actions: Actions, *, travels: bool) -> KvTransfer:
        """A new transfer, without a destination."""
        self._begun += 1
        transfer = KvTransfer(self._begun, request, source, actions, travels)
        self._of_request[request.index] = transfer
        self._from[source.instance.index][transfer.number] = transfer
        return transfer

    def end(self, transfer: KvTransfer) -> None:
        """The transfer is over."""
        self.unstick(transfer)
        del self._of_request[transfer.request.index]
        del self._from[transfer.source.instance.index][transfer.number]
        if transfer.destination is not None:
            del self._to[transfer.destination][transfer.number]

    def assign(self, transfer: KvTransfer, destination: Rank) -> None:
        """The transfer, which has no destination, gets one."""
        transfer.destination = destination
        self._to[destination][transfer.number] = transfer

    def lose_destination(self, transfer: KvTransfer) -> None:
        """What the destination had of the request is gone, or of no use."""
        self.unstick(transfer)
        if transfer.destination is not None:
            del self._to[transfer.destination][transfer.number]
        transfer.destination = None
        self.lose_room(transfer)

    def lose_room(self, transfer: KvTransfer) -> None:
        """The destination holds no blocks for the request any more: all of its KV has to be sent."""
        transfer.has_room = transfer.is_state_sent = False
        transfer.sent_tokens = 0

    def stick(self, transfer: KvTransfer) -> None:
        """The destination has no blocks for the request, which is prefilled."""
        assert transfer.destination is not None
        self._stuck[transfer.destination][transfer.number] = transfer

    def unstick(self, transfer: KvTransfer) -> None:
        """The destination has blocks, or is no destination any more."""
        if transfer.destination is not None:
            self._stuck[transfer.destination].pop(transfer.number, None)

    def at(self, instance: Instance) -> list[KvTransfer]:
        """Those from and to an instance."""
        found = dict(self._from[instance.index])
        for rank in instance.ranks:
            found |= self._to[rank]
        return [found[number] for number in sorted(found)]

    def to(self, rank: Rank) -> list[KvTransfer]:
        """Those to a decode rank."""
        found = self._to[rank]
        return [found[number] for number in sorted(found)]

    def stuck_at(self, rank: Rank) -> list[KvTransfer]:
        """Those that a decode rank has no blocks for."""
        return list(self._stuck[rank].values())
