"""The KV cache on its way from prefill to decode instances."""

from vidur_pd.handoff.handoff import Handoff
from vidur_pd.handoff.wire import FlowRow, KvWire

__all__ = ["FlowRow", "Handoff", "KvWire"]
