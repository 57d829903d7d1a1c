"""Policies by their names in ``engine.policy``, one file each; vLLM V1 decides in the core (``core/vllm_v1.hpp``).

``sglang`` follows SGLang. Those of Vidur follow its rules (microsoft/vidur, ``vidur/scheduler/replica_scheduler``), not
the engines' of today: the real ones have changed since. Where Vidur limits a micro-batch, ``engine.max_seqs`` is the
limit of a rank, and each of its pipeline stages gets an equal part.
"""

import importlib
from typing import Final

from vidur_pd.scheduling.policy import Policy

POLICIES: Final = {
    "faster_transformer": "FasterTransformer",
    "lightllm": "LightLlm",
    "orca": "Orca",
    "sarathi": "Sarathi",
    "sglang": "Sglang",
    "vllm_v0": "VllmV0",
}
"""Module in this folder, and the class in it."""


def policy_named(name: str) -> type[Policy] | None:
    """The policy of that name; ``None`` for the one of the core."""
    if name not in POLICIES:
        return None
    found: type[Policy] = getattr(importlib.import_module(f"{__name__}.{name}"), POLICIES[name])
    return found
