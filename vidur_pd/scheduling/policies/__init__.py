"""Policies by their names in ``engine.policy``, one file each; vLLM V1 decides in the core (``core/vllm_v1.hpp``).

``sglang`` follows SGLang, and ``trtllm`` TensorRT-LLM. Those of Vidur follow its rules (microsoft/vidur,
``vidur/scheduler/replica_scheduler``), not the engines' of today: the real ones have changed since. Where Vidur limits
a micro-batch, ``engine.max_seqs`` is the limit of a rank, and each of its pipeline stages gets an equal part.
"""

import importlib

from vidur_pd.config import CORE_POLICY, NAMED_POLICIES
from vidur_pd.scheduling.policy import Policy


def policy_named(name: str) -> type[Policy] | None:
    """The policy of that name; ``None`` for the one of the core."""
    if name == CORE_POLICY:
        return None
    found: type[Policy] = getattr(importlib.import_module(f"{__name__}.{name}"), NAMED_POLICIES[name])
    return found
