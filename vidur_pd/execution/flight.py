"""An iteration, or a run of equal decode iterations, in progress on an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vidur_pd.events import Event
from vidur_pd.execution.executor import StagePrice

if TYPE_CHECKING:
    from vidur_pd.instance import Instance
    from vidur_pd.scheduling import GroupBatch


class Flight:
    """Work between a scheduling decision and its result; its owner is the instance that launched it.

    ``batch`` holds the micro-batches of the data-parallel ranks. A run of several steps repeats the running decodes of
    every rank; it has no batch because nothing is decided until it ends.
    """

    __slots__ = (
        "batch",
        "compute_ps",
        "ends_ps",
        "event",
        "instance",
        "kv_blocks",
        "prices",
        "stage_begins_ps",
        "stage_ends_ps",
        "start_ps",
        "stretch",
    )

    def __init__(
        self,
        instance: Instance,
        batch: GroupBatch | None,
        prices: tuple[StagePrice, ...],
        compute_ps: NDArray[np.int64],
    ) -> None:
        self.instance = instance
        self.batch = batch
        self.prices = prices
        """[pipeline stages]"""
        self.start_ps = 0
        self.compute_ps = compute_ps
        """[steps] compute time of each step, summed over pipeline stages."""
        self.ends_ps: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """[steps] end of each step, as far as known; set when launched."""
        self.stage_begins_ps: list[int] = []
        """[stages] with pipeline parallelism: when the flight enters each stage."""
        self.stage_ends_ps: list[int] = []
        """[stages] with pipeline parallelism: when it leaves each stage."""
        self.stretch = [1.0] * len(prices)
        """[stages] how much longer communication takes than on an idle fabric."""
        self.kv_blocks = 0
        """Blocks held by the instance at the start."""
        self.event: Event | None = None

    @property
    def steps(self) -> int:
        return len(self.compute_ps)

    @property
    def is_run(self) -> bool:
        """Whether this is a run of decode iterations rather than one scheduled micro-batch."""
        return self.batch is None

    @property
    def is_pipelined(self) -> bool:
        """Whether it passes through more than one stage."""
        return len(self.prices) > 1

    @property
    def communication_ps(self) -> int:
        """Communication time of one step at the present stretch, over all stages."""
        return sum(map(self.stage_communication_ps, range(len(self.prices))))

    def stage_communication_ps(self, stage: int) -> int:
        """Communication time of one step in one stage at the present stretch, as far as compute does not hide it."""
        return self.prices[stage].exposed_ps(self.stretch[stage])

    def keep_steps(self, steps: int) -> None:
        """Drops the steps after the first ``steps``."""
        self.compute_ps = self.compute_ps[:steps]
        self.ends_ps = self.ends_ps[:steps]
