"""Batching: what a rank holds (``core/rank_state.hpp``), and the policies that decide over it."""

from typing import Literal

from vidur_pd._core import GapCounts, GroupBatch, RankState, ScheduledBatch, VllmV1
from vidur_pd.scheduling.asking import AskedPolicy
from vidur_pd.scheduling.drafts import Drafts
from vidur_pd.scheduling.policy import BrokenRule, Decision, Policy, RankView, RequestView, Section

Role = Literal["mixed", "prefill", "decode"]
"""Part of a request's life that an instance serves: all of it, up to the first token, or after a KV transfer."""

__all__ = [
    "AskedPolicy",
    "BrokenRule",
    "Decision",
    "Drafts",
    "GapCounts",
    "GroupBatch",
    "Policy",
    "RankState",
    "RankView",
    "RequestView",
    "Role",
    "ScheduledBatch",
    "Section",
    "VllmV1",
]
