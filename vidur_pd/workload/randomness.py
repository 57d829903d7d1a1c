"""Random streams: one independent generator per consumer, all derived from one root seed."""

from __future__ import annotations

import hashlib

import numpy as np

from boundary.errors import InputError


def generator(root_seed: int, name: str) -> np.random.Generator:
    """The stream of the consumer ``name`` under ``root_seed``.

    The SHA-256 digest of the name keys a ``SeedSequence``, so a stream depends on nothing but these two
    arguments: not on the process, on ``PYTHONHASHSEED``, or on which other streams exist or were drawn from.

    Raises:
        InputError: the seed is negative.
    """
    if root_seed < 0:
        raise InputError(f"seed: found {root_seed}, expected a non-negative integer")
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(root_seed, spawn_key=words)))
