"""The simulation loop: scheduler events and the network on one clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from netsim import Topology
from netsim.units import PS_PER_MS
from vidur_pd._core import LinkLog, Loop, Notice
from vidur_pd.assembly import Parts, assemble
from vidur_pd.config import PoolConfig, SimulationConfig
from vidur_pd.events import EventQueue, Priority
from vidur_pd.execution.communication import FAR_PS
from vidur_pd.execution.executor import Exchanges
from vidur_pd.handoff import FlowRow, Handoff, KvWire
from vidur_pd.instance import Instance, Rank
from vidur_pd.metrics.communication import communication_sources
from vidur_pd.metrics.energy import PoolActivity, energy_estimate
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import link_columns
from vidur_pd.metrics.records import Records, Stream
from vidur_pd.metrics.requests import RequestRecord, RequestTable
from vidur_pd.metrics.summary import summarise
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.request import Request
from vidur_pd.routing import Router
from vidur_pd.workload import Workload, generator

PROGRESS_EVERY_EVENTS = 256

Routers = tuple[Router[Instance], dict[int, Router[Rank]]]
"""Chooses among instances, and among the ranks of each, by its index."""

Progress = Callable[[int, int, float], None]
"""Called with (requests done, requests in all, simulated seconds)."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a simulation leaves behind."""

    config: SimulationConfig
    workload: Workload
    table: RequestTable
    """In the order of the workload; empty where a stream has taken the requests."""
    iterations: IterationLog
    links: LinkLog
    flows: list[FlowRow]
    topology: Topology
    summary: dict[str, Any]

    @cached_property
    def requests(self) -> list[RequestRecord]:
        """The table as records."""
        return self.table.records()

    def link_columns(self) -> dict[str, Any]:
        """Columns of ``links.parquet``."""
        return link_columns(self.links, self.topology)

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
        self._latency_ps = self._parts.request_latency_ps
        self._instances = self._parts.instances
        self._loop = Loop(
            len(self._instances),
            keeps_runs=config.output.iterations or config.output.trace,
            links=len(self._parts.topology.capacity_bps),
            link_windows=config.output.link_windows,
        )
        self._queue = EventQueue(self._loop)
        self._network = self._parts.network
        self._wire = KvWire(
            self._parts.model,
            self._parts.wire_precision,
            self._network,
            self._parts.topology,
            self._loop,
            setup_ps=round(config.kv_transfer.setup_ms * PS_PER_MS),
            keep_flows=config.output.flows,
        )
        exchanges = Exchanges(self._loop)
        self._launcher = self._parts.launcher(self._loop, self._queue, exchanges, self._broken_off)
        self._pools: dict[tuple[int, ...], list[tuple[str, int]]] = {}
        self._entries = self._routers(("prefill", "mixed"))
        self._destinations = self._routers(("decode",)) if config.is_disaggregated else None
        self._handoff = Handoff(
            config.kv_transfer, self._wire, self._choose_destination, self, self._launcher.traffic_changes
        )
        self._log = IterationLog(
            self._loop.iterations,
            tuple((instance.name, instance.placement.pool) for instance in self._instances),
            tuple(instance.kv_blocks for instance in self._instances),
        )
        self._join(exchanges)
        self._handlers = self._handlers_of_notices()

    def _join(self, exchanges: Exchanges) -> None:
        """Puts the instances into the loop."""
        is_layerwise = self._config.kv_transfer.mode == "layerwise"
        for instance in self._instances:
            instance.executor.join(self._loop, instance.index, exchanges)
            instance.join(
                self._loop,
                has_runs=self._launcher.has_runs,
                launches_itself=self._launcher.launches_itself,
                tells_launches=is_layerwise and instance.placement.role == "prefill",
            )

    @property
    def config(self) -> SimulationConfig:
        """What is simulated, with everything that was left open filled in."""
        return self._config

    def run(self, progress: Progress | None = None, stream: Stream | None = None) -> Result:
        """Runs until every request has completed, has failed or was refused; ``stream`` takes their rows meanwhile.
        Raises: RuntimeError, if the simulation comes to rest with unfinished requests (a defect, never expected).
        """
        records = Records(self._workload, self._loop, self._log, stream)
        self._schedule_arrival(0)
        told_events = 0
        while True:
            network_ps = self._network.next_event_ps()
            notice = self._loop.run(records.until_ps if network_ps is None else network_ps)
            records.pass_on()
            if notice is not None:
                self._handlers[notice.what](notice)
                if progress is not None and self._loop.executed - told_events >= PROGRESS_EVERY_EVENTS:
                    told_events = self._loop.executed
                    progress(self._done, len(self._workload), self._queue.now_ps / 10**12)
                continue
            next_ps = self._loop.next_event_ps()
            if network_ps is not None:
                self._advance_network(next_ps)
            elif next_ps is None:
                break
        self._check_end()
        if progress is not None:
            progress(self._done, len(self._workload), self._queue.now_ps / 10**12)
        return self._result(records)

    @property
    def _done(self) -> int:
        """Requests that have ended."""
        return self._loop.requests.ended

    # What the loop asks for.

    def _handlers_of_notices(self) -> tuple[Callable[[Notice], None], ...]:
        """By ``Notice.what``."""
        instances = self._instances
        return (
            lambda notice: self._queue.call(notice.number),
            lambda notice: self._handoff.before_step(instances[notice.instance], self._queue.now_ps),
            lambda notice: instances[notice.instance].executor.price(notice.flight),
            lambda notice: instances[notice.instance].executor.supply(),
            lambda notice: instances[notice.instance].executor.communicate(notice.rank, notice.number),
            lambda notice: self._launcher.launch(notice.flight),
            lambda notice: self._handoff.launched(notice.flight, self._queue.now_ps),
            lambda notice: instances[notice.instance].accept(notice.flight),
            lambda notice: self._handoff.prefilled(notice.request, self._queue.now_ps),
            lambda notice: self._launcher.rests(notice.instance),
        )

    # Requests in and out.

    def _request(self, index: int) -> Request:
        workload = self._workload
        hashes = workload.block_hashes
        return Request(
            index=index,
            request_id=workload.request_ids[index],
            prompt_tokens=int(workload.prefill_tokens[index]),
            output_tokens=int(workload.decode_tokens[index]),
            arrived_ps=int(workload.arrived_ps[index]),
            block_hashes=None if hashes is None else hashes.of(index).tolist(),
        )

    def _schedule_arrival(self, index: int) -> None:
        if index < len(self._workload):
            at_ps = int(self._workload.arrived_ps[index]) + self._latency_ps
            self._queue.schedule(at_ps, Priority.ARRIVAL, lambda: self._arrive(index))

    def _arrive(self, index: int) -> None:
        """A request has come through the front end and is routed."""
        request = self._request(index)
        self._schedule_arrival(index + 1)
        rank, reason = self._choose(self._entries, request)
        if rank is None:
            assert reason is not None
            self._loop.reject(request, reason)
            return
        request.prefill_instance = rank.instance.index
        if rank.instance.placement.role == "prefill":
            self._handoff.routed(request, rank)
        else:
            request.decode_instance = rank.instance.index
        rank.scheduler.add(request)
        rank.instance.wake()

    def completed(self, request: Request) -> None:
        """The last token of a request has been delivered."""
        self._loop.complete(request)

    def failed(self, request: Request, reason: str) -> None:
        """The request will get no more tokens."""
        self._loop.fail(request, reason)

    def _broken_off(self, requests: list[Request], reason: str) -> None:
        """An iteration has come to nothing. A request between two instances is taken off both first."""
        for request in requests:
            if not self._handoff.broken_off(request, reason, self._queue.now_ps):
                self.failed(request, reason)

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

    # The network.

    def _advance_network(self, next_ps: int | None) -> None:
        """Runs the network to the next event, or to the first instant at which something completes."""
        completions = self._network.advance(FAR_PS if next_ps is None else next_ps)
        if completions:
            self._loop.move_to(completions[0].at_ps)
        for completion in completions:
            if completion.flow is None and not self._handoff.arrived(completion):
                self._launcher.completed(completion)

    # The end.

    def _check_end(self) -> None:
        """Every request has ended, and nothing of it is left."""
        if self._done != len(self._workload):
            raise RuntimeError(
                f"the simulation came to rest at {self._queue.now_ps} ps with {len(self._workload) - self._done} "
                f"unfinished requests ({self._handoff.open_passages} in hand-over)"
            )
        for instance in self._instances:
            for rank in instance.ranks:
                used = rank.scheduler.used_blocks
                assert used == 0, f"{instance.name} rank {rank.index} ends with {used} KV blocks in use"
        assert self._handoff.open_passages == 0, "a hand-over never ended"

    def _result(self, records: Records) -> Result:
        table, tally = records.finish(), records.tally
        summary = summarise(tally, self._log, self._config.slo)
        summary |= self._description(summary["makespan_s"])
        summary |= self._accounts(tally, summary["makespan_s"])
        return Result(
            config=self._config,
            workload=self._workload,
            table=table,
            iterations=self._log,
            links=self._loop.links,
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
            "estimated_operators": self._estimated_operators(),
            "simulator": {
                "wall_s": time.perf_counter() - self._started_wall_s,
                "cpu_s": time.process_time() - self._started_cpu_s,
                "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "iterations": self._log.iterations,
                "events": self._loop.executed,
                "version": __version__,
            },
        }

    def _estimated_operators(self) -> list[dict[str, str]]:
        """Operators priced by flagged estimates at least once, by pool."""
        met = {
            (instance.placement.pool, operator)
            for instance in self._instances
            for operator in instance.executor.estimated_operators()
        }
        return [{"pool": pool, "operator": operator} for pool, operator in sorted(met)]

    def _accounts(self, tally: RequestTally, makespan_s: float) -> dict[str, Any]:
        """Where time and energy went."""
        activity = [self._activity(pool) for pool in self._config.cluster.pools]
        return {
            "communication": communication_sources(self._parts.coupling, self._log, tally.transfers_ps),
            "attribution_s": tally.mean_parts_s(),
            "energy": energy_estimate(activity, makespan_s, tally.output_tokens),
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
        mean, peak = self._log.kv_share(indices, makespan_s)
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
