"""One simulation: the parts of a run joined, run, and summed up."""

from __future__ import annotations

import resource
import time
from datetime import UTC, datetime

from boundary.blas_threads import one_blas_thread
from boundary.cycles import few_searches_for_cycles
from netsim import LogsLinks
from netsim.units import PS_PER_S
from vidur_pd._core import Loop
from vidur_pd.config import SimulationConfig
from vidur_pd.execution.clock import EventQueue
from vidur_pd.execution.coupling.expert_weights import ExpertBalancers
from vidur_pd.execution.coupling.outer_network import OuterNetwork
from vidur_pd.execution.coupling.plan import Treatment
from vidur_pd.execution.iteration.pricer import StageCommunications
from vidur_pd.kv.transfer.link_loads import LinkLoads
from vidur_pd.kv.transfer.sender import KvSender
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.links import fullest_links, link_columns
from vidur_pd.metrics.planner import planner_summary
from vidur_pd.metrics.records import Records, Stream
from vidur_pd.metrics.result import Result
from vidur_pd.metrics.summary import Effort, LinkSummary, RebalancingSummary, RecoveredRequests
from vidur_pd.simulation.account import Account
from vidur_pd.simulation.cluster_control import ClusterControl
from vidur_pd.simulation.driver import Driver, Progress
from vidur_pd.simulation.lifecycle import RequestLifecycle
from vidur_pd.simulation.scaling import planner_control
from vidur_pd.simulation.state import SimulationState
from vidur_pd.simulation.tiers import kv_store_of, tier_summaries
from vidur_pd.workload import Workload
from vidur_pd.workload.source import RequestSource


