"""The simulation loop: scheduler events and the network on one clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from netsim.units import PS_PER_MS
from vidur_pd.assembly import Parts, assemble
from vidur_pd.config import PoolConfig, SimulationConfig
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.communication import FAR_PS
from vidur_pd.execution.flight import Flight
from vidur_pd.execution.fluid import FluidLauncher
from vidur_pd.faults.recovery import STOOD_STILL, Recovery
from vidur_pd.faults.script import FaultScript
from vidur_pd.handoff import Handoff, KvWire
from vidur_pd.instance import Instance, Rank
from vidur_pd.metrics.attribution import attribute, mean_parts
from vidur_pd.metrics.communication import communication_sources
from vidur_pd.metrics.energy import PoolActivity, energy_estimate
from vidur_pd.metrics.faults import Recovered, fault_summary
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import LinkLog
from vidur_pd.metrics.request_rows import Journey
from vidur_pd.metrics.summary import summarise
from vidur_pd.request import Request, RequestStatus, requests_of
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
        self._queue = EventQueue()
        self._instances = self._parts.instances
        self._log = IterationLog(
            tuple((instance.name, instance.placement.pool) for instance in self._instances),
            keeps_runs=config.output.iterations or config.output.trace,
        )
        self._link_log = LinkLog(len(self._parts.topology.capacity_bps), config.output.link_windows)
        self._network = self._parts.network
        self._wire = KvWire(
            self._parts.model,
            self._parts.wire_precision,
            self._network,
            self._parts.topology,
            self._link_log,
            setup_ps=round(config.kv_transfer.setup_ms * PS_PER_MS),
            keep_flows=config.output.flows,
        )
        self._launcher = self._parts.launcher(self._queue, self._wire)
        routing, seed = config.routing, config.seed
        self._entries = RankRouter(self._instances, ("prefill", "mixed"), routing, seed, self._refusal)
        self._destinations = RankRouter(self._instances, ("decode",), routing, seed, _own_refusal)
        self._handoff = Handoff(config, self._wire, self._queue, self._choose_destination, self)
        self._recovery = Recovery(config.recovery, self._queue, self._enter, self._end)
        self._faults = FaultScript(self._parts, self._queue, self)
        self._journeys = [Journey(request) for request in requests_of(workload)]
        self._done = 0
        for instance in self._instances:
            instance.attach(self._queue, self._launcher, self, self._log)

    def run(self, progress: Progress | None = None) -> Result:
        """Runs until every request has completed, has failed or was refused.

        Raises: RuntimeError, if the simulation comes to rest with unfinished requests (a defect, never expected).
        """
        self._faults.schedule()
        self._schedule_arrival(0)
        while True:
            next_ps = self._queue.next_event_ps()
            if self._network.next_event_ps() is not None and self._advance_network(next_ps):
                continue
            if next_ps is None:
                if self._done == len(self._journeys) or not self._end_what_waits():
                    break
                continue
            self._queue.run_next()
            if progress is not None and self._queue.executed % PROGRESS_EVERY_EVENTS == 0:
                progress(self._done, len(self._journeys), self._queue.now_ps / 10**12)
        if self._done != len(self._journeys):
            raise RuntimeError(
                f"the simulation came to rest at {self._queue.now_ps} ps with {len(self._journeys) - self._done} "
                f"unfinished requests ({self._handoff.open_passages} in hand-over)"
            )
        self._check_invariants()
        if progress is not None:
            progress(self._done, len(self._journeys), self._queue.now_ps / 10**12)
        return self._result()

    # Requests in and out.

    def _schedule_arrival(self, index: int) -> None:
        if index < len(self._journeys):
            at_ps = self._journeys[index].request.arrived_ps + self._parts.request_latency_ps
            self._queue.schedule(at_ps, Priority.ARRIVAL, lambda: self._arrive(index))

    def _arrive(self, index: int) -> None:
        """A request has come through the front end."""
        self._schedule_arrival(index + 1)
        self._enter(self._journeys[index].request)

    def _enter(self, request: Request) -> None:
        """A request is routed, for the first time or again."""
        journey = self._journeys[request.index]
        rank, reason = self._entries.choose(request)
        if rank is None:
            self._not_routed(request, reason)
            return
        journey.prefill_instance, journey.decode_instance = rank.instance.name, ""
        journey.restarts = self._recovery.attempts(request)
        if rank.instance.placement.role == "prefill":
            self._handoff.routed(journey, rank)
        else:
            journey.decode_instance = rank.instance.name
        rank.scheduler.add(request)
        rank.instance.wake()

    def _not_routed(self, request: Request, reason: str | None) -> None:
        if reason is None:
            self._recovery.unserved(request)
        elif self._recovery.attempts(request):
            self._recovery.fail(request, reason)
        else:
            request.status, request.status_reason = RequestStatus.REJECTED, reason
            self._done += 1

    def traffic_changes(self, at_ps: int) -> None:
        """Transfers load the network differently from ``at_ps`` on."""
        self._launcher.traffic_changes(at_ps)

    def delivered(self, request: Request) -> None:
        """The user gets a token from elsewhere than an iteration that decodes."""
        now_ps = self._queue.now_ps
        if request.last_token_ps is None:
            request.first_token_ps = now_ps
        else:
            self._log.gap_counts.add(now_ps - request.last_token_ps, 1)
        request.last_token_ps = now_ps

    def completed(self, request: Request) -> None:
        """The last token of a request has been delivered."""
        request.status = RequestStatus.COMPLETED
        request.completed_ps = self._queue.now_ps
        self._done += 1

    def failed(self, request: Request, reason: str) -> None:
        """An iteration came to nothing. A request between two instances is taken off both first, and comes back."""
        if not self._handoff.broken_off(request, reason):
            self._recovery.lost(request, reason, request.generated_tokens)

    def lost(self, request: Request, reason: str, delivered_tokens: int) -> None:
        """A hand-over has failed."""
        self._recovery.lost(request, reason, delivered_tokens)

    def fail(self, request: Request, reason: str) -> None:
        """A hand-over has failed for good."""
        self._recovery.fail(request, reason)

    def _end(self, request: Request, reason: str) -> None:
        """The request will get no more tokens."""
        request.status, request.status_reason = RequestStatus.FAILED, reason
        self._done += 1

    def _end_what_waits(self) -> bool:
        """Nothing is going to happen: what waits for an instance, or on a network that stands still, fails."""
        unfinished = len(self._journeys) - self._done
        self._recovery.end_all()
        self._handoff.end_all()
        for instance in self._instances:
            for flight in list(instance.flights):
                self._launcher.drop(flight)
                flight.ends_ps = np.array([self._queue.now_ps], dtype=np.int64)
                instance.break_off(flight, STOOD_STILL)
        return len(self._journeys) - self._done < unfinished

    # Routing.

    def _refusal(self, instance: Instance, request: Request) -> str | None:
        """Why the instance, or every decode instance that would have to follow it, could never hold the request."""
        reason = _own_refusal(instance, request)
        if reason is None and instance.placement.role == "prefill" and self._handoff.must_travel(request):
            reason = self._destinations.refusal(request)
        return reason

    def _choose_destination(self, request: Request) -> Rank | None:
        rank, reason = self._destinations.choose(request)
        assert reason is None, f"request {request.request_id} was let in although {reason}"
        return rank

    # What faults do.

    def instance_down(self, instance: Instance, lost: list[Request], reason: str) -> None:
        self._handoff.instance_down(instance, reason)
        if instance.placement.role != "prefill":  # whose requests are all in hand-over
            for request in lost:
                self._recovery.lost(request, reason, request.generated_tokens)

    def set_open(self, instance: Instance, is_open: bool) -> None:
        self._entries.set_open(instance, is_open)
        self._destinations.set_open(instance, is_open)
        if is_open:
            self._handoff.in_service_again()
            self._recovery.in_service_again()

    def links_change(self, links: Sequence[int], *, is_up: bool, apply: Callable[[], None]) -> None:
        self._wire.links_change(links, self._queue.now_ps, is_up=is_up, apply=apply)
        self._launcher.traffic_changes(self._queue.now_ps)

    def capacity_changes(self, links: Sequence[int], capacity_bps: Sequence[float]) -> None:
        if isinstance(self._launcher, FluidLauncher):
            self._launcher.set_capacity_bps(links, capacity_bps)

    # Listener of the instances.

    def before_step(self, instance: Instance) -> None:
        if instance.placement.role == "decode":
            self._handoff.before_step(instance)

    def launched(self, instance: Instance, flight: Flight) -> None:
        if instance.placement.role == "prefill":
            self._handoff.launched(flight, self._queue.now_ps)

    def landed(self, flight: Flight) -> None:
        end_ps = int(flight.ends_ps[-1])
        for price in flight.prices:
            load = price.load
            self._link_log.add("collective", load.links, load.link_bytes * flight.steps, (flight.start_ps, end_ps))

    def prefilled(self, rank: Rank, request: Request) -> None:
        del rank
        self._handoff.prefilled(request)

    def broken_off(self, instance: Instance) -> None:
        self._faults.collective_failed(instance)

    # The network.

    def _advance_network(self, next_ps: int | None) -> bool:
        """Runs the network to the next event; True if something completed on the way."""
        completions = self._network.advance(FAR_PS if next_ps is None else next_ps)
        if completions:
            self._queue.move_to(completions[0].at_ps)
        for completion in completions:
            if completion.flow is None and not self._handoff.arrived(completion):
                self._launcher.completed(completion)
        return bool(completions)

    # The end.

    def _check_invariants(self) -> None:
        for instance in self._instances:
            for rank in instance.ranks:
                used = rank.scheduler.used_blocks
                assert used == 0, f"{instance.name} rank {rank.index} ends with {used} KV blocks in use"
        assert self._handoff.open_passages == 0, "a hand-over never ended"

    def _result(self) -> Result:
        summary = summarise([journey.request for journey in self._journeys], self._log, self._config.slo)
        summary |= self._description(summary["makespan_s"])
        summary |= self._accounts(summary["makespan_s"])
        summary |= self._fault_account()
        return Result(
            config=self._config,
            workload=self._workload,
            journeys=self._journeys,
            iterations=self._log,
            links=self._link_log,
            flows=self._wire.flows or [],
            topology=self._parts.topology,
            summary=summary,
        )

    def _description(self, makespan_s: float) -> dict[str, Any]:
        """What was simulated, and what simulating it took."""
        from vidur_pd import __version__

        network = self._config.network
        return {
            "model": self._parts.model.name,
            "hardware": next(iter(self._parts.pools.values())).gpu.name,
            "workload": {
                "name": self._workload.name,
                "source": self._workload.source,
                "trimmed_requests": self._workload.trimmed_requests,
                "skipped_rows": self._workload.skipped_rows,
            },
            "network": {
                "backend": network.backend,
                "coupling": self._parts.coupling.in_force,
                "topology": self._config.cluster.topology.model_dump(mode="json", exclude_none=True),
                "gpus": self._parts.topology.gpus,
            },
            "pools": [self._pool(pool.name, makespan_s) for pool in self._config.cluster.pools],
            "estimated_operators": self._log.estimated_operators(),
            "simulator": {
                "wall_s": time.perf_counter() - self._started_wall_s,
                "cpu_s": time.process_time() - self._started_cpu_s,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "iterations": self._log.iterations,
                "events": self._queue.executed,
                "version": __version__,
            },
        }

    def _accounts(self, makespan_s: float) -> dict[str, Any]:
        """Where time and energy went."""
        requests = [journey.request for journey in self._journeys]
        tokens = sum(request.output_tokens for request in requests if request.status is RequestStatus.COMPLETED)
        return {
            "communication": communication_sources(self._parts.coupling, self._log, requests),
            "attribution_s": mean_parts(attribute(self._journeys, self._log)),
            "energy": energy_estimate(
                [self._activity(pool) for pool in self._config.cluster.pools], makespan_s, tokens
            ),
        }

    def _fault_account(self) -> dict[str, Any]:
        """What faults did, where something failed."""
        recovery = self._recovery
        recovered = Recovered(
            recomputed=recovery.recomputed,
            retried=recovery.retried,
            rerouted=self._handoff.rerouted,
            failed=recovery.failed,
            transfers_retried=self._handoff.retried_transfers,
        )
        requests = [journey.request for journey in self._journeys]
        account = fault_summary(self._parts.faults, recovered, requests, self._config.slo)
        return {} if account is None else {"faults": account}

    def _activity(self, pool: PoolConfig) -> PoolActivity:
        indices = [instance.index for instance in self._instances if instance.placement.pool == pool.name]
        # A stage computes while its own flight is in it, so each GPU works a share 1 / pp of what is booked.
        computing_s = float(self._log.computing_ps[indices].sum()) / 10**12 * pool.gpus_per_instance / pool.pp
        gpus = pool.instances * pool.gpus_per_instance
        return PoolActivity(pool.name, self._parts.pools[pool.name].gpu.name, gpus, computing_s)

    def _pool(self, name: str, makespan_s: float) -> dict[str, Any]:
        pool = next(pool for pool in self._config.cluster.pools if pool.name == name)
        indices = [instance.index for instance in self._instances if instance.placement.pool == name]
        busy_s = float(self._log.busy_ps[indices].sum()) / 10**12
        blocks = self._instances[indices[0]].kv_blocks
        mean, peak = self._log.kv_use.share(indices, blocks, makespan_s)
        return {
            "name": name,
            "role": pool.role,
            "instances": pool.instances,
            "tp": pool.tp,
            "ep": pool.ep,
            "dp": pool.dp,
            "pp": pool.pp,
            "gpus": pool.instances * pool.gpus_per_instance,
            "kv_blocks_per_rank": self._instances[indices[0]].ranks[0].scheduler.usable_blocks,
            "busy_share": busy_s / (makespan_s * pool.instances * pool.pp) if makespan_s else None,
            "kv_use_mean": mean,
            "kv_use_max": peak,
        }


def _own_refusal(instance: Instance, request: Request) -> str | None:
    """Why an instance could never hold a request; its ranks are alike."""
    return instance.ranks[0].scheduler.rejection_reason(request)
