"""Runs of iterations in which one rank decodes the same requests: how long they can be, and their effect at once."""

from __future__ import annotations

import numpy as np

from vidur_pd.kv import BlockPool
from vidur_pd.request import COMPUTED, TOKENS
from vidur_pd.scheduling.running import END, PROMPT, RunningTable


def count_decode_steps(running: RunningTable, pool: BlockPool) -> int:
    """Iterations that decode one token of every running request before one of them ends or lacks a KV block.

    0 if a request has more than one token to compute, or still part of its prompt.
    """
    counters = running.counters[:, running.order]
    computed = counters[COMPUTED]
    if (counters[TOKENS] - computed != 1).any() or (computed < counters[PROMPT]).any():
        return 0
    steps = int((counters[END] - counters[TOKENS]).min()) - 1
    fits, exceeds = 0, steps + 1
    while exceeds - fits > 1:
        trial = steps if exceeds > steps else (fits + exceeds) // 2
        if int(running.missing_blocks(computed + trial).sum()) <= pool.free_blocks:
            fits = trial
        else:
            exceeds = trial
    return fits


def advance_decodes(running: RunningTable, pool: BlockPool, steps: int) -> None:
    """Decode ``steps`` tokens of every running request; the blocks for them are free.

    Blocks filled on the way get their keys when the request leaves: only the request itself could hit them before.
    """
    computed = running.counters[COMPUTED, running.order] + steps
    missing = running.missing_blocks(computed)
    for position in np.flatnonzero(missing).tolist():
        pool.allocate(running.requests[position], int(computed[position]))
    running.add_blocks(missing)
    running.counters[COMPUTED, running.order] = computed
    running.counters[TOKENS, running.order] += steps
