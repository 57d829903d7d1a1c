"""Planner: how many instances of each pool serve, over time."""

from vidur_pd.cluster.planner.planner import EngineRates, Observation, Planner, PoolView

__all__ = ["EngineRates", "Observation", "Planner", "PoolView"]
