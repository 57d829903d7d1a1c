"""One thread for numpy's BLAS: matrices here are small, and its other threads do nothing but spin for work.

With two threads a fifth of the CPU time of a run goes there, and the last bits of its results follow their number,
hence that of the machine's processors. Who sets ``OPENBLAS_NUM_THREADS`` keeps that number.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from threadpoolctl import threadpool_limits

VARIABLE: Final = "OPENBLAS_NUM_THREADS"


def one_blas_thread() -> AbstractContextManager[object]:
    """From the call on for libraries that are loaded; as a context, to its end."""
    return nullcontext() if VARIABLE in os.environ else threadpool_limits(1, user_api="blas")


def one_blas_thread_from_now_on() -> None:
    """For the whole process: libraries that are loaded, those that will be, and processes that it starts."""
    one_blas_thread()
    os.environ.setdefault(VARIABLE, "1")
