"""Chunk-wise push: each chunk of a prompt leaves once it is computed, as in SGLang."""

from __future__ import annotations

from vidur_pd.kv.transfer.modes.mode import Transfer, TransferMode


class Chunked(TransferMode):
    """Blocks are reserved from the arrival of the request on; a chunk travels while the next ones are computed."""

    def on_routed(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_launched(self, transfer: Transfer) -> None:
        if transfer.has_room:
            transfer.send(transfer.computed_tokens)

    def on_prefilled(self, transfer: Transfer) -> None:
        if transfer.has_room:
            transfer.send(transfer.context_tokens)

    def on_room(self, transfer: Transfer) -> None:
        transfer.send(transfer.computed_tokens)
