"""The simulation loop: scheduler events and the network on one clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from netsim import Completion, GraphHandle, LogsLinks
from netsim.units import PS_PER_MS
from vidur_pd._core import Flight, Loop, Notice
from vidur_pd.account import Account
from vidur_pd.assembly import Parts, assemble
from vidur_pd.config import SimulationConfig
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.coupling import Treatment
from vidur_pd.execution.exact import ExactLauncher
from vidur_pd.execution.executor import Exchanges
from vidur_pd.execution.outer_network import OuterNetwork
from vidur_pd.faults.recovery import STOOD_STILL, Recovery
from vidur_pd.faults.script import FaultScript
from vidur_pd.instance import Instance, Rank
from vidur_pd.kv_transfer.hand_over import HandOver
from vidur_pd.kv_transfer.sender import KvSender
from vidur_pd.metrics.faults import Recovered
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import CapacityChange
from vidur_pd.metrics.records import Records, Stream
from vidur_pd.metrics.summary import summarise
from vidur_pd.request import Request, request_of
from vidur_pd.result import Result
from vidur_pd.routing import RankRouter
from vidur_pd.workload import Workload

__all__ = ["Result", "Simulation"]

PROGRESS_EVERY_EVENTS = 256


Progress = Callable[[int, int, float], None]
"""Called with (requests done, requests in all, simulated seconds)."""


class Simulation:
    """One run of one configuration; state is created here and belongs to it alone."""

    def __init__(self, config: SimulationConfig, workload: Workload, parts: Parts | None = None) -> None:
        self._started_wall_s, self._started_cpu_s = time.perf_counter(), time.process_time()
        self._parts = parts if parts is not None else assemble(config)
        self._config = config = self._parts.config
        self._workload = workload
        self._latency_ps = self._parts.request_latency_ps
        self._instances = self._parts.instances
        self._network = self._parts.network
        assert isinstance(self._network, LogsLinks)
        self._links = self._network.log_links(config.output.link_windows)
        self._capacity_changes: list[CapacityChange] = []
        self._loop = Loop(
            len(self._instances),
            keeps_runs=config.output.iterations or config.output.trace,
            links=None if self._parts.coupling.collectives is Treatment.SIMULATED else self._links,
        )
        self._queue = EventQueue(self._loop)
        self._kv_sender = KvSender(
            self._parts.model,
            self._parts.kv_precision,
            self._network,
            self._parts.topology,
            setup_ps=round(config.kv_transfer.setup_ms * PS_PER_MS),
            keep_flows=config.output.flows,
        )
        exchanges = Exchanges(self._loop)
        self._outer_network = OuterNetwork.unless_of_core(self._network, self._loop)
        self._launcher = self._parts.launcher(self._loop, self._queue, exchanges, self._broken_off)
        routing, seed = config.routing, config.seed
        self._entries = RankRouter(self._instances, ("prefill", "mixed"), routing, seed, self._refusal)
        self._destinations = RankRouter(self._instances, ("decode",), routing, seed, _own_refusal)
        self._hand_over = HandOver(config, self._kv_sender, self._queue, self._choose_destination, self)
        self._recovery = Recovery(config.recovery, self._queue, self._enter, self._end)
        self._faults = FaultScript(self._parts, self._queue, self)
        self._log = IterationLog(
            self._loop.iterations,
            tuple((instance.name, instance.placement.pool) for instance in self._instances),
            tuple(instance.kv_blocks for instance in self._instances),
        )
        self._account = Account(self._parts, workload, self._log)
        self._join(exchanges)
        self._handlers = self._handlers_of_notices()

    def _join(self, exchanges: Exchanges) -> None:
        """Puts the instances into the loop."""
        hears_launches = self._hand_over.hears_launches
        for instance in self._instances:
            instance.executor.join(self._loop, instance.index, exchanges)
            tells_launches = hears_launches and instance.placement.role == "prefill"
            instance.join(self._loop, self._launcher, tells_launches=tells_launches)

    @property
    def config(self) -> SimulationConfig:
        """What is simulated, with everything that was left open filled in."""
        return self._config

    def run(self, progress: Progress | None = None, stream: Stream | None = None) -> Result:
        """Runs until every request has completed, has failed or was refused; ``stream`` takes their rows meanwhile.

        Raises: RuntimeError, if the simulation comes to rest with unfinished requests (a defect, never expected).
        """
        records = Records(self._workload, self._loop, self._log, stream)
        self._faults.schedule()
        self._schedule_arrival(0)
        while True:
            self._run_loop(records, progress)
            if self._loop.next_event_ps() is not None or (self._outer_network and self._outer_network.advance()):
                continue
            if self._done == len(self._workload) or not self._end_what_waits():
                break
        self._check_end()
        if progress is not None:
            progress(self._done, len(self._workload), self._queue.now_ps / 10**12)
        return self._result(records)

    def _run_loop(self, records: Records, progress: Progress | None) -> None:
        """Runs the loop's events, as long as a network that is not the core's has nothing to do before."""
        told_events = self._loop.executed
        while True:
            outer_ps = self._outer_network.next_event_ps() if self._outer_network else None
            notice = self._loop.run(records.until_ps if outer_ps is None else outer_ps)
            records.pass_on()
            if notice is None:
                return
            self._handlers[notice.what](notice)
            if progress is not None and self._loop.executed - told_events >= PROGRESS_EVERY_EVENTS:
                told_events = self._loop.executed
                progress(self._done, len(self._workload), self._queue.now_ps / 10**12)

    @property
    def _done(self) -> int:
        """Requests that have ended."""
        return self._loop.requests.ended

    # What the loop asks for.

    def _handlers_of_notices(self) -> dict[str, Callable[[Notice], None]]:
        """By ``Notice.what``."""
        instances = self._instances
        return {
            "call": lambda notice: self._queue.call(notice.number),
            "before_step": lambda notice: self._hand_over.before_step(instances[notice.instance]),
            "schedule": lambda notice: instances[notice.instance].decide(notice.number),
            "price": lambda notice: instances[notice.instance].executor.price(notice.flight),
            "parts": lambda notice: instances[notice.instance].executor.supply(),
            "communication": lambda notice: instances[notice.instance].executor.communicate(notice.rank, notice.number),
            "launch": lambda notice: self._coupled_exactly.launch(notice.flight),
            "launched": lambda notice: self._hand_over.launched(notice.flight, self._queue.now_ps),
            "accept": lambda notice: instances[notice.instance].accept(notice.flight),
            "prefilled": lambda notice: self._hand_over.prefilled(notice.request),
            "arrived": lambda notice: self._arrived(GraphHandle(notice.number), is_failed=notice.is_failed),
        }

    # Requests in and out.

    def _schedule_arrival(self, index: int) -> None:
        if index < len(self._workload):
            at_ps = int(self._workload.arrived_ps[index]) + self._latency_ps
            self._queue.schedule(at_ps, Priority.ARRIVAL, lambda: self._arrive(index))

    def _arrive(self, index: int) -> None:
        """A request has come through the front end."""
        self._schedule_arrival(index + 1)
        self._enter(request_of(self._workload, index))

    def _enter(self, request: Request) -> None:
        """A request is routed, for the first time or again."""
        rank, reason = self._entries.choose(request)
        if rank is None:
            self._not_routed(request, reason)
            return
        request.prefill_instance, request.decode_instance = rank.instance.index, None
        if rank.instance.placement.role == "prefill":
            self._hand_over.routed(request, rank)
        else:
            request.decode_instance = rank.instance.index
        rank.state.add(request)
        rank.instance.wake()

    def _not_routed(self, request: Request, reason: str | None) -> None:
        if reason is None:
            self._recovery.unserved(request)
        elif self._recovery.attempts(request):
            self._recovery.fail(request, reason)
        else:
            self._loop.reject(request, reason)

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on."""
        self._loop.traffic_changes(at_ps)

    def delivered(self, request: Request) -> None:
        """The user gets a token from elsewhere than an iteration that decodes."""
        now_ps = self._queue.now_ps
        if request.last_token_ps is None:
            request.first_token_ps = now_ps
        else:
            self._loop.iterations.gap_counts.add(now_ps - request.last_token_ps, 1)
        request.last_token_ps = now_ps

    def completed(self, request: Request) -> None:
        """The last token of a request has been delivered."""
        self._loop.complete(request)

    def _broken_off(self, flight: Flight) -> None:
        """An iteration comes to nothing: the network has given up a collective of it."""
        instance, reason = self._instances[flight.instance], "the network gave up a collective of its iteration"
        self._lose(instance.break_off(flight), reason)
        self._faults.collective_failed(instance)

    def _lose(self, requests: list[Request], reason: str) -> None:
        """Requests have lost their KV. One between two instances is taken off both first."""
        for request in requests:
            if not self._hand_over.broken_off(request, reason):
                self._recovery.lost(request, reason, request.generated_tokens)

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """A hand-over has failed."""
        self._recovery.lost(request, reason, delivered_tokens)

    def fail(self, request: Request, reason: str) -> None:
        """A hand-over has failed for good."""
        self._recovery.fail(request, reason)

    def _end(self, request: Request, reason: str) -> None:
        """The request will get no more tokens."""
        self._loop.fail(request, reason)

    def _end_what_waits(self) -> bool:
        """Nothing is going to happen: what waits for an instance, or on a network that stands still, fails."""
        unfinished = len(self._workload) - self._done
        for instance in self._instances:
            instance.check_progress()
        self._recovery.end_all()
        self._hand_over.end_all()
        for instance in self._instances:
            for flight in instance.flights:
                if self._launcher is not None:
                    self._launcher.drop(flight)
                flight.ends_ps = np.array([self._queue.now_ps], dtype=np.int64)
                self._lose(instance.break_off(flight), STOOD_STILL)
        return len(self._workload) - self._done < unfinished

    # Routing.

    def _refusal(self, instance: Instance, request: Request) -> str | None:
        """Why the instance, or every decode instance that would have to follow it, could never hold the request."""
        reason = _own_refusal(instance, request)
        if reason is None and instance.placement.role == "prefill" and self._hand_over.must_travel(request):
            reason = self._destinations.refusal(request)
        return reason

    def _choose_destination(self, request: Request) -> Rank | None:
        rank, reason = self._destinations.choose(request)
        assert reason is None, f"request {request.request_id} was let in although {reason}"
        return rank

    # What faults do.

    def instance_down(self, instance: Instance, lost: list[Request], reason: str) -> None:
        self._hand_over.instance_down(instance, reason)
        if instance.placement.role != "prefill":  # whose requests are all in hand-over
            for request in lost:
                self._recovery.lost(request, reason, request.generated_tokens)

    def set_open(self, instance: Instance, is_open: bool) -> None:
        self._entries.set_open(instance, is_open)
        self._destinations.set_open(instance, is_open)
        if is_open and instance.placement.role == "decode":
            self._hand_over.in_service_again()
        elif is_open:
            self._recovery.in_service_again()

    def links_change(self) -> None:
        self._loop.traffic_changes(self._queue.now_ps)

    def capacity_changes(self, links: Sequence[int], capacity_bps: Sequence[float]) -> None:
        now_ps = self._queue.now_ps
        self._capacity_changes += [CapacityChange(now_ps, *each) for each in zip(links, capacity_bps, strict=True)]
        self._loop.traffic_changes(now_ps)

    def collectives_change(self, instances: Iterable[Instance]) -> None:
        for instance in instances:
            self._loop.forget_communication(instance.index)

    # The network.

    @property
    def _coupled_exactly(self) -> ExactLauncher:
        assert self._launcher is not None, "iterations without flows are launched by the loop"
        return self._launcher

    def _arrived(self, handle: GraphHandle, *, is_failed: bool) -> None:
        """A flow graph has come to its end: of a transfer, or of an iteration."""
        completion = Completion(handle, None, self._queue.now_ps, is_failed)
        if not self._hand_over.arrived(completion):
            self._coupled_exactly.completed(completion)

    # The end.

    def _check_end(self) -> None:
        """Every request has ended, and nothing of it is left."""
        if self._done != len(self._workload):
            raise RuntimeError(
                f"the simulation came to rest at {self._queue.now_ps} ps with {len(self._workload) - self._done} "
                f"unfinished requests ({self._hand_over.open_transfers} in hand-over)"
            )
        for instance in self._instances:
            for rank in instance.ranks:
                used = rank.state.used_blocks
                assert used == 0, f"{instance.name} rank {rank.index} ends with {used} KV blocks in use"
        assert self._hand_over.open_transfers == 0, "a hand-over never ended"

    def _result(self, records: Records) -> Result:
        table, tally = records.finish(), records.tally
        cast(LogsLinks, self._network).update_link_log()
        summary = summarise(tally, self._log, self._config.slo)
        summary |= self._account.sections(tally, summary["makespan_s"], self._recovered(), self._effort())
        return Result(
            config=self._config,
            workload=self._workload,
            table=table,
            iterations=self._log,
            links=self._links,
            capacity_changes=self._capacity_changes,
            coupling=self._parts.coupling,
            end_ps=self._queue.now_ps,
            flows=self._kv_sender.flows or [],
            topology=self._parts.topology,
            summary=summary,
        )

    def _effort(self) -> dict[str, Any]:
        """What simulating it took."""
        from vidur_pd import __version__

        return {
            "wall_s": time.perf_counter() - self._started_wall_s,
            "cpu_s": time.process_time() - self._started_cpu_s,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "iterations": self._log.iterations,
            "events": self._loop.executed,
            "version": __version__,
        }

    def _recovered(self) -> Recovered:
        recovery = self._recovery
        return Recovered(
            recomputed=recovery.recomputed,
            retried=recovery.retried,
            rerouted=self._hand_over.rerouted,
            failed=recovery.failed,
            transfers_retried=self._hand_over.retried_parts,
        )


def _own_refusal(instance: Instance, request: Request) -> str | None:
    """Why an instance could never hold a request; its ranks are alike."""
    return instance.ranks[0].state.rejection_reason(request)
