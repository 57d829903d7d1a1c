"""Push: the prefill side writes once a prompt is computed, as in vLLM's Mooncake connector and Splitwise."""

from __future__ import annotations

from vidur_pd.kv.transfer.modes.mode import Transfer, TransferMode


class Push(TransferMode):
    """Blocks are reserved from the arrival of the request on; all KV travels once the prompt is computed."""

    def on_routed(self, transfer: Transfer) -> None:
        transfer.reserve()

    def on_prefilled(self, transfer: Transfer) -> None:
        if transfer.has_room:
            transfer.send(transfer.context_tokens)

    def on_room(self, transfer: Transfer) -> None:
        if transfer.is_prefilled:
            transfer.send(transfer.context_tokens)
