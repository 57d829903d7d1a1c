"""Modes of KV transfers, one file each: when the decode side reserves blocks, and when which KV is sent.

Public names: `TransferMode`, the contract of a mode, and `Transfer`, one request as a mode sees it.
"""

from vidur_pd.kv.transfer.modes.mode import Transfer, TransferMode

__all__ = ["Transfer", "TransferMode"]
