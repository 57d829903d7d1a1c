"""Load planner: one instance more where any queues, one less where none does, as Dynamo's planner with static targets.

Source: Dynamo 1.x, planner, load-based scaling, every 5 s: a prefill pool grows where any queue is as long as a
context, and shrinks where all are below a tenth of it; a decode pool grows where the KV that any instance needs is
above what it has, and shrinks where it is below 60 % everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from boundary.fields import NonNegativeFloat, Section
from vidur_pd.cluster.planner.planner import Observation, Planner, PoolView


class Load(Planner):
    """See the module."""

    class Options(Section):
        """``planner.options``; defaults as with Dynamo, optimised for throughput."""

        prefill_up: NonNegativeFloat = 1.0
        """Queue of prompt tokens over the longest context, from which on one more instance starts."""
        prefill_down: NonNegativeFloat = 0.1
        decode_up: NonNegativeFloat = 1.0
        """KV in need over the KV that there is, above which one more instance starts."""
        decode_down: NonNegativeFloat = 0.6

    options: Options

    def plan(self, seen: Observation) -> Mapping[str, int]:
        return {pool.name: self._instances(pool) for pool in seen.pools if not pool.starting}

    def _instances(self, pool: PoolView) -> int:
        """A pool that is not starting one, which scaling waits for."""
        options = self.options
        queues = [tokens / pool.context_tokens for tokens in pool.queued_tokens]
        changes = []
        if pool.role != "decode":
            is_short = any(queue >= options.prefill_up for queue in queues)
            changes.append(_change(is_short, all(queue < options.prefill_down for queue in queues)))
        if pool.role != "prefill":
            is_short = any(use > options.decode_up for use in pool.kv_use)
            changes.append(_change(is_short, all(use < options.decode_down for use in pool.kv_use)))
        return pool.serving + max(changes)


def _change(is_short: bool, has_plenty: bool) -> int:
    return int(is_short) - int(has_plenty and not is_short)
