"""Tiers of KV behind the prefix caches of instances: CPU memory, disks, and stores in the network."""

from vidur_pd.kv.store.eviction import Eviction

__all__ = ["Eviction"]
