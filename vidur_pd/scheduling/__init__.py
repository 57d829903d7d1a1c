"""Which requests compute how many tokens in the next iteration."""

from vidur_pd.scheduling.batch import Outcome, Role, ScheduledBatch
from vidur_pd.scheduling.drafts import Drafts
from vidur_pd.scheduling.vllm_v1 import VllmV1Scheduler

__all__ = ["Drafts", "Outcome", "Role", "ScheduledBatch", "VllmV1Scheduler"]
