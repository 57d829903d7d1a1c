"""Control of a fleet in simulated time: observations for the planner, and its plans carried out.

Every interval the planner gets an observation and says how many instances it wants. Draining instances are polled every
`POLL_PS`. The last request ends all of it. Where nothing can happen any more after a decision (every request waits for
something that does not come), decisions stop until a request arrives, so that such a run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from netsim import Completion
from netsim.units import PS_PER_MS, PS_PER_S
from vidur_pd.cluster.planner.fleet import Fleet, Phase, Unit
from vidur_pd.cluster.planner.plan import FleetPlan
from vidur_pd.cluster.planner.planner import AskedPlanner, EngineRates, Observation, PoolView
from vidur_pd.cluster.planner.weights import WeightLoader
from vidur_pd.execution.clock import EventQueue, Priority
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.scheduling import RankState
from vidur_pd.workload.request import Request

POLL_PS: Final = 50 * PS_PER_MS
"""Time between two polls of draining instances; short against the seconds that a start takes."""


class Cluster(Protocol):
    """Cluster that the instances of a planner are part of."""

    @property
    def unfinished(self) -> int:
        """Requests that have not ended, future ones included."""
        ...

    @property
    def is_at_rest(self) -> bool:
        """Neither the loop nor the network has an event left."""
        ...

    def hands_over(self, instance: Instance) -> bool:
        """Whether KV is or will be handed over from or to an instance."""
        ...

    def set_serving(self, instance: Instance, serves: bool) -> None:
        """The instance gets requests from now on, or gets none."""
        ...

    def switch_off(self, instance: Instance) -> None:
        """Drops what an instance without requests has cached."""
        ...


@dataclass(slots=True)
class Seen:
    """Sums over the requests of an interval."""

    arrivals: int = 0
    prompt_tokens: int = 0
    ended: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class PlannerControl:
    """Planner of a run, its fleet, and the clock of its decisions."""

    def __init__(
        self,
        plan: FleetPlan,
        units: Sequence[Unit],
        context_tokens: dict[str, int],
        rates: EngineRates,
        loader: WeightLoader,
        queue: EventQueue,
        cluster: Cluster,
    ) -> None:
        """``context_tokens``: longest prompt and output, by pool."""
        self.plan, self._config, self._bounds = plan, plan.config, plan.bounds
        self._context_tokens = context_tokens
        self._rates, self.loader, self._queue, self._cluster = rates, loader, queue, cluster
        self._planner = AskedPlanner(plan.config)
        self.fleet = Fleet(units, plan.bounds, lambda: queue.now_ps, self._begin, cluster.set_serving)
        self._interval_ps = round(plan.config.interval_s * PS_PER_S)
        self._seen, self._means = Seen(), (0.0, 0.0, 0.0)
        self._next_decision_ps = 0
        self._is_asleep = False
        self.decisions = 0
        self.starting_ps: list[int] = []
        """Times from the decision to start an instance until it served."""
        self.end_ps: int | None = None
        """End of the last request; events of the control after it do nothing."""

    def begin(self) -> None:
        """To be called before requests come."""
        self.fleet.open()
        self._wake()

    def arrived(self, request: Request) -> None:
        """A request has come."""
        self._seen.arrivals += 1
        self._seen.prompt_tokens += request.prompt_tokens
        if self._is_asleep:
            self._wake()

    def ended(self, requests: Iterable[Request]) -> None:
        """Requests have all their tokens, or get no more."""
        for request in requests:
            self._seen.ended += 1
            self._seen.output_tokens += request.output_tokens
            self._seen.cached_tokens += request.cached_tokens
        if not self._cluster.unfinished and self.end_ps is None:
            self.end_ps = self._queue.now_ps
            self.fleet.end()

    def weights_arrived(self, completion: Completion) -> bool:
        """A flow graph has arrived or failed; returns False if it is not of weights that are loaded."""
        return self.loader.arrived(completion)

    def _wake(self) -> None:
        self._is_asleep = False
        self._next_decision_ps = self._queue.now_ps + self._interval_ps
        self._schedule_next()

    def _schedule_next(self) -> None:
        """Schedules the one event of the control: a decision, or a poll of draining instances."""
        at_ps = self._next_decision_ps
        if self.fleet.draining:
            at_ps = min(at_ps, self._queue.now_ps + POLL_PS)
        self._queue.schedule(at_ps, Priority.DISPATCH, self._act)

    def _act(self) -> None:
        if self.end_ps is not None:
            return
        self._look()
        is_due = self._queue.now_ps >= self._next_decision_ps
        if is_due:
            self._next_decision_ps += self._interval_ps
            self.decisions += 1
            self.fleet.aim(self._planner.plan(self._observation()))
        if is_due and self._cluster.is_at_rest:
            self._is_asleep = True
        else:
            self._schedule_next()

    def _look(self) -> None:
        """Switches off draining instances that have nothing left."""
        for instance in self.fleet.draining:
            if instance.is_idle and not self._cluster.hands_over(instance) and not any(map(_is_used, instance.ranks)):
                self._cluster.switch_off(instance)
                self.fleet.emptied(instance)

    def _observation(self) -> Observation:
        seen, self._seen = self._seen, Seen()
        prompts, cached, outputs = self._means
        if seen.arrivals:
            prompts = seen.prompt_tokens / seen.arrivals
        if seen.ended:
            cached, outputs = seen.cached_tokens / seen.ended, seen.output_tokens / seen.ended
        self._means = (prompts, cached, outputs)
        return Observation(
            now_s=self._queue.now_ps / PS_PER_S,
            interval_s=self._config.interval_s,
            arrivals=seen.arrivals,
            prompt_tokens=prompts,
            cached_tokens=cached,
            output_tokens=outputs,
            pools=tuple(self._view(pool) for pool in self._bounds),
            rates=self._rates,
        )

    def _view(self, pool: str) -> PoolView:
        serving = self.fleet.in_phase(pool, Phase.SERVING)
        bounds = self._bounds[pool]
        return PoolView(
            name=pool,
            role=serving[0].placement.role,
            serving=len(serving),
            starting=len(self.fleet.in_phase(pool, Phase.STARTING)),
            draining=len(self.fleet.in_phase(pool, Phase.DRAINING)),
            least=bounds.least,
            most=bounds.most,
            context_tokens=self._context_tokens[pool],
            queued_tokens=tuple(max(rank.state.outstanding_tokens for rank in each.ranks) for each in serving),
            kv_use=tuple(max(_kv_use(rank.state) for rank in each.ranks) for each in serving),
        )

    def _begin(self, instance: Instance, is_switch: bool) -> None:
        """Starts an instance; with the other role its GPUs have the weights already."""
        begun_ps = self._queue.now_ps

        def ready() -> None:
            if self.end_ps is None:
                self.starting_ps.append(self._queue.now_ps - begun_ps)
                self.fleet.started(instance)

        def after(time_s: float) -> None:
            self._queue.schedule(self._queue.now_ps + round(time_s * PS_PER_S), Priority.DISPATCH, ready)

        if is_switch:
            assert self._config.role_switch_s is not None, "units of two roles come with it"
            after(self._config.role_switch_s)
            return
        peers = [each for each in self.fleet.in_phase(instance.placement.pool, Phase.SERVING) if each.is_up]
        self.loader.load(instance, peers, lambda: after(self._config.startup.engine_s))


def _is_used(rank: Rank) -> bool:
    state = rank.state
    return state.has_work or bool(state.used_blocks or state.waiting_requests or state.running_requests)


def _kv_use(state: RankState) -> float:
    """KV that all requests of a rank need, those that wait for room included, over its KV blocks."""
    return state.load_tokens / (state.usable_blocks * state.block_tokens)
