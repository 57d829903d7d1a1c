"""Workers that evaluate points: processes of this machine, or those of a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_sentinel
from typing import Any, Protocol

from boundary.blas_threads import one_blas_thread_from_now_on
from boundary.errors import Failure
from vidur_pd.search.evaluation.evaluation import Evaluator, Task
from vidur_pd.search.evaluation.outcome import Outcome
from vidur_pd.search.space.space import Space

_evaluator: Evaluator | None = None


class Workers(Protocol):
    """Evaluate tasks, in whatever order they are done."""

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Each task with its outcome, as soon as it is known."""
        ...

    def close(self) -> None:
        """Ends the work."""
        ...


class InThisProcess:
    """One after another."""

    def __init__(self, space: Space) -> None:
        self._evaluator = Evaluator(space)

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            yield task, self._evaluator(task)

    def close(self) -> None:
        pass


class Processes:
    """Processes of this machine, each of one thread; they end with this one, however it ends."""

    def __init__(self, space: Space, number: int) -> None:
        # Not forked: numpy's and the core's threads do not survive that.
        self._pool = ProcessPoolExecutor(
            number, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(space,)
        )

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        open_tasks: dict[Future[Outcome], Task] = {self._pool.submit(_evaluate, task): task for task in tasks}
        while open_tasks:
            done, _ = wait(open_tasks, return_when=FIRST_COMPLETED)
            for each in done:
                try:
                    yield open_tasks.pop(each), each.result()
                except BrokenProcessPool:
                    raise Failure(
                        "search: a worker process was killed (out of memory?), expected it to finish; the study keeps "
                        "what is done: go on with fewer --workers"
                    ) from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in (self._pool._processes or {}).values():
            process.terminate()


class OnRay:
    """Tasks of a Ray cluster, whose nodes have this package and see the files of the workload."""

    def __init__(self, space: Space, address: str) -> None:
        """Raises: Failure, where Ray is not installed or nothing answers at the address."""
        try:
            import ray
        except ImportError:
            raise Failure(
                "--ray: found no package ray, expected it (pip install 'vidur-pd[ray]'), or --workers"
            ) from None
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise Failure(f"--ray {address}: found no cluster ({error}), expected the address of one") from None
        self._ray = ray
        self._space = ray.put(space)
        self._remote = ray.remote(num_cpus=1)(_evaluate_of)

    def outcomes(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Outcome]]:
        open_tasks: dict[Any, Task] = {self._remote.remote(self._space, task): task for task in tasks}
        while open_tasks:
            done, _ = self._ray.wait(list(open_tasks), num_returns=1)
            for each in done:
                yield open_tasks.pop(each), self._ray.get(each)

    def close(self) -> None:
        self._ray.shutdown()


def processes_at_most() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _begin(space: Space) -> None:
    global _evaluator  # of a worker process, which has one space
    one_blas_thread_from_now_on()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait_for_sentinel([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    _evaluator = Evaluator(space)


def _evaluate(task: Task) -> Outcome:
    assert _evaluator is not None
    return _evaluator(task)


def _evaluate_of(space: Space, task: Task) -> Outcome:
    """A task on a worker that may have evaluated others of the space."""
    global _evaluator
    if _evaluator is None or _evaluator.space.digest != space.digest:
        _evaluator = Evaluator(space)
    return _evaluator(task)
