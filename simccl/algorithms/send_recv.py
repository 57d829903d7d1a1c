"""Send and receive between neighbours: every rank sends to the next rank and receives from the previous one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def neighbour_matrix(size_bytes: int, ranks: int) -> NDArray[np.int64]:
    """[ranks, ranks] bytes from each rank to each: ``size_bytes`` to the next rank, the last one's to rank 0.

    nccl-tests 2.19 (``sendrecv_perf``) uses this pattern. For a single pair, as between pipeline stages, pass a matrix
    with one entry to `simccl.all_to_all_v`.
    """
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    rank = np.arange(ranks)
    matrix[rank, (rank + 1) % ranks] = size_bytes
    return matrix
