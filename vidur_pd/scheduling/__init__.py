"""Batching as the engine does it (``vidur_pd/core/scheduler.hpp``)."""

from vidur_pd._core import GapCounts, GroupBatch, GroupOutcome, Outcome, RankGroup, ScheduledBatch
from vidur_pd.scheduling.drafts import Drafts
from vidur_pd.scheduling.vllm_v1 import Role, VllmV1Scheduler

__all__ = [
    "Drafts",
    "GapCounts",
    "GroupBatch",
    "GroupOutcome",
    "Outcome",
    "RankGroup",
    "Role",
    "ScheduledBatch",
    "VllmV1Scheduler",
]
