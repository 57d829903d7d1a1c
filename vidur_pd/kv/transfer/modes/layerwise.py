"""Layer-wise push: each layer leaves as soon as it is computed, as in Mooncake, and in Splitwise for long prompts."""

from __future__ import annotations

from vidur_pd.kv.transfer.modes.mode import Transfer, TransferMode


class Layerwise(TransferMode):
    """Blocks are reserved from the arrival of the request on; the KV of a chunk travels while the chunk is computed."""

    def on_routed(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_launched(self, transfer: Transfer) -> None:
        if transfer.has_room:
            transfer.send(transfer.launched_tokens)

    def on_prefilled(self, transfer: Transfer) -> None:
        if transfer.has_room:
            transfer.send(transfer.context_tokens)

    def on_room(self, transfer: Transfer) -> None:
        transfer.send(transfer.launched_tokens)
