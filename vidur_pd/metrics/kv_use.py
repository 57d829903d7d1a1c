"""KV blocks in use over time: their mean and peak on each instance."""

from __future__ import annotations

from vidur_pd.metrics.quantities import PS_PER_S


class KvUse:
    """Integrates the blocks that requests hold, those held for a transfer included, from time 0 to the last change."""

    def __init__(self, instances: int) -> None:
        self._integral = [0] * instances
        """[instances] twice the block · ps, to stay with integers."""
        self._since_ps = [0] * instances
        self._used = [0] * instances
        self._peak = [0] * instances

    def hold(self, instance: int, at_ps: int, used: int) -> None:
        """From ``at_ps`` on ``used`` blocks are held; until then what was held before."""
        self._move_to(instance, at_ps, 2 * self._used[instance], used)

    def ramp(self, instance: int, at_ps: int, used: int) -> None:
        """Up to ``at_ps`` the use has grown evenly to ``used``: a run of decode iterations."""
        self._move_to(instance, at_ps, self._used[instance] + used, used)

    def share(self, instances: list[int], blocks: int, makespan_s: float) -> tuple[float | None, float | None]:
        """Mean over the makespan and peak of the used share of ``blocks`` per instance; ``None`` for no makespan."""
        if not makespan_s:
            return None, None
        held_s = sum(self._integral[index] for index in instances) / (2 * PS_PER_S)
        mean = held_s / (makespan_s * blocks * len(instances))
        return mean, max(self._peak[index] for index in instances) / blocks

    def _move_to(self, instance: int, at_ps: int, twice_the_mean: int, used: int) -> None:
        self._integral[instance] += twice_the_mean * (at_ps - self._since_ps[instance])
        self._since_ps[instance] = at_ps
        self._used[instance] = used
        self._peak[instance] = max(self._peak[instance], used)
