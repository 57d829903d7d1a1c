"""Pull: the decode side reserves blocks after the prefill and reads, as vLLM's NIXL connector and DistServe do."""

from __future__ import annotations

from vidur_pd.kv.transfer.modes.mode import Transfer, TransferMode


class Pull(TransferMode):
    """Blocks are reserved once the prompt is computed; all KV travels as soon as they are."""

    def on_prefilled(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_room(self, transfer: Transfer) -> None:
        transfer.send(transfer.context_tokens)
