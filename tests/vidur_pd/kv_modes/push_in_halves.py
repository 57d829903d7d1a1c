"""A mode of KV transfers as a user would write it; the conformance suite runs it beside those that are built in."""

from vidur_pd.kv.transfer.modes import Transfer, TransferMode


class PushInHalves(TransferMode):
    """The first half of a prompt leaves while or after it is computed, the rest with the end of the prefill."""

    def on_routed(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_launched(self, transfer: Transfer) -> None:
        self._send_half(transfer)

    def on_prefilled(self, transfer: Transfer) -> None:
        if transfer.has_room:
            transfer.send(transfer.context_tokens)

    def on_room(self, transfer: Transfer) -> None:
        if transfer.is_prefilled:
            transfer.send(transfer.context_tokens)
        else:
            self._send_half(transfer)

    def _send_half(self, transfer: Transfer) -> None:
        half = transfer.context_tokens // 2
        if transfer.has_room and transfer.launched_tokens >= half:
            transfer.send(half)
