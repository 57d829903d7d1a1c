"""KV that has come to decode engines which look for it once in a step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.workload.request import Request


@dataclass(slots=True, eq=False)
class ArrivedKv:
    """A request whose KV is all there."""

    request: Request
    destination: Rank
    noticed_after: int | None = None
    """Iterations of the instance that have ended when it knows; ``None``: it has not looked yet."""


class StepPolls:
    """The requests that their decode engines have not noticed.

    vLLM: the worker looks for finished transfers when it has launched a step (``get_finished``), and the scheduler
    hears of it with the results of this step. A step is launched when it is decided, which is one step ahead with
    asynchronous scheduling. SGLang: the scheduler itself looks before it decides a step (``process_decode_queue``). An
    engine without work looks all the time.
    """

    def __init__(self, *, hears_at_once: bool) -> None:
        """``hears_at_once``: the step that is being decided may have what is found."""
        self._hears_at_once = hears_at_once
        self._of_instance: defaultdict[int, list[ArrivedKv]] = defaultdict(list)

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._of_instance.values())

    def await_notice(self, request: Request, destination: Rank) -> bool:
        """The KV of a request has come; returns False where the engine notices at once."""
        instance = destination.instance
        if instance.is_idle:
            return False
        self._of_instance[instance.index].append(ArrivedKv(request, destination))
        instance.set_polls(True)
        instance.wake()
        return True

    def before_step(self, instance: Instance) -> list[ArrivedKv]:
        """The instance decides a step: it looks for what has come. Returns what it knows of by now: all, or what it saw
        in steps that have ended."""
        waiting = self._of_instance.get(instance.index)
        if not waiting:
            return []
        if self._hears_at_once:
            self._keep(instance, [])
            return waiting
        ended = instance.iterations_ended
        noticed = [
            each
            for each in waiting
            if instance.is_idle or (each.noticed_after is not None and each.noticed_after <= ended)
        ]
        for each in waiting:
            if each.noticed_after is None:
                each.noticed_after = ended + len(instance.running_iterations) + 1
        self._keep(instance, [each for each in waiting if each not in noticed])
        return noticed

    def take(self, instance: Instance) -> list[Request]:
        """The instance has failed: its requests, which nobody will notice."""
        requests = [each.request for each in self._of_instance.get(instance.index, [])]
        self._keep(instance, [])
        return requests

    def _keep(self, instance: Instance, waiting: list[ArrivedKv]) -> None:
        if waiting:
            self._of_instance[instance.index] = waiting
        else:
            self._of_instance.pop(instance.index, None)
            instance.set_polls(False)
