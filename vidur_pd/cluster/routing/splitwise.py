"""Splitwise (Patel et al., ISCA 2024): both machines of a request are chosen when it arrives.

Rules: the schedulers of its simulator, github.com/Mutinifni/splitwise-sim (8f99e7d), ``scheduler.py``. Of equal
machines the first in its pool is taken.

``kv_round_robin``  each pool in turns
``kv_jsq``          the fewest requests that are on the machine
``kv_token_jsq``    the fewest pending tokens: prompts that are not computed, one for each request that decodes there
``mixed_pool``      prompts where the fewest tokens are pending, decodes where the least memory is booked; machines move
                    into the mixed pool when the other side has no room, and back when they come to rest

On purpose otherwise than there: memory is counted in KV blocks, the memory of a prompt that has been handed over is
free again on its prompt machine, and a machine that could never hold a request is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from vidur_pd.cluster.routing.machines import Bookings, Machine, MachinePools, PoolName
from vidur_pd.cluster.routing.ranks import RankChoice
from vidur_pd.cluster.routing.routes import Assignment, MustTravel, Routes
from vidur_pd.config import Role, RoutingConfig, SplitwiseConfig
from vidur_pd.execution.instances.instance import Instance, Rank
from vidur_pd.workload.request import Request

MEASURES: Final[dict[str, Callable[[Machine], int]]] = {
    "kv_jsq": lambda machine: machine.pending_requests,
    "kv_token_jsq": lambda machine: machine.pending_tokens,
}
SIDES: Final[tuple[tuple[PoolName, Role], ...]] = (("prompt", "prefill"), ("token", "decode"))


class SplitwiseRoutes(Routes):
    """Entry and destination chosen together, with the books that this needs."""

    def __init__(
        self,
        instances: Sequence[Instance],
        config: RoutingConfig,
        must_travel: MustTravel,
        now_ps: Callable[[], int],
    ) -> None:
        self._config = config.splitwise or SplitwiseConfig()
        self._must_travel = must_travel
        self._ranks = RankChoice(config.rank_policy)
        self._machines = {instance.index: Machine(instance) for instance in instances}
        self.pools = MachinePools(list(self._machines.values()), now_ps)
        self._bookings = Bookings()
        self._turns = {"prompt": 0, "token": 0}

    def enter(self, request: Request) -> tuple[Assignment | None, str | None]:
        self._bookings.end(request)  # of an attempt that was lost
        travels = self._must_travel(request)
        if (reason := self._refusal(request, travels=travels)) is not None:
            return None, reason
        prompt, token = self._pair(request) if self._is_mixed else self._fixed_pair(request, travels=travels)
        if prompt is None:
            return None, None
        self._bookings.book(request, prompt, token)
        role: Role = "mixed" if prompt is token else "prefill"
        return Assignment(self._ranks.rank_of(prompt.instance, request), role), None

    def destination(self, request: Request) -> Rank | None:
        token = self._bookings[request].token
        if token is None or self.pools.pool_of(token) is None:
            token = self._next_token_machine(request)
            self._bookings.decode_on(request, token)
        return None if token is None else self._ranks.rank_of(token.instance, request)

    def set_open(self, instance: Instance, *, is_open: bool) -> None:
        machine = self._machines[instance.index]
        self.pools.move(machine, machine.own_pool if is_open else None)

    def kv_left(self, request: Request) -> None:
        self._bookings.leave_prompt(request)

    def stays(self, request: Request) -> None:
        machine = self._bookings[request].prompt
        assert machine is not None, "its KV is there"
        self._bookings.leave_prompt(request)
        self._bookings.decode_on(request, machine)

    def ended(self, request: Request) -> None:
        self._bookings.end(request)

    def rests(self, instance: Instance) -> None:
        machine = self._machines[instance.index]
        if self.pools.pool_of(machine) == "mixed":
            self.pools.move(machine, machine.own_pool)

    @property
    def _is_mixed(self) -> bool:
        return self._config.scheduler == "mixed_pool"

    # Machines that do not change sides.

    def _fixed_pair(self, request: Request, *, travels: bool) -> tuple[Machine | None, Machine | None]:
        prompt = self._best_on(0, request)
        return prompt, self._best_on(1, request) if travels and prompt is not None else None

    def _best_on(self, side: int, request: Request) -> Machine | None:
        pool, role = SIDES[side]
        able = [machine for machine in self.pools.machines[pool] if _refusal(machine, request, role) is None]
        if not able:
            return None
        if self._config.scheduler == "kv_round_robin":
            self._turns[pool] += 1
            return able[(self._turns[pool] - 1) % len(able)]
        return min(able, key=MEASURES[self._config.scheduler])

    # The mixed pool: every machine may have to do everything.

    def _pair(self, request: Request) -> tuple[Machine | None, Machine | None]:
        """Both are one machine where nothing else has room, and for outputs that end with their prompt."""
        prompts, tokens, mixed = (self._able(pool, request) for pool in ("prompt", "token", "mixed"))
        prompt = self._with_short_queue(prompts, request) or self._with_short_queue(mixed, request)
        token: Machine | None = None
        if self._must_travel(request):
            token = self._with_memory(tokens, request) or self._with_memory(mixed, request)
        if prompt is None and tokens:
            prompt = min(tokens, key=_pending_tokens)
            self.pools.move(prompt, "mixed")
        if not self._must_travel(request):
            token = prompt
        elif token is None and (prompts := self._able("prompt", request)):
            token = min(prompts, key=_booked_blocks)
            self.pools.move(token, "mixed")
        if prompt is None or token is None:
            every = [each for pool in ("prompt", "mixed", "token") for each in self._able(pool, request)]
            prompt = token = min(every, key=_pending_tokens, default=None)
        return prompt, token

    def _able(self, pool: PoolName, request: Request) -> list[Machine]:
        return [machine for machine in self.pools.machines[pool] if _refusal(machine, request, "mixed") is None]

    def _with_short_queue(self, machines: list[Machine], request: Request) -> Machine | None:
        """The one with the fewest pending tokens, unless requests queue there and it would get too many tokens."""
        if not machines:
            return None
        best = min(machines, key=_pending_tokens)
        is_long = best.pending_tokens + request.context_tokens > self._config.max_pending_tokens
        return None if best.has_queue and is_long else best

    def _with_memory(self, machines: list[Machine], request: Request) -> Machine | None:
        """The one with the least memory booked, unless the request would fill it."""
        if not machines:
            return None
        best = min(machines, key=_booked_blocks)
        needed = best.blocks(request.prompt_tokens + request.output_tokens)
        return None if best.booked_blocks + needed >= best.instance.kv_blocks else best

    def _next_token_machine(self, request: Request) -> Machine | None:
        """For a request that has lost the one it was booked for."""
        if not self._is_mixed:
            return self._best_on(1, request)
        every = (self._able(pool, request) for pool in ("token", "mixed", "prompt"))
        machines = next((machines for machines in every if machines), [])
        best = min(machines, key=_booked_blocks, default=None)
        if best is not None and self.pools.pool_of(best) == "prompt":
            self.pools.move(best, "mixed")
        return best

    # Refusals.

    def _refusal(self, request: Request, *, travels: bool) -> str | None:
        """Why no machine, in service or not, could ever serve the request."""
        machines = list(self._machines.values())
        if self._is_mixed:
            return _common_reason(machines, request, "mixed")
        for pool, role in SIDES[: 1 + travels]:
            reason = _common_reason([each for each in machines if each.own_pool == pool], request, role)
            if reason is not None:
                return reason
        return None


def _pending_tokens(machine: Machine) -> int:
    return machine.pending_tokens


def _booked_blocks(machine: Machine) -> int:
    return machine.booked_blocks


def _refusal(machine: Machine, request: Request, role: Role) -> str | None:
    return machine.instance.refusal(request, role)


def _common_reason(machines: Sequence[Machine], request: Request, role: Role) -> str | None:
    """The machines of a pool are identical."""
    of_pools = {machine.instance.placement.pool: machine for machine in machines}
    reasons = [_refusal(machine, request, role) for machine in of_pools.values()]
    return None if None in reasons else reasons[0]
