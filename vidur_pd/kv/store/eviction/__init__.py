"""Eviction from a tier: the interface, and the policies that come with the simulator, one file each."""

from vidur_pd.kv.store.eviction.policy import Eviction

__all__ = ["Eviction"]
