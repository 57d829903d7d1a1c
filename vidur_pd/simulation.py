"""The simulation loop: scheduler events and the network on one clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from netsim import Topology
from netsim.topology import LinkKind
from netsim.units import PS_PER_MS
from vidur_pd.assembly import Parts, assemble
from vidur_pd.config import PoolConfig, SimulationConfig
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.communication import FAR_PS
from vidur_pd.execution.flight import Flight
from vidur_pd.handoff import FlowRow, Handoff, KvWire
from vidur_pd.instance import Instance, Rank
from vidur_pd.metrics.attribution import attribute, mean_parts
from vidur_pd.metrics.communication import communication_sources
from vidur_pd.metrics.energy import PoolActivity, energy_estimate
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import LinkLog
from vidur_pd.metrics.request_rows import Journey
from vidur_pd.metrics.summary import summarise
from vidur_pd.request import Request, RequestStatus
from vidur_pd.routing import Router
from vidur_pd.workload import Workload, generator

PROGRESS_EVERY_EVENTS = 256

Routers = tuple[Router[Instance], dict[int, Router[Rank]]]
"""Chooses among instances, and among the ranks of each, by its index."""

Progress = Callable[[int, int, float], None]
"""Called with (requests done, requests in all, simulated seconds)."""


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a simulation leaves behind."""

    config: SimulationConfig
    workload: Workload
    journeys: list[Journey]
    iterations: IterationLog
    links: LinkLog
    flows: list[FlowRow]
    topology: Topology
    summary: dict[str, Any]

    def link_columns(self) -> dict[str, Any]:
        """Columns of ``links.parquet``."""
        columns: dict[str, Any] = self.links.columns()
        link = np.asarray(columns["link"], dtype=np.int64)
        names = np.array(self.topology.node_name, dtype=object)
        described = {
            "link": link,
            "src": names[self.topology.link_src[link]],
            "dst": names[self.topology.link_dst[link]],
            "kind": np.array([kind.name.lower() for kind in LinkKind], dtype=object)[self.topology.link_kind[link]],
            "capacity_bps": self.topology.capacity_bps[link],
        }
        return {**described, **{name: column for name, column in columns.items() if name != "link"}}

    def flow_columns(self) -> dict[str, Any]:
        """Columns of ``flows.parquet``: every flow of every KV transfer, in order of arrival of its transfer."""
        names = ("src", "dst", "size_bytes", "start_ps", "end_ps")
        return {name: np.array([getattr(flow, name) for flow in self.flows], dtype=np.int64) for name in names}


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
        self._pools: dict[tuple[int, ...], list[tuple[str, int]]] = {}
        self._entries = self._routers(("prefill", "mixed"))
        self._destinations = self._routers(("decode",)) if config.is_disaggregated else None
        self._handoff = Handoff(
            config.kv_transfer, self._wire, self._choose_destination, self, self._launcher.traffic_changes
        )
        self._journeys = [Journey(request) for request in self._requests()]
        self._done = 0
        for instance in self._instances:
            instance.attach(self._queue, self._launcher, self, self._log)

    def run(self, progress: Progress | None = None) -> Result:
        """Runs until every request has completed, has failed or was refused.

        Raises: RuntimeError, if the simulation comes to rest with unfinished requests (a defect, never expected).
        """
        self._schedule_arrival(0)
        while True:
            next_ps = self._queue.next_event_ps()
            if self._network.next_event_ps() is not None and self._advance_network(next_ps):
                continue
            if next_ps is None:
                break
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

    def _requests(self) -> list[Request]:
        workload = self._workload
        hashes = workload.block_hashes
        return [
            Request(
                index=index,
                request_id=workload.request_ids[index],
                prompt_tokens=int(workload.prefill_tokens[index]),
                output_tokens=int(workload.decode_tokens[index]),
                arrived_ps=int(workload.arrived_ps[index]),
                block_hashes=None if hashes is None else hashes.of(index).tolist(),
            )
            for index in range(len(workload))
        ]

    def _schedule_arrival(self, index: int) -> None:
        if index < len(self._journeys):
            at_ps = self._journeys[index].request.arrived_ps + self._parts.request_latency_ps
            self._queue.schedule(at_ps, Priority.ARRIVAL, lambda: self._arrive(index))

    def _arrive(self, index: int) -> None:
        """A request has come through the front end and is routed."""
        journey = self._journeys[index]
        self._schedule_arrival(index + 1)
        rank, reason = self._choose(self._entries, journey.request)
        if rank is None:
            journey.request.status = RequestStatus.REJECTED
            journey.request.status_reason = reason
            self._done += 1
            return
        journey.prefill_instance = rank.instance.name
        if rank.instance.placement.role == "prefill":
            self._handoff.routed(journey, rank)
        else:
            journey.decode_instance = rank.instance.name
        rank.scheduler.add(journey.request)
        rank.instance.wake()

    def completed(self, request: Request) -> None:
        """The last token of a request has been delivered."""
        request.status = RequestStatus.COMPLETED
        request.completed_ps = self._queue.now_ps
        self._done += 1

    def failed(self, request: Request, reason: str) -> None:
        """The request will get no more tokens. One between two instances is taken off both first, and comes back."""
        if self._handoff.broken_off(request, reason, self._queue.now_ps):
            return
        request.status = RequestStatus.FAILED
        request.status_reason = reason
        self._done += 1

    # Routing.

    def _routers(self, roles: tuple[str, ...]) -> Routers:
        instances = [instance for instance in self._instances if instance.placement.role in roles]
        routing, seed, name = self._config.routing, self._config.seed, "+".join(roles)
        ranks = {
            instance.index: Router(routing.rank_policy, instance.ranks, generator(seed, f"routing.{instance.name}"))
            for instance in instances
        }
        return Router(routing.policy, instances, generator(seed, f"routing.{name}")), ranks

    def _choose(self, routers: Routers, request: Request) -> tuple[Rank | None, str | None]:
        """A rank that can hold the request, or why none can."""
        among, ranks = routers
        reasons = {pool: self._refusal(self._instances[index], request) for pool, index in self._pools_of(ranks)}
        if all(reason is None for reason in reasons.values()):
            return ranks[among.choose().index].choose(), None
        if None not in reasons.values():
            return None, next(iter(reasons.values()))
        instance = among.choose(lambda candidate: reasons[candidate.placement.pool] is None)
        return ranks[instance.index].choose(), None

    def _pools_of(self, ranks: dict[int, Router[Rank]]) -> list[tuple[str, int]]:
        """Pools behind a choice, each with one of its instances: they are alike, so that one speaks for all."""
        key = tuple(ranks)
        if key not in self._pools:
            first: dict[str, int] = {}
            for index in key:
                first.setdefault(self._instances[index].placement.pool, index)
            self._pools[key] = list(first.items())
        return self._pools[key]

    def _refusal(self, instance: Instance, request: Request) -> str | None:
        """Why the instance, or every decode instance that would have to follow it, could never hold the request."""
        reason = instance.ranks[0].scheduler.rejection_reason(request)
        if reason is None and instance.placement.role == "prefill" and self._handoff.must_travel(request):
            assert self._destinations is not None
            reasons = [
                self._refusal(self._instances[index], request) for _, index in self._pools_of(self._destinations[1])
            ]
            reason = None if None in reasons else reasons[0]
        return reason

    def _choose_destination(self, request: Request) -> Rank:
        assert self._destinations is not None
        rank, reason = self._choose(self._destinations, request)
        assert rank is not None, f"request {request.request_id} was let in although {reason}"
        return rank

    # Listener of the instances.

    def before_step(self, instance: Instance) -> None:
        if instance.placement.role == "decode":
            self._handoff.before_step(instance, self._queue.now_ps)

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
        self._handoff.prefilled(request, self._queue.now_ps)

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
