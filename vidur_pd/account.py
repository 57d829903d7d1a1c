"""What a run did besides serving requests: what was simulated, where time and energy went, what it took."""

from __future__ import annotations

from typing import Any

from vidur_pd.config import PoolConfig
from vidur_pd.metrics.communication import communication_sources
from vidur_pd.metrics.energy import PoolActivity, energy_estimate
from vidur_pd.metrics.faults import Recovered, fault_summary
from vidur_pd.metrics.iterations import IterationLog
from vidur_pd.metrics.tally import RequestTally
from vidur_pd.simulation.state import SimulationState
from vidur_pd.workload import Workload


class Account:
    """The sections of ``summary.json`` that are not about requests."""

    def __init__(self, state: SimulationState, workload: Workload, log: IterationLog) -> None:
        self._plan = state.plan
        self._config = state.plan.config
        self._workload = workload
        self._instances = state.instances
        self._log = log

    def sections(
        self, tally: RequestTally, makespan_s: float, recovered: Recovered, effort: dict[str, Any]
    ) -> dict[str, Any]:
        """By their names; ``effort``: what simulating it took."""
        return {
            **self._description(makespan_s),
            "simulator": effort,
            **self._accounts(tally, makespan_s),
            **self._faults(tally, recovered),
        }

    def _description(self, makespan_s: float) -> dict[str, Any]:
        """What was simulated, and what simulating it took."""
        network = self._config.network
        return {
            "model": self._plan.model.name,
            "hardware": next(iter(self._plan.pools.values())).gpu.name,
            "seed": self._config.seed,
            "workload": {
                "name": self._workload.name,
                "digest": self._workload.digest,
                "source": self._workload.source,
                "trimmed_requests": self._workload.trimmed_requests,
                "skipped_rows": self._workload.skipped_rows,
            },
            "network": {
                "backend": network.backend,
                "coupling": self._plan.coupling.in_force,
                "topology": self._config.cluster.topology.model_dump(mode="json", exclude_none=True),
                "gpus": self._plan.topology.gpus,
            },
            "pools": [self._pool(pool.name, makespan_s) for pool in self._config.cluster.pools],
            "estimated_operators": self._estimated_operators(),
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
            "communication": communication_sources(self._plan.coupling, self._log, tally.transfers_ps),
            "attribution_s": tally.mean_parts_s(),
            "energy": energy_estimate(activity, makespan_s, tally.output_tokens),
        }

    def _faults(self, tally: RequestTally, recovered: Recovered) -> dict[str, Any]:
        """What faults did, where something failed."""
        account = fault_summary(self._plan.faults, recovered, tally, self._config.slo)
        return {} if account is None else {"faults": account}

    def _activity(self, pool: PoolConfig) -> PoolActivity:
        indices = [instance.index for instance in self._instances if instance.placement.pool == pool.name]
        # A stage computes while its own flight is in it, so each GPU works a share 1 / pp of what is booked.
        computing_s = float(self._log.computing_ps[indices].sum()) / 10**12 * pool.gpus_per_instance / pool.pp
        gpus = pool.instances * pool.gpus_per_instance
        return PoolActivity(pool.name, self._plan.pools[pool.name].gpu.name, gpus, computing_s)

    def _pool(self, name: str, makespan_s: float) -> dict[str, Any]:
        pool = next(pool for pool in self._config.cluster.pools if pool.name == name)
        indices = [instance.index for instance in self._instances if instance.placement.pool == name]
        busy_s = float(self._log.busy_ps[indices].sum()) / 10**12
        mean, peak = self._log.kv_share(indices, makespan_s)
        gpu = self._plan.pools[name].gpu
        return {
            "name": name,
            "role": pool.role,
            "hardware": gpu.name,
            "clock_as": gpu.clock_as,
            "instances": pool.instances,
            "tp": pool.tp,
            "ep": pool.ep,
            "dp": pool.dp,
            "pp": pool.pp,
            "gpus": pool.instances * pool.gpus_per_instance,
            "kv_blocks_per_rank": self._instances[indices[0]].ranks[0].state.usable_blocks,
            "busy_share": busy_s / (makespan_s * pool.instances * pool.pp) if makespan_s else None,
            "kv_use_mean": mean,
            "kv_use_max": peak,
        }
