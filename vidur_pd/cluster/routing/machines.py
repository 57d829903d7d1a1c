"""Machines of Splitwise: pools that they move between, and what requests have booked on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vidur_pd.config import Role
from vidur_pd.execution.instances.instance import Instance
from vidur_pd.workload.request import Request

_log = logging.getLogger(__name__)

PoolName = Literal["prompt", "token", "mixed"]
OWN_POOL: dict[Role, PoolName] = {"prefill": "prompt", "decode": "token", "mixed": "mixed"}


class Machine:
    """One instance as Splitwise sees it."""

    __slots__ = ("booked_blocks", "decodes", "instance", "own_pool")

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.own_pool = OWN_POOL[instance.placement.role]
        self.booked_blocks = 0
        """KV blocks of requests that are here or are going to be: prompts, and outputs where they decode."""
        self.decodes = 0
        """Requests that decode here, now or later."""

    @property
    def pending_tokens(self) -> int:
        """Tokens of prompts that are not computed, and one for each request that decodes here."""
        return sum(rank.state.outstanding_tokens for rank in self.instance.ranks) + self.decodes

    @property
    def pending_requests(self) -> int:
        """Requests that are here, running or not; not those whose KV is on its way."""
        return sum(rank.state.queued_requests + rank.state.running_requests for rank in self.instance.ranks)

    @property
    def has_queue(self) -> bool:
        return any(rank.state.queued_requests for rank in self.instance.ranks)

    def blocks(self, tokens: int) -> int:
        return self.instance.ranks[0].state.blocks(tokens)


@dataclass(slots=True)
class Booking:
    """What a request has booked, and where; ``None``: nothing, or nothing any more."""

    prompt: Machine | None
    token: Machine | None
    prompt_blocks: int = 0
    token_blocks: int = 0


class Bookings:
    """Memory and pending decodes of machines, as requests that have been assigned to them will need them."""

    def __init__(self) -> None:
        self._of_request: dict[int, Booking] = {}

    def __getitem__(self, request: Request) -> Booking:
        return self._of_request[request.index]

    def book(self, request: Request, prompt: Machine, token: Machine | None) -> None:
        """P + 1 tokens on the prompt machine, P + D on the token machine, once where the two are one."""
        booking = self._of_request[request.index] = Booking(prompt=None, token=None)
        if prompt is not token:
            booking.prompt, booking.prompt_blocks = prompt, prompt.blocks(request.context_tokens + 1)
            prompt.booked_blocks += booking.prompt_blocks
        self.decode_on(request, token)

    def decode_on(self, request: Request, token: Machine | None) -> None:
        """The request decodes on a machine, and no more on the one that it was booked for."""
        booking = self._of_request[request.index]
        if booking.token is not None:
            booking.token.booked_blocks -= booking.token_blocks
            booking.token.decodes -= 1
        booking.token = token
        if token is not None:
            booking.token_blocks = token.blocks(request.prompt_tokens + request.output_tokens)
            token.booked_blocks += booking.token_blocks
            token.decodes += 1

    def leave_prompt(self, request: Request) -> None:
        """The prompt machine holds nothing of the request any more."""
        booking = self._of_request[request.index]
        if booking.prompt is not None:
            booking.prompt.booked_blocks -= booking.prompt_blocks
            booking.prompt = None

    def end(self, request: Request) -> None:
        """The request needs nothing any more, if it ever did."""
        if request.index in self._of_request:
            self.leave_prompt(request)
            self.decode_on(request, None)
            del self._of_request[request.index]


class MachinePools:
    """Which machines are in which pool, each in the order in which they came into it. Closed machines are in none."""

    def __init__(self, machines: Sequence[Machine], now_ps: Callable[[], int]) -> None:
        self._now_ps = now_ps
        self.machines: dict[PoolName, list[Machine]] = {"prompt": [], "token": [], "mixed": []}
        for machine in machines:
            self.machines[machine.own_pool].append(machine)

    def pool_of(self, machine: Machine) -> PoolName | None:
        """``None``: the machine is closed."""
        return next((name for name, pool in self.machines.items() if machine in pool), None)

    def move(self, machine: Machine, to: PoolName | None) -> None:
        """Moves a machine to the end of a pool."""
        pool = self.pool_of(machine)
        if pool == to:
            return
        if pool is not None:
            self.machines[pool].remove(machine)
        if to is not None:
            self.machines[to].append(machine)
        _log.debug("%d ps: %s leaves pool %s for %s", self._now_ps(), machine.instance.name, pool, to)
