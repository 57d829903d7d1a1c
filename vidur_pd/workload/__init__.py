"""Workloads: request traces, generators, and what may be done to them."""

from vidur_pd.config.workload import MixWorkload, SyntheticWorkload, TraceWorkload, WorkloadConfig
from vidur_pd.workload.loading import load_workload
from vidur_pd.workload.randomness import generator
from vidur_pd.workload.reading import read_trace
from vidur_pd.workload.workload import BlockHashes, Workload

__all__ = [
    "BlockHashes",
    "MixWorkload",
    "SyntheticWorkload",
    "TraceWorkload",
    "Workload",
    "WorkloadConfig",
    "generator",
    "load_workload",
    "read_trace",
]