class Simulation:
    """One run of a plan over a workload."""

    def __init__(self, state: SimulationState, workload: Workload) -> None:
        self._began = datetime.now(UTC)
        self._started_wall_s, self._started_cpu_s = time.perf_counter(), time.process_time()
        self._state, self._plan, self._source = state, state.plan, RequestSource(workload)
        config = self.config
        assert isinstance(state.network, LogsLinks)
        self._network = state.network
        self._links = self._network.log_links(config.output.link_windows)
        collectives_are_flows = self._plan.coupling.collectives is Treatment.SIMULATED
        self._loop = Loop(
            len(state.instances),
            keeps_runs=config.output.iterations or config.output.trace,
            keeps_members=config.output.batches,
            links=None if collectives_are_flows else self._links,
        )
        self._queue = EventQueue(self._loop)
        self._kv_sender = KvSender(
            self._plan.model,
            self._plan.kv_precision,
            state.network,
            self._plan.topology,
            config.kv_transfer,
            block_tokens=self._plan.kv_block_tokens,
            keep_flows=config.output.flows,
            slowness=self._plan.connector_slowness,
            draft_layers=self._plan.draft_layers,
            loads=LinkLoads(self._plan.topology, state.fabric) if config.routing.watches_links else None,
        )
        self._kv_store = kv_store_of(state, self._loop, self._queue)
        self._lifecycle = RequestLifecycle(
            state, self._source, self._loop, self._queue, self._kv_sender, self._kv_store
        )
        self._control = ClusterControl(state, self._loop, self._queue, self._lifecycle)
        self._balancers = ExpertBalancers(self._loop, state.network)
        self._planner = planner_control(state, self._loop, self._queue, self._lifecycle, self._control)
        self._driver = self._join()
        self._log = IterationLog(
            self._loop.iterations,
            tuple((instance.name, instance.placement.pool) for instance in state.instances),
            tuple(instance.kv_blocks for instance in state.instances),
        )
        self._account = Account(state, workload, self._log)

    def _join(self) -> Driver:
        """Couples the instances with the network, and puts them into the loop."""
        communications = StageCommunications(self._loop)
        launcher = self._state.launcher(self._loop, self._queue, communications, self._control.collective_given_up)
        self._lifecycle.join(launcher, self._planner)
        hears_launches = self._lifecycle.hand_over.hears_launches
        state = self._state
        for instance, pricer, own in zip(state.instances, state.iteration_pricers, state.experts, strict=True):
            before_pricing = None if own is None else self._balancers.of(instance, own)
            pricer.join(self._loop, instance, communications, before_pricing)
            self._loop.add(
                instance,
                has_runs=launcher is None and pricer.prices_runs,
                has_drafts=instance.has_drafts,
                reports_launches=hears_launches and instance.placement.role == "prefill",
                reports_rest=self.config.routing.has_mixed_pool,
                launches_apart=state.plan.pools[instance.placement.pool].launches_apart,
                replayed_tokens=pricer.replayed_tokens,
                launches_itself=launcher is None,
                pricing=pricer.pricing(),
            )
        outer_network = OuterNetwork.unless_of_core(self._network, self._loop)
        carriers = [self._balancers.arrived, self._lifecycle.hand_over.arrived]
        if self._kv_store is not None:
            carriers.append(self._kv_store.arrived)
        if self._planner is not None:
            carriers.append(self._planner.weights_arrived)
        return Driver(self._state, self._loop, self._queue, self._lifecycle, carriers, launcher, outer_network)

    @property
    def config(self) -> SimulationConfig:
        """What is simulated, with everything that was left open filled in."""
        return self._plan.config

    def close(self) -> None:
        """Frees the network, of which some backends have one per process; results stay as they are."""
        self._loop.advance_with(None)
        self._network.close()

    def run(self, progress: Progress | None = None, stream: Stream | None = None) -> Result:
        """Runs until every request has completed, has failed or was refused; ``stream`` takes their rows meanwhile.

        Raises: RuntimeError, if the simulation comes to rest with unfinished requests (a defect, never expected).
        """
        has_connector = self.config.has_connector
        records = Records(self._source, self._loop, self._log, stream, has_connector=has_connector)
        self._control.schedule_faults()
        if self._planner is not None:
            self._planner.begin()
        self._lifecycle.schedule_arrivals()
        try:
            with few_searches_for_cycles(freezes=True), one_blas_thread():
                self._driver.run(records, len(self._source.workload), progress)
        finally:
            self._loop.advance_with(None)  # its owner may close the network now
            if self._state.traffic is not None:
                self._state.traffic.close()
        self._check_end()
        return self._result(records)

    def _check_end(self) -> None:
        """Every request has ended, and nothing of it is left."""
        open_transfers = self._lifecycle.hand_over.open_transfers
        if self._lifecycle.unfinished:
            raise RuntimeError(
                f"the simulation came to rest at {self._queue.now_ps} ps with {self._lifecycle.unfinished} "
                f"unfinished requests ({open_transfers} in hand-over)"
            )
        for instance in self._state.instances:
            for rank in instance.ranks:
                used = rank.state.used_blocks
                assert used == 0, f"{instance.name} rank {rank.index} ends with {used} KV blocks in use"
        assert open_transfers == 0, "a hand-over never ended"

    def _result(self, records: Records) -> Result:
        table, tally = records.finish(), records.tally
        self._network.update_link_log()
        return Result(
            config=self.config,
            workload=self._source.workload,
            table=table,
            tally=tally,
            iterations=self._log,
            links=self._links,
            capacity_changes=self._control.capacity_changes,
            coupling=self._plan.coupling,
            end_ps=self._end_ps,
            flows=self._kv_sender.flows or [],
            topology=self._plan.topology,
            measured=None if self._state.traffic is None else self._state.traffic.file_text(),
            summary=self._account.summary(
                tally,
                self._recovered(),
                self._lifecycle.hand_over.retried_parts,
                self._kv_sender.connector_time,
                self._rebalancing(),
                None if self._kv_store is None else tier_summaries(self._kv_store),
                self._fullest_links(),
                self._effort(),
                planner_summary(self._planner, self._end_ps),
            ),
        )

    @property
    def _end_ps(self) -> int:
        """When the run was over; a planner may have scheduled later looks."""
        planned_ps = None if self._planner is None else self._planner.end_ps
        return self._queue.now_ps if planned_ps is None else planned_ps

    def _fullest_links(self) -> tuple[LinkSummary, ...]:
        end_ps, changes = self._end_ps, self._control.capacity_changes
        columns = link_columns(self._links, self._plan.topology, self._plan.coupling, changes, end_ps)
        return fullest_links(columns, end_ps / PS_PER_S)

    def _effort(self) -> Effort:
        from vidur_pd import __version__

        return Effort(
            began_at=self._began.strftime("%Y-%m-%dT%H:%M:%SZ"),
            wall_s=time.perf_counter() - self._started_wall_s,
            cpu_s=time.process_time() - self._started_cpu_s,
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            iterations=self._log.iterations,
            events=self._loop.executed,
            version=__version__,
        )

    def _rebalancing(self) -> RebalancingSummary | None:
        if all(pool.engine.eplb is None for pool in self._plan.pools.values()):
            return None
        balancers = self._balancers
        return RebalancingSummary(
            rebalances=balancers.rebalances,
            moved_bytes=balancers.moved_bytes,
            moving_s=balancers.moving_ps / PS_PER_S,
            given_up=balancers.given_up,
        )

    def _recovered(self) -> RecoveredRequests:
        recovery = self._lifecycle.recovery
        return RecoveredRequests(
            recomputed=recovery.recomputed,
            retried=recovery.retried,
            rerouted=self._lifecycle.hand_over.rerouted,
            failed=recovery.failed,
        )
