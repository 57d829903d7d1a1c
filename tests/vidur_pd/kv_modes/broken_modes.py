"""Modes of KV transfers that break a rule of the contract each."""

from vidur_pd.kv.transfer.modes import Transfer, TransferMode


class SendsEarly(TransferMode):
    """Sends a whole prompt while its first chunk is computed."""

    def on_routed(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_launched(self, transfer: Transfer) -> None:
        if transfer.has_room:
            transfer.send(transfer.context_tokens)

    def on_prefilled(self, transfer: Transfer) -> None: ...

    def on_room(self, transfer: Transfer) -> None: ...


class SendsNowhere(TransferMode):
    """Sends before any decode rank has been asked for blocks."""

    def on_prefilled(self, transfer: Transfer) -> None:
        transfer.send(transfer.context_tokens)

    def on_room(self, transfer: Transfer) -> None: ...


class SendsTooMuch(TransferMode):
    """Sends a token more than there is."""

    def on_prefilled(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_room(self, transfer: Transfer) -> None:
        transfer.send(transfer.context_tokens + 1)


class ReservesNothing(TransferMode):
    """Never asks for blocks."""

    def on_prefilled(self, transfer: Transfer) -> None: ...

    def on_room(self, transfer: Transfer) -> None: ...


class SendsLess(TransferMode):
    """Keeps the last token."""

    def on_prefilled(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_room(self, transfer: Transfer) -> None:
        transfer.send(transfer.context_tokens - 1)


class Raises(TransferMode):
    """Has a defect."""

    def on_prefilled(self, transfer: Transfer) -> None:
        raise KeyError(transfer.request.request_id)

    def on_room(self, transfer: Transfer) -> None: ...


class Asserts(TransferMode):
    """Expects what is not so."""

    def on_prefilled(self, transfer: Transfer) -> None:
        assert transfer.sent_tokens > 0, f"prefix of {transfer.sent_tokens} tokens"

    def on_room(self, transfer: Transfer) -> None: ...


class Exits(TransferMode):
    """Ends the process, as if all were well."""

    def on_prefilled(self, transfer: Transfer) -> None:
        raise SystemExit(0)

    def on_room(self, transfer: Transfer) -> None: ...


class SendsNoNumber(TransferMode):
    """Sends half a token."""

    def on_prefilled(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_room(self, transfer: Transfer) -> None:
        transfer.send(transfer.context_tokens / 2)  # type: ignore[arg-type]
